// fastdecode generate: text (or token ids) from prompts.
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "engine/fastdecode.hpp"
#include "tools/answer.h"
#include "tools/commands.h"
#include "tools/engine_flags.h"
#include "tools/interrupt.h"
#include "tools/latency_report.h"
#include "tools/npy.h"
#include "tools/output.h"
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

// "prompt 2 of 5: ", or nothing if there is only one.
std::string PromptName(size_t index, size_t count) {
  return count == 1 ? "" : "prompt " + std::to_string(index + 1) + " of " + std::to_string(count) + ": ";
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

// The requests of one command, submitted in order, as many at a time as the engine's queue takes.
// Thread: one. Must not outlive engine and requests.
class Submissions {
 public:
  Submissions(InferenceEngine& engine, const std::vector<GenerateRequest>& requests)
      : engine_(engine), requests_(requests) {}

  // Submits what the queue takes, at least request `index`. Throws Error naming the prompt.
  TokenStream& Await(size_t index) {
    while (streams_.size() < requests_.size()) {
      try {
        streams_.push_back(engine_.Submit(requests_[streams_.size()]));
      } catch (const Error& error) {
        const bool others_are_unread = streams_.size() > index;
        if (error.code() == FD_RESOURCE_EXHAUSTED && others_are_unread) break;
        throw Error(error.code(), PromptName(streams_.size(), requests_.size()) + error.what());
      }
    }
    return streams_[index];
  }

 private:
  InferenceEngine& engine_;
  const std::vector<GenerateRequest>& requests_;
  std::vector<TokenStream> streams_;
};

void ShowProgress(size_t done, size_t all) {
  if (isatty(STDERR_FILENO) == 0 || isatty(STDOUT_FILENO) != 0) return;
  std::fprintf(stderr, "\r%zu / %zu requests%s", done, all, done == all ? "\n" : "");
}

// Prints one answer after the other, the first that is not finished as it comes. False: some request failed.
bool PrintAnswers(InferenceEngine& engine, const GenerateFlags& flags, const std::vector<GenerateRequest>& requests) {
  LiveOutput live = engine.has_tokenizer() ? LiveOutput::kText : LiveOutput::kTokenIds;
  if (flags.json) live = LiveOutput::kNone;
  Submissions submissions(engine, requests);
  std::vector<RequestTimes> times;
  bool good = true;
  for (size_t i = 0; i < requests.size() && InterruptGuard::Signal() == 0; ++i) {
    TokenStream& stream = submissions.Await(i);
    if (!flags.json && requests.size() > 1) {
      WriteOut("== " + std::to_string(i + 1) + " of " + std::to_string(requests.size()) + "\n");
    }
    if (!flags.json) WriteOut(requests[i].prompt);
    const Answer answer = ReadAnswer(stream, live);
    WriteOut((flags.json ? AnswerJson(i, answer, requests[i].fields.logprobs >= 0) : "") + "\n");
    if (answer.end.finish == FD_FINISH_ERROR) {
      good = false;
      std::fprintf(stderr, "fastdecode: error: %s%s\n", PromptName(i, requests.size()).c_str(),
                   answer.end.error.c_str());
    }
    times.push_back(answer.Times());
    ShowProgress(i + 1, requests.size());
  }
  if (flags.report) {
    const std::string report = "\n" + LatencyReport(times, engine.StatisticsJson()) + "\n" + engine.Describe();
    if (flags.json) {
      std::fputs(report.c_str(), stderr);
    } else {
      WriteOut(report);
    }
  }
  return good;
}

void Generate(GenerateFlags& flags, EngineFlags& engine_flags) {
  if (flags.exact) {
    if (engine_flags.Given("compute") && engine_flags.Value("compute") != "f32") {
      throw Error(FD_INVALID_ARGUMENT,
                  "--exact: computes in f32, and --compute says '" + engine_flags.Value("compute") + "'");
    }
    engine_flags.SetDefault("compute", "f32");
  }
  std::vector<GenerateRequest> requests = ReadPrompts(flags.prompts);
  for (size_t i = 0; i < requests.size(); ++i) {
    ApplyRequestFlags(flags.request, requests[i]);
    requests[i].fields.seed += i;
  }
  if (!flags.logits.empty() && requests.size() != 1) {
    throw Error(FD_INVALID_ARGUMENT,
                "--logits: takes the logits of one prompt, and there are " + std::to_string(requests.size()));
  }
  const std::unique_ptr<EngineOptions> options = engine_flags.Build();
  InferenceEngine engine(*options);
  engine.ResetStatistics();
  InterruptGuard guard;
  std::unique_ptr<NpyFile> logits_file;
  std::vector<float> logits;
  if (!flags.logits.empty()) {
    logits_file = std::make_unique<NpyFile>(flags.logits);
    logits = PrepareLogits(engine, requests[0]);
  }
  const bool good = PrintAnswers(engine, flags, requests);
  if (const int signal = InterruptGuard::Signal(); signal != 0) throw Interrupted(signal);
  if (!good) throw Error(FD_UNAVAILABLE, "not every request was answered");
  if (logits_file != nullptr) {
    const size_t vocab = static_cast<size_t>(engine.vocab_size());
    logits_file->Write(logits.data(), logits.size() / vocab, vocab);
  }
}

}  // namespace

void AddGenerate(CLI::App& program) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* command = program.add_subcommand("generate", "Write text that goes on from prompts");
  AddPromptFlags(command, flags->prompts);
  AddRequestFlags(command, flags->request);
  const char* group = "Output";
  command->add_flag("--json", flags->json, "one JSON object a line and request: text, token_ids, finish_reason, times")
      ->group(group);
  command->add_flag("--report", flags->report, "afterwards: latency table, busy shares, what the engine found")
      ->group(group);
  command->add_option("--logits", flags->logits, "write the prompt's logits, float32 positions x vocabulary")
      ->type_name("FILE.npy")
      ->group(group);
  command->add_flag("--exact", flags->exact, "compute in f32 everywhere: --compute f32")->group("Engine");
  auto engine_flags = std::make_shared<EngineFlags>(command, EngineFlagNames());
  command->callback([flags, engine_flags] { Generate(*flags, *engine_flags); });
}

}  // namespace fastdecode
