// fastdecode generate: text (or token ids) from prompts.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <fastdecode/fastdecode_bench.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tools/answer.h"
#include "tools/commands.h"
#include "tools/engine_flags.h"
#include "tools/interrupt.h"
#include "tools/latency_report.h"
#include "tools/load_engine.h"
#include "tools/npy.h"
#include "tools/output.h"
#include "tools/pages_seen.h"
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

bool HasText(const GenerateRequest& request) { return request.prompt_ids.empty() || !request.stop.empty(); }

// The logits of a prompt, which are there once its answer's first token is, and their file. Thread: one. Must outlive
// the request.
class LogitsFile {
 public:
  explicit LogitsFile(const std::string& path) : path_(path) {}

  // Makes room for what the request is to be submitted with. None for a prompt too long, which Submit refuses.
  void Prepare(const InferenceEngine& engine, GenerateRequest& request) {
    std::vector<int32_t> ids = request.prompt_ids;
    const bool around = request.fields.add_special_tokens != 0;
    if (!request.parts.empty()) {
      ids = engine.Tokenize(request.parts, around);
    } else if (ids.empty()) {
      ids = engine.Tokenize(request.prompt, around);
    }
    if (ids.size() >= static_cast<size_t>(engine.max_context())) return;
    request.prompt_ids = std::move(ids);
    request.parts.clear();
    vocab_ = static_cast<size_t>(engine.vocab_size());
    logits_.resize(request.prompt_ids.size() * vocab_);
    bench_.prompt_logits = logits_.data();
    bench_.prompt_logits_floats = logits_.size();
  }
  const BenchRequest& bench() const { return bench_; }

  // Writes them, unless that has been done: before the text, whose reader may go away.
  void Write() {
    if (logits_.empty()) return;
    WriteNpy("--logits", path_, logits_.data(), logits_.size() / vocab_, vocab_);
    logits_.clear();
  }

 private:
  const std::string path_;
  BenchRequest bench_;
  std::vector<float> logits_;
  size_t vocab_ = 0;
};

// One request as the engine has it.
struct Submission {
  std::optional<TokenStream> stream;  // none: it was refused, or a signal came before its turn
  std::string refusal;
};

// The requests of one command, submitted in order, as many at a time as the engine's queue takes, until a signal comes.
// Thread: one. Must not outlive engine and requests.
class Submissions {
 public:
  // `bench`: of each request.
  Submissions(InferenceEngine& engine, const std::vector<GenerateRequest>& requests, const BenchRequest& bench)
      : engine_(engine), requests_(requests), bench_(bench) {}

  // Submits what the queue takes, at least request `index`. After a signal all that still run are cancelled.
  Submission& Await(size_t index) {
    while (taken_.size() < requests_.size() && InterruptGuard::Signal() == 0) {
      try {
        taken_.push_back({Submit(engine_, requests_[taken_.size()], bench_), ""});
      } catch (const Error& error) {
        const bool others_are_unread = taken_.size() > index;
        if (error.code() == FD_RESOURCE_EXHAUSTED && others_are_unread) break;
        taken_.push_back({std::nullopt, error.what()});
      }
    }
    if (InterruptGuard::Signal() != 0) CancelAll();
    return taken_[index];
  }

 private:
  // One after the other would run on while those before it are read.
  void CancelAll() {
    if (std::exchange(cancelled_, true)) return;
    for (Submission& submission : taken_) {
      if (submission.stream) submission.stream->Cancel();
    }
    taken_.resize(requests_.size());
  }

  InferenceEngine& engine_;
  const std::vector<GenerateRequest>& requests_;
  const BenchRequest& bench_;
  std::vector<Submission> taken_;
  bool cancelled_ = false;
};

void ShowProgress(size_t done, size_t all) {
  if (isatty(STDERR_FILENO) == 0 || isatty(STDOUT_FILENO) != 0) return;
  std::fprintf(stderr, "\r%zu / %zu requests%s", done, all, done == all ? "\n" : "");
}

// Writes one answer after the other, the first one of a prompt that is not finished as it comes, and its other choices
// behind it; after a signal those that are finished. Thread: one. Must not outlive flags and requests.
class AnswerWriter {
 public:
  // `on_token`: as of ReadAnswers.
  AnswerWriter(LiveOutput live, bool json, const std::vector<GenerateRequest>& requests, std::function<void()> on_token)
      : live_(live), json_(json), requests_(requests), on_token_(std::move(on_token)) {}

