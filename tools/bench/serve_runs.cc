#include "tools/bench/serve_runs.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

#include "tools/interrupt.h"
#include "tools/load_engine.h"

namespace fastdecode::serve_bench {

namespace {

constexpr int64_t kRequestsPerConcurrent = 20;

std::string RateText(double rate) {
  char text[48];
  std::snprintf(text, sizeof(text), "%.3g requests/s: ", rate);
  return text;
}

// The most requests that were in flight at one time.
int64_t MostInFlight(const load::LoadRun& run) {
  std::vector<std::pair<int64_t, int>> changes;
  for (const load::RequestResult& result : run.results) {
    if (!result.ended()) continue;
    changes.emplace_back(result.intended_ns, 1);
    changes.emplace_back(result.end_ns, -1);
  }
  std::sort(changes.begin(), changes.end());
  int64_t now = 0, most = 0;
  for (const auto& [ns, change] : changes) most = std::max(most, now += change);
  return most;
}

// One load at one rate or another.
class Runner {
 public:
  Runner(const ServeFlags& flags, Target& target, const load::Limits& limits)
      : flags_(flags), target_(target), limits_(limits), source_(FindPrompts(flags, target)) {}

  // Throws Error if a request of them would be longer than the context.
  void Check(const PromptOptions& prompts, size_t count) const {
    CheckContext(prompts, source_, count, target_.MaxContext());
  }

  // What the next runs send. Random prompts are others in each of them: a server may keep those that it has seen.
  void Prepare(const PromptOptions& prompts, size_t count) {
    prompts_ = prompts;
    count_ = count;
    prompts_.run = runs_++;
    list_ = MakeRequests(prompts_, source_, count);
    target_.Prepare(list_, prompts_);
    is_fresh_ = true;
  }
  const RequestList& list() const { return list_; }

  load::LoadRun RunClosed() { return target_.Run({{}, flags_.Concurrency()}, WatchRun("", list_.requests.size())); }

  // `may_cut`: the run ends once it cannot reach the target any more.
  load::RatePoint RunAt(double rate, size_t requests, bool may_cut, load::LoadRun* run) {
    if (!std::exchange(is_fresh_, false) && prompts_.is_random()) Prepare(prompts_, count_);
    is_fresh_ = false;
    load::RatePoint point;
    point.rate = rate;
    point.requests = std::min(requests, list_.requests.size());
    load::Pace pace;
    pace.concurrency = flags_.Concurrency();
    for (size_t i = 0; i < point.requests; ++i) {
      const double arrival = list_.requests[i].arrival;
      pace.arrivals_s.push_back(flags_.prompts.trace.empty() ? flags_.prompts.arrivals.Time(arrival, rate)
                                                             : arrival / rate);
    }
    load::RunHooks hooks = WatchRun(RateText(rate), point.requests);
    const double missed_max = (1 - flags_.attainment) * static_cast<double>(point.requests);
    size_t missed = 0;
    if (may_cut) {
      hooks.goes_on = [&](const load::RequestResult& result) {
        missed += load::MeetsAll(result, limits_) ? 0 : 1;
        point.cut = static_cast<double>(missed) > missed_max + 1e-9;
        return !point.cut;
      };
    }
    *run = target_.Run(pace, hooks);
    point.attainment = load::Judge(*run, limits_);
    point.interrupted = !point.cut && point.attainment.requests < point.requests;
    point.cut |= point.interrupted;
    point.reached = !point.cut && point.attainment.Reaches(flags_.attainment);
    point.overlapped = MostInFlight(*run) > 1;
    return point;
  }

