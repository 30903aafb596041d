// engine_shell OPTION=VALUE...: an engine that lives as long as its standard input, for scripts that hurt its homes.
//
// Each line "TOKENS PROMPT" of the input submits a request (greedy, going on behind end tokens) at once; requests run
// side by side. Output, a line each, with the wall clock in seconds:
//   first INDEX TIME            its first token is there
//   end INDEX TIME ok ID,ID,... all of them
//   end INDEX TIME error TEXT   it ended with an error
//   log TIME TEXT               what the engine said, and at the end its statistics
#include <time.h>

#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>
#include <vector>

#include <fastdecode/fastdecode.hpp>

namespace fastdecode {

namespace {

double Now() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9;
}

void PrintLog(void*, int, const char* message) { std::printf("log %.3f %s\n", Now(), message); }

void Follow(size_t index, TokenStream stream) {
  std::string ids;
  while (const std::optional<TokenEvent> event = stream.Next()) {
    if (!event->finished) {
      if (ids.empty()) std::printf("first %zu %.3f\n", index, Now());
      for (const int32_t id : event->tokens) ids += (ids.empty() ? "" : ",") + std::to_string(id);
      continue;
    }
    const bool failed = event->finish == FD_FINISH_ERROR;
    std::printf("end %zu %.3f %s %s\n", index, Now(), failed ? "error" : "ok",
                failed ? event->error.c_str() : ids.c_str());
  }
}

void Run(const EngineOptions& options) {
  InferenceEngine engine(options);
  std::printf("log %.3f ready\n", Now());
  std::vector<std::jthread> followers;  // joined before the engine ends
  std::string line;
  for (size_t index = 0; std::getline(std::cin, line); ++index) {
    const size_t space = line.find(' ');
    GenerateRequest request(space == std::string::npos ? "" : line.substr(space + 1));
    request.fields.max_tokens = static_cast<uint32_t>(std::strtoul(line.c_str(), nullptr, 10));
    request.fields.temperature = 0;
    request.fields.ignore_eos = 1;
    followers.emplace_back(Follow, index, engine.Submit(request));
  }
  followers.clear();
  std::printf("log %.3f %s\n", Now(), engine.StatisticsJson().c_str());
}

}  // namespace

}  // namespace fastdecode

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  try {
    fastdecode::EngineOptions options;
    options.SetLog(&fastdecode::PrintLog, nullptr, 1);
    for (int i = 1; i < argc; ++i) {
      const std::string argument = argv[i];
      const size_t equals = argument.find('=');
      if (equals == std::string::npos) throw std::runtime_error(argument + " is not OPTION=VALUE");
      options.Set(argument.substr(0, equals), argument.substr(equals + 1));
    }
    fastdecode::Run(options);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "engine_shell: %s\n", error.what());
    return 1;
  }
}