  void Write(size_t index, Submission& submission) {
    const std::vector<Answer> answers = json_ ? WriteJson(index, submission) : WriteText(index, submission);
    bool answered = true;
    const Answer* failed = nullptr;
    for (const Answer& answer : answers) {
      if (submission.stream) times_.push_back(answer.Times());
      answered = answered && (answer.finish == FD_FINISH_STOP || answer.finish == FD_FINISH_LENGTH);
      if (failed == nullptr && answer.finish == FD_FINISH_ERROR) failed = &answer;
    }
    answered_ += answered;
    if (failed == nullptr) return;
    failure_ = failed->error;
    if (requests_.size() == 1) return;  // it is the command's own error
    std::fprintf(stderr, "fastdecode: error: %s: %s\n", Name(index).c_str(), failure_.c_str());
  }

  // Throws unless every prompt has its answer.
  void Check() const {
    const std::string count = std::to_string(answered_) + " of " + std::to_string(requests_.size()) + " prompts";
    if (const int signal = InterruptGuard::Signal(); signal != 0) {
      if (requests_.size() > 1) std::fprintf(stderr, "fastdecode: %s were answered\n", count.c_str());
      throw Interrupted(signal);
    }
    if (answered_ == requests_.size()) return;
    throw Error(FD_UNAVAILABLE, requests_.size() == 1 ? failure_ : count + " were answered");
  }

  const std::vector<RequestTimes>& times() const { return times_; }

 private:
  uint32_t Choices(size_t index) const { return requests_[index].fields.n; }
  std::string Place(size_t index) const {
    return std::to_string(index + 1) + " of " + std::to_string(requests_.size());
  }
  std::string Name(size_t index) const { return "prompt " + Place(index); }

  // The line that tells an answer from others: "== 2 of 5, choice 1 of 3". Empty: there is no other.
  std::string Title(size_t index, uint32_t choice) const {
    const bool several = Choices(index) > 1;
    if (requests_.size() == 1 && !several) return "";
    const std::string prompt = requests_.size() > 1 ? Place(index) + (several ? ", " : "") : "";
    if (!several) return "== " + prompt;
    return "== " + prompt + "choice " + std::to_string(choice + 1) + " of " + std::to_string(Choices(index));
  }
  // What an answer's text begins with.
  std::string Heading(size_t index, uint32_t choice) const {
    const std::string title = Title(index, choice);
    return title + (title.empty() ? "" : "\n") + requests_[index].prompt;
  }

  std::vector<Answer> WriteJson(size_t index, Submission& submission) const {
    const uint32_t choices = Choices(index);
    std::vector<Answer> answers = submission.stream
                                      ? ReadAnswers(*submission.stream, choices, LiveOutput::kNone, on_token_)
                                      : NoAnswers(choices, submission.refusal);
    for (const Answer& answer : answers) {
      WriteOut(AnswerJson(index, answer, choices > 1, requests_[index].fields.logprobs >= 0) + "\n");
    }
    return answers;
  }

  std::vector<Answer> WriteText(size_t index, Submission& submission) const {
    const uint32_t choices = Choices(index);
    if (!submission.stream) return NoAnswers(choices, submission.refusal);
    const bool at_once = InterruptGuard::Signal() == 0;
    if (at_once) WriteOut(Heading(index, 0));
    std::vector<Answer> answers =
        ReadAnswers(*submission.stream, choices, at_once ? live_ : LiveOutput::kNone, on_token_);
    for (const Answer& answer : answers) {
      const bool cancelled = answer.finish == FD_FINISH_CANCELLED;
      const std::string title = Title(index, answer.choice);
      if (at_once && answer.choice == 0) {
        WriteOut(cancelled && !title.empty() ? "\n" + title + ": cancelled\n" : "\n");
      } else if (!cancelled) {
        WriteOut(Heading(index, answer.choice) + AnswerText(answer, live_) + "\n");
      }
    }
    return answers;
  }

  const LiveOutput live_;
  const bool json_;
  const std::vector<GenerateRequest>& requests_;
  const std::function<void()> on_token_;
  std::vector<RequestTimes> times_;
  size_t answered_ = 0;
  std::string failure_;
};

