// fastdecode generate: text (or token ids) from prompts.
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "engine/fastdecode.hpp"
#include "nlohmann/json.hpp"
#include "tools/commands.h"
#include "tools/engine_flags.h"
#include "tools/latency_report.h"
#include "tools/npy.h"
#include "tools/prompts.h"

namespace fastdecode {

namespace {

struct GenerateFlags {
  PromptFlags prompts;
  RequestFlags request;
  bool json = false;
  bool report = false;
  bool exact = false;
  std::string logits;
};

// What came of one request.
struct Answer {
  std::string text;
  std::vector<TokenEvent> tokens;
  TokenEvent end;
};

const char* FinishName(fd_finish finish) {
  switch (finish) {
    case FD_FINISH_STOP:
      return "stop";
    case FD_FINISH_LENGTH:
      return "length";
    case FD_FINISH_CANCELLED:
      return "cancelled";
    case FD_FINISH_ERROR:
      return "error";
  }
  return "error";
}

// Reads one request to its end; text goes out as it comes if `live`.
Answer ReadAnswer(TokenStream& stream, bool live, bool ids_only) {
  Answer answer;
  while (std::optional<TokenEvent> event = stream.Next()) {
    answer.text += event->text;
    if (live && ids_only && !event->finished) std::printf("%s%d", answer.tokens.empty() ? "" : ",", event->token);
    if (live) std::fwrite(event->text.data(), 1, event->text.size(), stdout);
    if (live) std::fflush(stdout);
    if (event->finished) {
      answer.end = *std::move(event);
    } else {
      answer.tokens.push_back(*std::move(event));
    }
  }
  return answer;
}

RequestTimes TimesOf(const Answer& answer) {
  RequestTimes times;
  times.submit_ns = answer.end.submit_ns;
  for (const TokenEvent& token : answer.tokens) times.token_ns.push_back(token.time_ns);
  return times;
}

nlohmann::json ToJson(size_t index, const Answer& answer, const fd_request& request) {
  nlohmann::json out;
  out["index"] = index;
  out["text"] = answer.text;
  nlohmann::json ids = nlohmann::json::array(), logprobs = nlohmann::json::array();
  for (const TokenEvent& token : answer.tokens) {
    ids.push_back(token.token);
    if (request.logprobs < 0) continue;
    nlohmann::json entry = {{"token", token.token}, {"logprob", token.logprob}, {"top", nlohmann::json::array()}};
    for (const fd_token_logprob& top : token.top_logprobs) entry["top"].push_back({{"token", top.token}, {"logprob", top.logprob}});
    logprobs.push_back(std::move(entry));
  }
  out["token_ids"] = std::move(ids);
  if (request.logprobs >= 0) out["logprobs"] = std::move(logprobs);
  out["finish_reason"] = FinishName(answer.end.finish);
  if (answer.end.finish == FD_FINISH_ERROR) out["error"] = answer.end.error;
  out["prompt_tokens"] = answer.end.prompt_tokens;
  out["generated_tokens"] = answer.end.generated_tokens;
  const RequestTimes times = TimesOf(answer);
  nlohmann::json& t = out["times"];
  t["total_ms"] = static_cast<double>(answer.end.time_ns - times.submit_ns) * 1e-6;
  if (!times.token_ns.empty()) t["ttft_ms"] = static_cast<double>(times.token_ns.front() - times.submit_ns) * 1e-6;
  if (times.token_ns.size() > 1) {
    t["tpot_ms"] = static_cast<double>(times.token_ns.back() - times.token_ns.front()) * 1e-6 /
                   static_cast<double>(times.token_ns.size() - 1);
  }
  return out;
}

// The room for the prompt's logits; the request then points to it.
std::vector<float> PrepareLogits(const InferenceEngine& engine, GenerateRequest& request) {
  if (request.prompt_ids.empty()) {
    request.prompt_ids = engine.Tokenize(request.prompt, request.fields.add_special_tokens != 0);
  }
  std::vector<float> logits(request.prompt_ids.size() * static_cast<size_t>(engine.vocab_size()));
  request.fields.prompt_logits = logits.data();
  request.fields.prompt_logits_floats = logits.size();
  return logits;
}

void ShowProgress(size_t done, size_t all) {
  if (isatty(STDERR_FILENO) == 0 || isatty(STDOUT_FILENO) != 0) return;
  std::fprintf(stderr, "\r%zu / %zu requests%s", done, all, done == all ? "\n" : "");
}

// Prints one answer after the other, the first that is not finished as it comes. False: some request failed.
bool PrintAnswers(InferenceEngine& engine, const GenerateFlags& flags, std::vector<GenerateRequest>& requests) {
  std::vector<TokenStream> streams;
  for (const GenerateRequest& request : requests) streams.push_back(engine.Submit(request));
  std::vector<RequestTimes> times;
  bool good = true;
  for (size_t i = 0; i < streams.size(); ++i) {
    const bool ids_only = !engine.has_tokenizer();
    if (!flags.json) {
      std::fwrite(requests[i].prompt.data(), 1, requests[i].prompt.size(), stdout);
      if (requests.size() > 1) std::fflush(stdout);
    }
    const Answer answer = ReadAnswer(streams[i], !flags.json, ids_only);
    if (flags.json) {
      std::printf("%s\n", ToJson(i, answer, requests[i].fields).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
    } else {
      std::printf("\n%s", requests.size() > 1 && i + 1 < streams.size() ? "\n" : "");
    }
    if (answer.end.finish == FD_FINISH_ERROR) {
      good = false;
      std::fprintf(stderr, "fastdecode: error: request %zu: %s\n", i, answer.end.error.c_str());
    }
    times.push_back(TimesOf(answer));
    ShowProgress(i + 1, streams.size());
  }
  if (flags.report) {
    std::fflush(stdout);
    std::FILE* out = flags.json ? stderr : stdout;
    std::fprintf(out, "\n%s\n%s", LatencyReport(times, engine.StatisticsJson()).c_str(), engine.Describe().c_str());
  }
  return good;
}

void Generate(GenerateFlags& flags, EngineFlags& engine_flags) {
  if (flags.exact) engine_flags.SetDefault("compute", "f32");
  std::vector<GenerateRequest> requests = ReadPrompts(flags.prompts);
  for (size_t i = 0; i < requests.size(); ++i) {
    ApplyRequestFlags(flags.request, requests[i]);
    requests[i].fields.seed += i;
  }
  if (!flags.logits.empty() && requests.size() != 1) {
    throw Error(FD_INVALID_ARGUMENT, "--logits: takes the logits of one prompt, and there are " + std::to_string(requests.size()));
  }
  const std::unique_ptr<EngineOptions> options = engine_flags.Build();
  InferenceEngine engine(*options);
  engine.ResetStatistics();
  std::vector<float> logits;
  if (!flags.logits.empty()) logits = PrepareLogits(engine, requests[0]);
  const bool good = PrintAnswers(engine, flags, requests);
  if (!good) throw Error(FD_UNAVAILABLE, "not every request was answered");
  if (!flags.logits.empty()) {
    const size_t vocab = static_cast<size_t>(engine.vocab_size());
    WriteNpy(flags.logits, logits.data(), logits.size() / vocab, vocab);
  }
}

}  // namespace

void AddGenerate(CLI::App& program) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* command = program.add_subcommand("generate", "Write text that goes on from prompts");
  AddPromptFlags(command, flags->prompts);
  AddRequestFlags(command, flags->request);
  command->add_flag("--json", flags->json, "one JSON object a line and request: text, token_ids, finish_reason, times");
  command->add_flag("--report", flags->report, "afterwards: latency table, busy shares, what the engine found");
  command->add_flag("--exact", flags->exact, "compute in f32 everywhere");
  command->add_option("--logits", flags->logits, "write the prompt's logits, float32 positions x vocabulary")->type_name("FILE.npy");
  auto engine_flags = std::make_shared<EngineFlags>(command, EngineFlagNames());
  command->callback([flags, engine_flags] { Generate(*flags, *engine_flags); });
}

}  // namespace fastdecode
