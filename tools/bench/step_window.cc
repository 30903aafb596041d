#include "tools/bench/step_window.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fastdecode/fastdecode_bench.hpp>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "numa/clock.h"

namespace fastdecode {

namespace {

// A prompt of random tokens, which differ with *state.
GenerateRequest MakeRequest(const InferenceEngine& engine, int prompt_tokens, int tokens, uint64_t* state) {
  std::vector<int32_t> ids(static_cast<size_t>(prompt_tokens));
  for (int32_t& id : ids) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    id = static_cast<int32_t>((*state >> 33) % static_cast<uint64_t>(engine.vocab_size()));
  }
  GenerateRequest request(std::move(ids));
  request.fields.max_tokens = static_cast<uint32_t>(tokens);
  request.fields.temperature = 0;
  request.fields.ignore_eos = 1;
  return request;
}

// Requests whose first context - 1 tokens have random KV at their homes; every further token is a real step.
std::vector<TokenStream> SubmitBatch(InferenceEngine& engine, const StepWindow& window, int tokens) {
  std::vector<TokenStream> streams;
  uint64_t state = 1;
  for (int i = 0; i < window.batch; ++i) {
    const GenerateRequest request = MakeRequest(engine, window.context, tokens, &state);
    BenchRequest bench;
    bench.fill_tokens = static_cast<uint32_t>(window.context - 1);
    streams.push_back(Submit(engine, request, bench));
  }
  return streams;
}

// The index of an event's last token. An event has several where nobody took them for long.
uint32_t LastIndex(const TokenEvent& event) {
  return event.token_index + static_cast<uint32_t>(event.tokens.size()) - 1;
}

// Waits for token number `index` of a stream. False: it has ended before, with its context filled.
bool AwaitToken(TokenStream& stream, uint32_t index) {
  while (std::optional<TokenEvent> event = stream.Next()) {
    if (event->finished && !event->error.empty()) {
      throw Error(FD_UNAVAILABLE, "a sequence ended before the window was over: " + event->error);
    }
    if (event->finished) return false;
    if (LastIndex(*event) >= index) return true;
  }
  return false;
}

// Passes over what is there of a stream, whose last token was number *index. False: up to its end.
bool PassOver(TokenStream& stream, uint32_t* index) {
  while (std::optional<TokenEvent> event = stream.Next(0)) {
    if (event->finished) return false;
    *index = LastIndex(*event);
  }
  return true;
}

// Whether what is there of a stream goes up to its end.
bool HasEnded(TokenStream& stream) {
  while (std::optional<TokenEvent> event = stream.Next(0)) {
    if (event->finished) return true;
  }
  return false;
}

// Cancels all, and waits until none runs: before, the engine's queue may have no room for as many again.
void EndAll(std::vector<TokenStream>& streams) {
  for (TokenStream& stream : streams) stream.Cancel();
  for (TokenStream& stream : streams) {
    while (stream.Next()) {
    }
  }
}

// Throws unless all sequences fit their homes as long as the window lasts: otherwise some would wait for others to end.
void CheckHold(const InferenceEngine& engine, const StepWindow& window) {
  if (engine.max_context() < window.tokens()) {
    throw Error(FD_INVALID_ARGUMENT, "--context: " + std::to_string(window.context) + " and " +
                                         std::to_string(window.tokens() - window.context) +
                                         " rounds do not fit the context of " + std::to_string(engine.max_context()));
  }
  const uint64_t sequences = SequencesThatFit(engine, window);
  if (sequences >= static_cast<uint64_t>(window.batch)) return;
  throw Error(FD_RESOURCE_EXHAUSTED, "--batch: the homes hold " + std::to_string(sequences) + " sequences of " +
                                         std::to_string(window.tokens()) + " tokens, not " +
                                         std::to_string(window.batch) + "; --kv-gib gives them more memory");
}

void WarnOfRounds(uint32_t rounds, const StepWindow& window) {
  if (rounds >= 0.9 * window.rounds - 1 && rounds <= 1.1 * window.rounds + 1) return;
  std::fprintf(stderr,
               "fastdecode: warning: the window caught %u rounds, not %d: steps are short and the machine is busy; "
               "give more --rounds\n",
               rounds, window.rounds);
}

// What the homes say of their pages while the sequences run: homes count at most every 100 ms, so that a short window
// may have to wait for a count that was not there before it. A home that says nothing is left as it is.
void AddPages(const InferenceEngine& engine, uint64_t window_start_ns, nlohmann::json& s) {
  constexpr uint64_t kWaitNsMax = 300'000'000;
  const uint64_t start_ns = NowNs();
  nlohmann::json said;
  const auto is_recent = [&](const nlohmann::json& pages) {
    return pages.at("age_ns").get<uint64_t>() <= NowNs() - window_start_ns;
  };
  do {
    said = nlohmann::json::parse(engine.PagesJson());
    if (said.size() == s["homes"].size() && std::all_of(said.begin(), said.end(), is_recent)) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  } while (NowNs() - start_ns < kWaitNsMax);
  for (nlohmann::json& pages : said) {
    if (!is_recent(pages)) continue;
    pages.erase("age_ns");
    for (nlohmann::json& home : s["homes"]) {
      if (home["index"] == pages["index"]) home.update(pages);
    }
  }
}

// Counters over a window that starts when every sequence has been through its first steps, and ends whole rounds of the
// last sequence later. None, if a sequence had ended by then: where steps take a fraction of a millisecond, one that
// the machine keeps from reading its tokens comes too late.
std::optional<nlohmann::json> RunWindow(InferenceEngine& engine, const StepWindow& window) {
  std::vector<TokenStream> streams =
      SubmitBatch(engine, window, window.warmup_rounds + window.rounds + StepWindow::kSlackRounds + 1000);
  const auto missed = [&streams] {
    EndAll(streams);
    return std::nullopt;
  };
  for (TokenStream& stream : streams) {
    if (!AwaitToken(stream, static_cast<uint32_t>(window.warmup_rounds))) return missed();
  }
  TokenStream& last = streams.back();
  // What came in meanwhile is passed over, so that the window starts at a boundary that is just over.
  auto index = static_cast<uint32_t>(window.warmup_rounds);
  if (!PassOver(last, &index) || !AwaitToken(last, ++index)) return missed();
  engine.ResetStatistics();
  const uint64_t window_start_ns = NowNs();
  if (!PassOver(last, &index)) return missed();
  const uint32_t first = index;
  index += static_cast<uint32_t>(window.rounds);
  if (!AwaitToken(last, index)) return missed();
  nlohmann::json s = nlohmann::json::parse(engine.StatisticsJson());
  if (!PassOver(last, &index)) return missed();
  if (s["active_sequences"].get<int>() < window.batch && std::any_of(streams.begin(), streams.end(), HasEnded)) {
    return missed();
  }
  WarnOfRounds(index - first, window);
  AddPages(engine, window_start_ns, s);
  return s;
}

nlohmann::json RunWholeWindow(InferenceEngine& engine, const StepWindow& window) {
  constexpr int kAttempts = 20;
  for (int i = 0; i < kAttempts; ++i) {
    if (std::optional<nlohmann::json> s = RunWindow(engine, window); s.has_value()) return *std::move(s);
  }
  throw Error(FD_UNAVAILABLE, "sequences ended before the window was over, " + std::to_string(kAttempts) +
                                  " times: steps are short and the machine is busy; give fewer --rounds");
}

// Adds what is derived from the window's counters. `micro_batches_max`: so many may have sequences. All have, and their
// steps as many tokens, where micro-batches grow evenly; elsewhere one may have all, or step more often than
// the others. So rounds are counted by tokens, of which a round has one for each sequence.
void AddFigures(nlohmann::json& s, const StepWindow& window, int micro_batches_max) {
  const auto number = [&](const char* name) { return s[name].get<double>(); };
  const double rounds = number("sampled_tokens") / window.batch;
  const int steps_a_round = rounds > 0 ? static_cast<int>(std::lround(number("steps") / rounds)) : 0;
  const int micro_batches = std::clamp(steps_a_round, 1, micro_batches_max);
  s["batch"] = window.batch;
  s["context"] = window.context;
  s["micro_batches"] = micro_batches;
  s["rounds"] = rounds;
  s["step_us"] = s["step"].value("mean_us", 0.0);
  s["round_us"] = rounds > 0 ? number("wall_ns") * 1e-3 / rounds : 0;
  const double s_busy_ns = number("s_busy_ns"), r_busy_ns = number("r_busy_ns");
  s["weight_gb_per_s"] = s_busy_ns > 0 ? number("weight_bytes") * number("steps") / s_busy_ns : 0;
  s["s_over_r"] = r_busy_ns > 0 ? s_busy_ns / r_busy_ns : 0;
  s["kv_mb_per_round"] = rounds > 0 ? number("kv_bytes") * 1e-6 / rounds : 0;
}

}  // namespace

