#include "tools/load/engine_load.h"

#include <algorithm>
#include <utility>

#include "tools/load/run_clock.h"

namespace fastdecode::load {

namespace {

constexpr int64_t kLookAgainNs = 20'000'000;    // for the hooks
constexpr int64_t kRefusedPauseNs = 1'000'000;  // the engine's queue is full

}  // namespace

EngineLoad::EngineLoad(InferenceEngine& engine, RequestSource& source, const EngineLoadOptions& options,
                       const RunHooks& hooks)
    : engine_(engine), source_(source), options_(options), hooks_(hooks) {}

LoadRun EngineLoad::Run() {
  RunClock clock(&run_);
  FetchNext();
  while (!is_over_ && (has_next_ || !running_.empty())) {
    if (hooks_.is_interrupted && hooks_.is_interrupted()) break;
    if (hooks_.report_progress) hooks_.report_progress(ended_);
    StartDue();
    int64_t until_ns = RunClock::Now() + (queue_is_full_ ? kRefusedPauseNs : kLookAgainNs);
    if (has_next_ && options_.open && !queue_is_full_) until_ns = std::min(until_ns, NextStartNs());
    Poll(until_ns);
    if (!failure_.empty()) throw Error(FD_UNAVAILABLE, "a request failed: " + failure_);
  }
  CancelRunning();
  clock.Stop();
  if (options_.open) NoteNeverStarted();
  return std::move(run_);
}

void EngineLoad::FetchNext() {
  has_next_ = source_.Next(&next_arrival_s_);
  if (has_next_) source_.Make(&next_);
}

int64_t EngineLoad::NextStartNs() const { return run_.start_ns + static_cast<int64_t>(next_arrival_s_ * 1e9); }

void EngineLoad::StartDue() {
  queue_is_full_ = false;
  while (has_next_ && !is_over_) {
    const bool has_place = options_.concurrency == 0 || running_.size() < static_cast<size_t>(options_.concurrency);
    if (!has_place || (options_.open && RunClock::Now() < NextStartNs())) return;
    if (!Submit()) {
      queue_is_full_ = true;
      return;
    }
    FetchNext();
  }
}

bool EngineLoad::Submit() {
  RequestResult result;
  result.start_ns = RunClock::Now();
  result.intended_ns = options_.open ? NextStartNs() : result.start_ns;
  result.prompt_tokens = static_cast<int64_t>(next_.prompt_ids.size());
  try {
    SubmitNext(&result.id);
  } catch (const Error& error) {
    if (options_.is_background && error.code() == FD_RESOURCE_EXHAUSTED) return false;
    if (options_.is_background) throw;
    EndRequest(&result, error.what());
  }
  if (!result.ended()) {
    running_.emplace(result.id, run_.results.size());
    constexpr uint32_t kReservedMax = 1 << 16;
    if (options_.keep_itl) result.itl_ns.reserve(std::min(next_.fields.max_tokens, kReservedMax));
  }
  run_.results.push_back(std::move(result));
  return true;
}

void EngineLoad::SubmitNext(uint64_t* id) {
  BenchRequest bench;
  if (options_.fill) bench.fill_tokens = static_cast<uint32_t>(next_.prompt_ids.size() - 1);
  const RequestView view(next_);
  ThrowIfError(fd_bench_submit(engine_.get(), view.get(), &bench, id));
}

// Until something has come, or the time is over.
void EngineLoad::Poll(int64_t until_ns) {
  const int64_t timeout_ns = std::max<int64_t>(0, until_ns - RunClock::Now());
  int64_t now_ns = 0;
  engine_.Poll(timeout_ns, [&](const fd_event& event) {
    if (now_ns == 0) now_ns = RunClock::Now();
    TakeEvent(event, now_ns);
  });
}

void EngineLoad::TakeEvent(const fd_event& event, int64_t now_ns) {
  const auto running = running_.find(event.id);
  if (running == running_.end()) return;
  RequestResult& result = run_.results[running->second];
  if (event.kind == FD_EVENT_TOKEN) {
    const int64_t since_intended_ns = now_ns - result.intended_ns;
    if (result.latency_ns == 0) {
      result.ttft_ns = since_intended_ns;
    } else if (options_.keep_itl) {
      result.itl_ns.push_back(since_intended_ns - result.latency_ns);
    }
    result.latency_ns = since_intended_ns;
    if (options_.keep_text) result.text.append(event.text, event.text_bytes);
  }
  if (event.kind != FD_EVENT_FINISHED) return;
  // A stop token that comes first has no event of its own: its end is all that was seen of the answer.
  if (result.latency_ns == 0) result.ttft_ns = result.latency_ns = now_ns - result.intended_ns;
  result.prompt_tokens = event.prompt_tokens;
  result.output_tokens = event.generated_tokens;
  running_.erase(running);
  EndRequest(&result, event.finish == FD_FINISH_ERROR ? event.error : "");
}

void EngineLoad::EndRequest(RequestResult* result, const std::string& error) {
  result->end_ns = RunClock::Now();
  result->error = error;
  ++ended_;
  if (options_.is_background && !error.empty()) failure_ = error;
  if (hooks_.goes_on && !hooks_.goes_on(*result)) is_over_ = true;
}

void EngineLoad::NoteNeverStarted() {
  for (; has_next_ && NextStartNs() < run_.end_ns; has_next_ = source_.Next(&next_arrival_s_)) {
    run_.results.emplace_back().intended_ns = NextStartNs();
  }
}

void EngineLoad::CancelRunning() {
  for (const auto& [id, index] : running_) fd_forget(engine_.get(), id);  // which cancels it
  running_.clear();
}

}  // namespace fastdecode::load