 private:
  const ServeFlags& flags_;
  Target& target_;
  const load::Limits limits_;
  const PromptSource source_;
  PromptOptions prompts_;  // of the next run
  size_t count_ = 0;
  uint64_t runs_ = 0;
  bool is_fresh_ = false;  // no run has sent the list
  RequestList list_;
};

// What is measured is not to be found in a cache of prompts.
PromptOptions WarmUpPrompts(const ServeFlags& flags) {
  PromptOptions prompts = flags.prompts;
  prompts.seed = ~prompts.seed;
  return prompts;
}

// Checks the lengths of all runs before the first one starts: a search that takes hours must not fail at the lengths
// that its last seed draws.
void CheckLengths(const ServeFlags& flags, const Runner& runner) {
  if (flags.warmup > 0) runner.Check(WarmUpPrompts(flags), static_cast<size_t>(flags.warmup));
  PromptOptions prompts = flags.prompts;
  for (int i = 0; i < (flags.find_max_rate ? flags.seeds : 1); ++i, ++prompts.seed) {
    runner.Check(prompts, flags.RequestCount());
  }
}

void Warm(const ServeFlags& flags, Target& target, Runner* runner) {
  if (flags.warmup == 0) return;
  runner->Prepare(WarmUpPrompts(flags), static_cast<size_t>(flags.warmup));
  const load::LoadRun run = target.Run({{}, flags.concurrency}, WatchRun("warm-up: ", runner->list().requests.size()));
  ClearProgress();
  ThrowIfInterrupted();
  const Report report = MakeReport(run, {});
  if (report.completed > 0) return;
  throw Error(FD_UNAVAILABLE, "all warm-up requests failed:\n" + FailureText(report));
}

// At each rate once. The run that is shown in full is the fastest that reached the target, or else the last.
void RunRates(const std::vector<double>& rates, Runner* runner, ServeOutcome* outcome) {
  bool has_reached = false;
  double shown_rate = 0;
  for (const double rate : rates) {
    load::LoadRun run;
    const load::RatePoint point = runner->RunAt(rate, runner->list().requests.size(), /*may_cut=*/false, &run);
    outcome->points.push_back(point);
    const bool is_better = !point.cut && (!has_reached || (point.reached && point.rate > shown_rate));
    if (is_better || outcome->run.results.empty()) {
      outcome->run = std::move(run);
      outcome->options.rate = shown_rate = rate;
    }
    has_reached |= point.reached;
    if (WasInterrupted()) return;
  }
}

// One search. The run at the rate that it found.
load::RateSearchResult SearchOnce(const ServeFlags& flags, double start, Runner* runner, load::LoadRun* best) {
  load::RateSearchOptions options;
  options.start = start;
  options.precision = flags.precision;
  options.requests = runner->list().requests.size();
  double best_rate = 0;
  return load::FindMaxRate(options, [&](double rate, size_t requests) -> std::optional<load::RatePoint> {
    load::LoadRun run;
    const load::RatePoint point = runner->RunAt(rate, requests, /*may_cut=*/true, &run);
    if (WasInterrupted()) {
      if (best->results.empty()) *best = std::move(run);  // what had ended is better than nothing
      return std::nullopt;
    }
    if (point.reached && requests == options.requests && rate > best_rate) {
      best_rate = rate;
      *best = std::move(run);
    }
    return point;
  });
}

void NoteHowSure(const ServeFlags& flags, size_t requests, ServeOutcome* outcome) {
  const int64_t in_flight = MostInFlight(outcome->run);
  const size_t wanted = std::max(load::kSearchRequests, static_cast<size_t>(kRequestsPerConcurrent * in_flight));
  if (requests < wanted) {
    outcome->notes.push_back("note: runs of " + std::to_string(requests) + " requests find too high a rate; " +
                             std::to_string(wanted) + " (--num-prompts) would do with " + std::to_string(in_flight) +
                             " in flight");
  }
  if (flags.seeds < 3) outcome->notes.push_back("note: fewer than 3 --seeds do not show how far searches differ");
  if (!load::Judge(outcome->run, outcome->options.limits).drained.value_or(true)) {
    outcome->notes.push_back("note: not steady: the queue took longer to drain than three TTFT limits and a request");
  }
}

void NoteLeftOut(const RequestList& list, ServeOutcome* outcome) {
  if (list.left_out == 0) return;
  outcome->notes.push_back("note: " + std::to_string(list.left_out) +
                           " requests of the trace have no answer, and are left out");
}

void Search(const ServeFlags& flags, Runner* runner, ServeOutcome* outcome) {
  outcome->target = flags.attainment;
  double start = flags.rate_start;
  PromptOptions prompts = flags.prompts;
  size_t requests = 0;
  for (int i = 0; i < flags.seeds && !WasInterrupted(); ++i, ++prompts.seed) {
    runner->Prepare(prompts, flags.RequestCount());
    requests = runner->list().requests.size();
    load::LoadRun best;
    load::RateSearchResult search = SearchOnce(flags, start, runner, &best);
    outcome->points.insert(outcome->points.end(), search.points.begin(), search.points.end());
    if (!best.results.empty()) {
      outcome->run = std::move(best);
      outcome->options.rate = search.rate;
    }
    if (search.rate > 0) start = search.rate;  // where the next one begins to look
    outcome->searches.push_back(std::move(search));
  }
  NoteLeftOut(runner->list(), outcome);
  NoteHowSure(flags, requests, outcome);
}

}  // namespace

std::unique_ptr<Target> MakeTarget(const ServeFlags& flags, int chunk) {
  if (flags.engine_model.empty()) {
    load::Server server =
        load::FindServer(load::ParseServerUrl(flags.url), load::ReadApiKey(flags.api_key_file), flags.timeout_s);
    return std::make_unique<ServerTarget>(std::move(server), flags.model, flags.save_detailed);
  }
  const std::unique_ptr<EngineOptions> options = flags.engine.Build();
  options->Set("model", flags.engine_model);
  if (chunk > 0) options->Set("prefill-chunk", std::to_string(chunk));
  return std::make_unique<EngineTarget>(LoadEngine(*options), flags.engine_model, flags.save_detailed);
}

PromptSource FindPrompts(const ServeFlags& flags, const Target& target) {
  if (!flags.prompts.is_random()) return {{}, ReadGivenPrompts(flags.prompts)};
  if (!flags.vocab.empty()) return {ParseIdRange(flags.vocab), {}};
  return {flags.prompts.random_text ? IdRange() : target.FindIds(), {}};
}

bool WasInterrupted() { return InterruptGuard::Signal() != 0; }

load::RunHooks WatchRun(const std::string& what, size_t requests) {
  load::RunHooks hooks;
  hooks.is_interrupted = &WasInterrupted;
  if (isatty(STDERR_FILENO) == 0) return hooks;
  hooks.report_progress = [what, requests, shown = SIZE_MAX](size_t ended) mutable {
    if (ended == shown) return;
    shown = ended;
    std::fprintf(stderr, "\r\033[K%s%zu of %zu requests", what.c_str(), ended, requests);
  };
  return hooks;
}

void ClearProgress() {
  if (isatty(STDERR_FILENO) != 0) std::fprintf(stderr, "\r\033[K");
}

void RunLoad(const ServeFlags& flags, Target& target, ServeOutcome* outcome) {
  Runner runner(flags, target, outcome->options.limits);
  CheckLengths(flags, runner);
  Warm(flags, target, &runner);
  if (flags.find_max_rate) {
    Search(flags, &runner, outcome);
  } else {
    runner.Prepare(flags.prompts, flags.RequestCount());
    const RequestList& list = runner.list();
    NoteLeftOut(list, outcome);
    std::vector<double> rates = flags.rates;
    if (rates.empty() && !flags.prompts.trace.empty()) rates.push_back(list.own_rate > 0 ? list.own_rate : 1);
    outcome->target = flags.attainment;
    if (rates.empty()) {
      outcome->run = runner.RunClosed();
    } else {
      RunRates(rates, &runner, outcome);
    }
    outcome->options.num_prompts = static_cast<int64_t>(list.requests.size());
  }
  if (flags.find_max_rate) outcome->options.num_prompts = static_cast<int64_t>(outcome->run.results.size());
  ClearProgress();
}

}  // namespace fastdecode::serve_bench
