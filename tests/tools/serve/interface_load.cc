// The load of `fastdecode bench serve` through the C interface, for serve_speed.py: so many requests at a time, each
// with random token ids and a fixed number of tokens to generate; one thread takes all events.
//
// usage: interface_load MODEL CONCURRENCY REQUESTS PROMPT_TOKENS TOKENS [OPTION=VALUE...]. Prints one JSON object.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fastdecode/fastdecode.hpp>
#include <random>
#include <string>
#include <vector>

namespace {

using fastdecode::EngineOptions;
using fastdecode::Error;
using fastdecode::GenerateRequest;
using fastdecode::InferenceEngine;

uint64_t Now() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

int Run(int argc, char** argv) {
  if (argc < 6) {
    std::fprintf(stderr, "usage: interface_load MODEL CONCURRENCY REQUESTS PROMPT_TOKENS TOKENS [OPTION=VALUE...]\n");
    return 1;
  }
  const size_t concurrency = std::stoul(argv[2]), requests = std::stoul(argv[3]), prompt_tokens = std::stoul(argv[4]);
  EngineOptions options;
  options.Set("model", argv[1]);
  for (int i = 6; i < argc; ++i) {
    const std::string option = argv[i];
    const size_t equals = option.find('=');
    options.Set(option.substr(0, equals), option.substr(equals + 1));
  }
  InferenceEngine engine(options);

  std::mt19937 random(1);
  size_t submitted = 0, ended = 0;
  uint64_t tokens = 0;
  std::vector<uint64_t> begun;       // when each request was about to be submitted
  std::vector<double> first_tokens;  // ms from then until its first token was taken
  const auto submit = [&] {
    std::vector<int32_t> ids(prompt_tokens);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % static_cast<uint32_t>(engine.vocab_size()));
    GenerateRequest request(std::move(ids));
    request.fields.max_tokens = static_cast<uint32_t>(std::stoul(argv[5]));
    request.fields.ignore_eos = 1;
    request.fields.temperature = 0;
    request.fields.user = reinterpret_cast<void*>(submitted);
    begun.push_back(Now());
    engine.SubmitForPoll(request);
    ++submitted;
  };
  const auto run = [&](size_t count) {
    submitted = ended = 0;
    tokens = 0;
    begun.clear();
    first_tokens.clear();
    while (submitted < std::min(concurrency, count)) submit();
    while (ended < count) {
      engine.Poll(-1, [&](const fd_event& event) {
        if (event.kind == FD_EVENT_TOKEN) {
          tokens += event.token_count;
          if (event.token_index == 0) {
            const uint64_t then = begun[reinterpret_cast<size_t>(event.user)];
            first_tokens.push_back(static_cast<double>(Now() - then) * 1e-6);
          }
        }
        if (event.kind == FD_EVENT_FINISHED) ++ended;
      });
      while (submitted < count && submitted - ended < concurrency) submit();
    }
  };
  run(std::min<size_t>(concurrency, 8));  // memory that is taken once
  const uint64_t start = Now();
  run(requests);
  const double seconds = static_cast<double>(Now() - start) * 1e-9;
  std::nth_element(first_tokens.begin(), first_tokens.begin() + static_cast<ptrdiff_t>(requests / 2),
                   first_tokens.end());
  std::printf(
      "{\"median_ttft_ms\": %.4f, \"duration\": %.6f, \"total_output_tokens\": %llu, \"output_throughput\": %.3f}\n",
      first_tokens[requests / 2], seconds, static_cast<unsigned long long>(tokens),
      static_cast<double>(tokens) / seconds);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return Run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "interface_load: %s\n", error.what());
    return 1;
  }
}
