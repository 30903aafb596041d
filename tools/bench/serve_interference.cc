// What prompts do to answers that are being written.
#include <algorithm>
#include <fastdecode/fastdecode.hpp>
#include <string>

#include "tools/bench/serve_runs.h"

namespace fastdecode::serve_bench {

namespace {

// A span of one run.
struct Window {
  int64_t begin_ns = 0, end_ns = 0;
};

// While the first `decodes` results all write: from the last first token to the first last one.
Window AllWrite(const load::LoadRun& run, size_t decodes) {
  Window window = {0, INT64_MAX};
  for (size_t i = 0; i < decodes; ++i) {
    const load::RequestResult& result = run.results[i];
    window.begin_ns = std::max(window.begin_ns, result.intended_ns + result.ttft_ns);
    window.end_ns = std::min(window.end_ns, result.last_token_ns());
  }
  return window;
}

// The gaps of the first `decodes` results that end within the window, in seconds.
std::vector<double> GapsWithin(const load::LoadRun& run, size_t decodes, const Window& window) {
  std::vector<double> gaps;
  for (size_t i = 0; i < decodes; ++i) {
    const load::RequestResult& result = run.results[i];
    int64_t at_ns = result.intended_ns + result.ttft_ns;
    for (const int64_t gap_ns : result.itl_ns) {
      at_ns += gap_ns;
      if (window.begin_ns < at_ns && at_ns <= window.end_ns) gaps.push_back(static_cast<double>(gap_ns) * 1e-9);
    }
  }
  return gaps;
}

void CheckAllSucceeded(const load::LoadRun& run, const ReportOptions& options, const char* what) {
  const Report report = MakeReport(run, options);
  if (report.failed == 0) return;
  throw Error(FD_UNAVAILABLE, std::string("--interference: requests failed, ") + what + ":\n" + FailureText(report));
}

class Interference {
 public:
  Interference(const ServeFlags& flags, const ReportOptions& options, Target& target)
      : flags_(flags), options_(options), target_(target), source_(FindPrompts(flags, target)) {}

  // False: it was interrupted.
  bool Measure(InterferencePoint* point) {
    const auto decodes = static_cast<size_t>(flags_.interference.decodes);
    CheckContext(flags_.prompts, source_, decodes, target_.MaxContext());
    CheckContext(ArrivingPrompts(), source_, 1, target_.MaxContext());
    RequestList list = MakeRequests(flags_.prompts, source_, decodes);
    list.forced = true;
    std::vector<double> arrivals_s(decodes, 0.0);
    const load::LoadRun alone = Run(list, arrivals_s, "alone: ");
    if (WasInterrupted()) return false;
    CheckAllSucceeded(alone, options_, "alone");
    const Window window = AllWrite(alone, decodes);
    AddPrompts(window.begin_ns - alone.start_ns, window.end_ns - alone.start_ns, &list, &arrivals_s);
    const load::LoadRun both = Run(list, arrivals_s, "with prompts: ");
    if (WasInterrupted()) return false;
    CheckAllSucceeded(both, options_, "with prompts");

    SetGaps(GapsWithin(alone, decodes, window), &point->alone, &point->gaps_alone);
    SetGaps(GapsWithin(both, decodes, PromptsRun(both, decodes)), &point->with_prompts, &point->gaps_with_prompts);
    point->prompts = both.results.size() - decodes;
    std::vector<double> ttft_s;
    for (size_t i = decodes; i < both.results.size(); ++i) {
      ttft_s.push_back(static_cast<double>(both.results[i].ttft_ns) * 1e-9);
    }
    point->prompt_ttft_ms = Describe(ttft_s, {}).median_ms;
    return true;
  }

 private:
  load::LoadRun Run(const RequestList& list, const std::vector<double>& arrivals_s, const std::string& what) {
    target_.Prepare(list, flags_.prompts);
    return target_.Run({arrivals_s, 0}, WatchRun(what, list.requests.size()));
  }