uint64_t SequencesThatFit(const InferenceEngine& engine, const StepWindow& window) {
  const uint64_t pages = (static_cast<uint64_t>(window.tokens()) + 31) / 32 + 1;
  uint64_t sequences = 0;
  const nlohmann::json statistics = nlohmann::json::parse(engine.StatisticsJson());
  for (const nlohmann::json& home : statistics["homes"]) sequences += home["pages"].get<uint64_t>() / pages;
  return sequences;
}

nlohmann::json MeasurePrompt(InferenceEngine& engine, int tokens) {
  uint64_t state = 7;
  engine.ResetStatistics();
  TokenStream stream = engine.Submit(MakeRequest(engine, tokens, 1, &state));
  while (std::optional<TokenEvent> event = stream.Next()) {
    if (event->finished && !event->error.empty()) throw Error(FD_UNAVAILABLE, "a prompt failed: " + event->error);
  }
  return nlohmann::json::parse(engine.StatisticsJson());
}

nlohmann::json MeasureWindow(InferenceEngine& engine, const StepWindow& window) {
  CheckHold(engine, window);
  nlohmann::json s = RunWholeWindow(engine, window);
  if (s["preemptions"].get<uint64_t>() > 0) {
    throw Error(FD_RESOURCE_EXHAUSTED,
                "--kv-gib: sequences were preempted within the window; give the homes more memory");
  }
  if (const auto active = s["active_sequences"].get<int>(); active < window.batch) {
    throw Error(FD_RESOURCE_EXHAUSTED,
                "--batch: only " + std::to_string(active) + " of " + std::to_string(window.batch) +
                    " sequences advanced at once; the others waited for room at the fastest home");
  }
  AddFigures(s, window, std::min(s["micro_batches"].get<int>(), window.batch));
  return s;
}

}  // namespace fastdecode
