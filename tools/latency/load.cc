#include "tools/latency/load.h"

#include <memory>
#include <utility>

#include "tools/load/arrivals_flag.h"
#include "tools/load/plan.h"
#include "tools/option_values.h"

namespace fastdecode {

namespace {

// Requests of random tokens, without end.
class RandomRequests : public load::RequestSource {
 public:
  RandomRequests(const LoadFlags& flags, int32_t vocab_size)
      : flags_(flags),
        vocab_size_(vocab_size),
        drawer_({load::Lengths::Uniform(flags.prompt_tokens.min, flags.prompt_tokens.max),
                 load::Lengths::Uniform(flags.output_tokens.min, flags.output_tokens.max), flags.arrivals, flags.seed}),
        ids_(flags.seed) {}

  bool Next(double* arrival_s) override {
    planned_ = drawer_.Next();
    *arrival_s = flags_.rate > 0 ? flags_.arrivals.Time(planned_.arrival, flags_.rate) : 0;
    return true;
  }

  void Make(GenerateRequest* request) override {
    *request = GenerateRequest(load::DrawIds(planned_.prompt_tokens, 0, vocab_size_ - 1, ids_));
    request->fields.max_tokens = static_cast<uint32_t>(planned_.output_tokens);
    request->fields.temperature = 0;
    request->fields.ignore_eos = 1;
  }

 private:
  const LoadFlags& flags_;
  const int32_t vocab_size_;
  load::LoadDrawer drawer_;
  load::PlannedRequest planned_;  // the one that Next went on to
  load::Random ids_;
};

// "64" or "16-128".
std::string ParseRange(const std::string& text, TokenRange* range) {
  const std::string expected = "'" + text + "' is no number of tokens (1 to 1048576), nor a range such as 16-128";
  const auto number = [](const std::string& part, int* out) {
    if (part.empty() || part.size() > 7 || part.find_first_not_of("0123456789") != std::string::npos) return false;
    *out = std::stoi(part);
    return *out >= 1 && *out <= 1 << 20;
  };
  const size_t dash = text.find('-');
  const bool good = number(text.substr(0, dash), &range->min) &&
                    number(dash == std::string::npos ? text : text.substr(dash + 1), &range->max);
  return good && range->min <= range->max ? "" : expected;
}

CLI::Option* AddRange(CLI::App* command, const char* name, TokenRange* range, const char* help) {
  auto text = std::make_shared<std::string>(std::to_string(range->min));
  return command
      ->add_option_function<std::string>(
          name, [text, range](const std::string& value) { *text = value; }, help)
      ->check([range](const std::string& value) { return ParseRange(value, range); })
      ->type_name("N[-M]")
      ->default_str(*text);
}

}  // namespace

void LoadFlags::AddTo(CLI::App* command) {
  CLI::Option* const closed =
      command->add_option("--concurrency", concurrency, "closed loop: requests in flight, each followed by the next")
          ->transform(Number(1, 16384))
          ->type_name("N")
          ->capture_default_str();
  CLI::Option* const open =
      command
          ->add_option("--rate", rate, "open loop: requests a second, each at its time whatever became of the others")
          ->transform(Number(0.001, 1e6))
          ->type_name("PER_S")
          ->excludes(closed);
  load::AddArrivals(command, &arrivals)->needs(open);
  AddRange(command, "--prompt-tokens", &prompt_tokens, "of each request, or a range to draw from");
  AddRange(command, "--output-tokens", &output_tokens, "of each request, or a range to draw from");
  command->add_flag("--fill", fill, "prompts get random KV instead of being computed: decode alone, at any context");
  command->add_option("--seed", seed, "of prompts, lengths and arrivals")
      ->transform(AnyNumber<uint64_t>())
      ->type_name("N")
      ->capture_default_str();
}

void CheckLoad(const InferenceEngine& engine, const LoadFlags& flags) {
  const int tokens = flags.prompt_tokens.max + flags.output_tokens.max;
  if (tokens <= engine.max_context()) return;
  throw Error(FD_INVALID_ARGUMENT, "--prompt-tokens, --output-tokens: " + std::to_string(flags.prompt_tokens.max) +
                                       " and " + std::to_string(flags.output_tokens.max) +
                                       " do not fit the context of " + std::to_string(engine.max_context()));
}

Load::Load(InferenceEngine& engine, const LoadFlags& flags) : thread_([this, &engine, flags] { Run(engine, flags); }) {}

void Load::Join() {
  stop_.store(true, std::memory_order_relaxed);
  if (thread_.joinable()) thread_.join();
}

void Load::Stop() {
  Join();
  if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void Load::Run(InferenceEngine& engine, const LoadFlags& flags) {
  load::EngineLoadOptions options;
  options.open = flags.rate > 0;
  options.concurrency = options.open ? 0 : flags.concurrency;
  options.is_background = true;
  options.fill = flags.fill;
  options.keep_itl = false;
  load::RunHooks hooks;
  hooks.is_interrupted = [this] { return stop_.load(std::memory_order_relaxed); };
  try {
    RandomRequests requests(flags, engine.vocab_size());
    const load::LoadRun run = load::EngineLoad(engine, requests, options, hooks).Run();
    for (const load::RequestResult& result : run.results) {
      never_started_ += result.start_ns == 0 ? 1 : 0;
      starts_.push_back({result.id, static_cast<uint64_t>(result.intended_ns), static_cast<uint64_t>(result.start_ns),
                         static_cast<uint64_t>(result.end_ns)});
    }
  } catch (...) {
    failure_ = std::current_exception();
    failed_.store(true, std::memory_order_release);
  }
}

}  // namespace fastdecode