  // Their answers have one token.
  PromptOptions ArrivingPrompts() const {
    PromptOptions prompts = flags_.prompts;
    prompts.input_len = flags_.interference.prompt_len;
    prompts.output_len = 1;
    prompts.len_options = "--interference-prompt-len";
    prompts.range_ratio = 0;
    ++prompts.seed;
    return prompts;
  }

  // Adds the prompts that would arrive while the answers alone are written.
  void AddPrompts(int64_t begin_ns, int64_t end_ns, RequestList* list, std::vector<double>* arrivals_s) const {
    const double rate = flags_.rates.front();
    const double span_s = static_cast<double>(end_ns - begin_ns) * 1e-9;
    const size_t count = static_cast<size_t>(std::max(0.0, span_s * rate) * 2) + 1;
    for (const PreparedRequest& request : MakeRequests(ArrivingPrompts(), source_, count).requests) {
      const double arrival_s = flags_.prompts.arrivals.Time(request.arrival, rate);
      if (arrival_s > span_s) break;
      list->requests.push_back(request);
      arrivals_s->push_back(static_cast<double>(begin_ns) * 1e-9 + arrival_s);
    }
    if (span_s > 0 && list->requests.size() > static_cast<size_t>(flags_.interference.decodes)) return;
    throw Error(FD_INVALID_ARGUMENT, "--random-output-len: answers of " + std::to_string(flags_.prompts.output_len) +
                                         " tokens are over before all " + std::to_string(flags_.interference.decodes) +
                                         " (--decodes) run together; give more");
  }

  // From the first arrival of a prompt until the last has its token, and no longer than all answers are written.
  static Window PromptsRun(const load::LoadRun& run, size_t decodes) {
    Window window = AllWrite(run, decodes);
    int64_t last_ns = 0;
    for (size_t i = decodes; i < run.results.size(); ++i) {
      last_ns = std::max(last_ns, run.results[i].last_token_ns());
    }
    window.begin_ns = std::max(window.begin_ns, run.results[decodes].intended_ns);
    window.end_ns = std::min(window.end_ns, last_ns);
    return window;
  }

  static void SetGaps(const std::vector<double>& seconds, Distribution* gaps, size_t* count) {
    *gaps = Describe(seconds, {50, 99});
    *count = seconds.size();
  }

  const ServeFlags& flags_;
  const ReportOptions& options_;
  Target& target_;
  const PromptSource source_;
};

// `chunk`: the engine's --prefill-chunk; 0: as it is.
void MeasureChunk(const ServeFlags& flags, int chunk, ServeOutcome* outcome) {
  const std::unique_ptr<Target> target = MakeTarget(flags, chunk);
  outcome->where = target->Where();
  outcome->options.model = target->model();
  InterferencePoint point;
  if (chunk > 0) point.chunk = chunk;
  if (Interference(flags, outcome->options, *target).Measure(&point)) outcome->interference.push_back(point);
}

}  // namespace

void MeasureInterference(const ServeFlags& flags, ServeOutcome* outcome) {
  if (flags.interference.chunks.empty()) MeasureChunk(flags, 0, outcome);
  for (const int chunk : flags.interference.chunks) {
    if (WasInterrupted()) break;
    try {
      MeasureChunk(flags, chunk, outcome);
    } catch (const Error& error) {
      ClearProgress();
      if (flags.interference.chunks.size() == 1) throw;
      const std::string what = "--chunks: with " + std::to_string(chunk) + ": " + error.what();
      if (!outcome->failure.has_value()) outcome->failure.emplace(error.code(), what);
      outcome->notes.push_back("note: failed: " + what);
    }
  }
  ClearProgress();
  if (outcome->failure.has_value() && outcome->interference.empty()) throw Error(*outcome->failure);
}

}  // namespace fastdecode::serve_bench
