#include "tools/latency/load.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "numa/clock.h"
#include "tools/option_values.h"

namespace fastdecode {

namespace {

constexpr uint64_t kLookAgainNs = 20'000'000;    // for Stop
constexpr uint64_t kRefusedPauseNs = 1'000'000;  // the engine's queue is full

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
  command->add_option("--arrivals", arrivals, "open loop: poisson or constant")
      ->check(CLI::IsMember({"poisson", "constant"}))
      ->needs(open)
      ->type_name("HOW")
      ->capture_default_str();
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

Load::Load(InferenceEngine& engine, const LoadFlags& flags)
    : engine_(engine), flags_(flags), random_(flags.seed), thread_([this] { Run(); }) {}

void Load::Join() {
  stop_.store(true, std::memory_order_relaxed);
  if (thread_.joinable()) thread_.join();
}

void Load::Stop() {
  Join();
  if (failure_ != nullptr) std::rethrow_exception(std::exchange(failure_, nullptr));
}

void Load::Run() {
  try {
    flags_.rate > 0 ? RunOpen() : RunClosed();
  } catch (...) {
    failure_ = std::current_exception();
    failed_.store(true, std::memory_order_release);
  }
  for (const auto& [id, start] : running_) fd_forget(engine_.get(), id);  // which cancels it
  running_.clear();
}

void Load::RunClosed() {
  while (!stop_.load(std::memory_order_relaxed)) {
    while (running_.size() < static_cast<size_t>(flags_.concurrency) && TrySubmit(MakeRequest(), NowNs())) {
    }
    TakeEvents(NowNs() + kLookAgainNs);
  }
}

void Load::RunOpen() {
  uint64_t next_ns = NowNs();
  std::optional<GenerateRequest> next;
  while (!stop_.load(std::memory_order_relaxed)) {
    const uint64_t now_ns = NowNs();
    if (now_ns < next_ns) {
      TakeEvents(std::min(next_ns, now_ns + kLookAgainNs));
      continue;
    }
    if (!next.has_value()) next = MakeRequest();
    if (!TrySubmit(*next, next_ns)) {
      TakeEvents(now_ns + kRefusedPauseNs);
      continue;
    }
    next.reset();
    next_ns += DrawGap();
  }
  for (const uint64_t now_ns = NowNs(); next_ns < now_ns; next_ns += DrawGap()) {
    starts_.push_back({.intended_ns = next_ns});
    ++never_started_;
  }
}

uint64_t Load::DrawGap() {
  const double even_s = 1 / flags_.rate;
  const double gap_s =
      flags_.arrivals == "constant" ? even_s : std::exponential_distribution<double>(flags_.rate)(random_);
  return static_cast<uint64_t>(gap_s * 1e9);
}

int Load::Draw(const TokenRange& range) { return std::uniform_int_distribution<int>(range.min, range.max)(random_); }

GenerateRequest Load::MakeRequest() {
  std::vector<int32_t> ids(static_cast<size_t>(Draw(flags_.prompt_tokens)));
  std::uniform_int_distribution<int32_t> token(0, engine_.vocab_size() - 1);
  for (int32_t& id : ids) id = token(random_);
  GenerateRequest request(std::move(ids));
  request.fields.max_tokens = static_cast<uint32_t>(Draw(flags_.output_tokens));
  request.fields.temperature = 0;
  request.fields.ignore_eos = 1;
  return request;
}

// False: the queue is full.
bool Load::TrySubmit(const GenerateRequest& request, uint64_t intended_ns) {
  try {
    BenchRequest bench;
    if (flags_.fill) bench.fill_tokens = static_cast<uint32_t>(request.prompt_ids.size() - 1);
    const RequestView view(request);
    uint64_t id = 0;
    ThrowIfError(fd_bench_submit(engine_.get(), view.get(), &bench, &id));
    running_.emplace(id, starts_.size());
    starts_.push_back({.id = id, .intended_ns = intended_ns, .submit_ns = NowNs()});
    return true;
  } catch (const Error& error) {
    if (error.code() == FD_RESOURCE_EXHAUSTED) return false;
    throw;
  }
}

void Load::TakeEvents(uint64_t until_ns) {
  bool ended = false;
  for (uint64_t now_ns = NowNs(); now_ns < until_ns && !ended; now_ns = NowNs()) {
    engine_.Poll(static_cast<int64_t>(until_ns - now_ns), [&](const fd_event& event) {
      if (event.kind != FD_EVENT_FINISHED) return;
      if (event.finish == FD_FINISH_ERROR) throw Error(FD_UNAVAILABLE, std::string("a request failed: ") + event.error);
      const auto running = running_.find(event.id);
      starts_[running->second].ended_ns = NowNs();
      running_.erase(running);
      ended = true;
    });
  }
}

}  // namespace fastdecode