void Report(const InferenceEngine& engine, bool json, const std::vector<RequestTimes>& times, const PagesSeen& pages) {
  const std::string report =
      "\n" + LatencyReport(times, engine.StatisticsJson()) + pages.Text() + "\n" + engine.Describe();
  if (json) {
    std::fputs(report.c_str(), stderr);
  } else {
    WriteOut(report);
  }
}

// Throws unless all are answered.
void PrintAnswers(InferenceEngine& engine, const GenerateFlags& flags, const std::vector<GenerateRequest>& requests,
                  LogitsFile& logits) {
  Submissions submissions(engine, requests, logits.bench());
  PagesSeen pages(engine);
  const auto on_token = [&] {
    logits.Write();
    if (flags.report) pages.Look();
  };
  AnswerWriter writer(engine.has_tokenizer() ? LiveOutput::kText : LiveOutput::kTokenIds, flags.json, requests,
                      on_token);
  for (size_t i = 0; i < requests.size(); ++i) {
    writer.Write(i, submissions.Await(i));
    if (InterruptGuard::Signal() == 0) ShowProgress(i + 1, requests.size());
  }
  if (flags.report) Report(engine, flags.json, writer.times(), pages);
  writer.Check();
}

void Generate(GenerateFlags& flags, EngineFlags& engine_flags) {
  if (flags.exact) {
    if (engine_flags.Given("compute") && engine_flags.Value("compute") != "f32") {
      throw Error(FD_INVALID_ARGUMENT,
                  "--exact: computes in f32, and --compute says '" + engine_flags.Value("compute") + "'");
    }
    engine_flags.SetDefault("compute", "f32");
  }
  CheckRequestFlags(flags.request);
  if (flags.request.fields.logprobs >= 0 && !flags.json) {
    throw Error(FD_INVALID_ARGUMENT,
                "--logprobs: " + std::to_string(flags.request.fields.logprobs) + " are shown with --json alone");
  }
  std::vector<GenerateRequest> requests = ReadPrompts(flags.prompts);
  for (size_t i = 0; i < requests.size(); ++i) {
    ApplyRequestFlags(flags.request, requests[i]);
    requests[i].fields.seed += i * flags.request.fields.n;
  }
  if (!flags.logits.empty() && requests.size() != 1) {
    throw Error(FD_INVALID_ARGUMENT,
                "--logits: takes the logits of one prompt, and there are " + std::to_string(requests.size()));
  }
  if (!flags.logits.empty()) CheckWritable("--logits", flags.logits);
  // Said before the weights are read, which may take minutes.
  if (std::any_of(requests.begin(), requests.end(), HasText)) engine_flags.SetDefault("need-text", "true");
  const std::unique_ptr<EngineOptions> options = engine_flags.Build();
  const std::unique_ptr<InferenceEngine> made = LoadEngine(*options);
  InferenceEngine& engine = *made;
  if (flags.request.fields.n > engine.max_choices()) {
    throw Error(FD_INVALID_ARGUMENT, "--choices: " + std::to_string(flags.request.fields.n) + " is more than " +
                                         std::to_string(engine.max_choices()) +
                                         ", the most of one prompt with these --prefill-chunk and --max-queue");
  }
  engine.ResetStatistics();
  InterruptGuard guard;
  LogitsFile logits(flags.logits);
  for (GenerateRequest& request : requests) ApplyDefaultSampling(engine, flags.request, request);
  if (!flags.logits.empty()) logits.Prepare(engine, requests[0]);
  PrintAnswers(engine, flags, requests, logits);
  logits.Write();  // of an answer without a token
}

}  // namespace

void AddGenerate(CLI::App& program) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* command = program.add_subcommand("generate", "Write text that goes on from prompts");
  AddPromptFlags(command, flags->prompts);
  AddRequestFlags(command, flags->request);
  const char* group = "Output";
  command->add_flag("--json", flags->json, "one JSON object a line and answer: text, token_ids, finish_reason, times")
      ->group(group);
  command
      ->add_flag("--report", flags->report, "afterwards: latency table, busy shares, KV pages, what the engine found")
      ->group(group);
  command->add_option("--logits", flags->logits, "write the prompt's logits, float32 positions x vocabulary")
      ->type_name("FILE.npy")
      ->group(group);
  command->add_flag("--exact", flags->exact, "compute in f32 everywhere: --compute f32")->group("Engine");
  auto engine_flags = std::make_shared<EngineFlags>(command, EngineFlagNames());
  command->callback([flags, engine_flags] { Generate(*flags, *engine_flags); });
}

}  // namespace fastdecode
