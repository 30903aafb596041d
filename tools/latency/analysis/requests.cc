#include "tools/latency/analysis/requests.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "tools/latency/analysis/request_tracks.h"
#include "tools/latency/text/units.h"

namespace fastdecode {

namespace {

constexpr double kPercentMin = 50;
constexpr double kPercentMax = 99.99;

// ---- SLOs

std::optional<Slo::Metric> ParseMetric(absl::string_view text) {
  if (text == "ttft") return Slo::Metric::kTtft;
  if (text == "tpot") return Slo::Metric::kTpot;
  if (text == "itl") return Slo::Metric::kItl;
  if (text == "e2e") return Slo::Metric::kE2e;
  return std::nullopt;
}

// "p90" as 0.9.
std::optional<double> ParseShare(absl::string_view text) {
  if (text.empty() || text.front() != 'p') return std::nullopt;
  const std::optional<double> percent = ParseDecimal(std::string(text.substr(1)));
  if (!percent || *percent < kPercentMin || *percent > kPercentMax) return std::nullopt;
  return *percent / 100;
}

// ---- Requests

// Of one way of counting starts.
class RequestSamples {
 public:
  explicit RequestSamples(uint64_t recorded_until_ns) : until_ns_(recorded_until_ns) {}

  // REQUIRES: track.started, and it did not fail.
  void Add(uint64_t start_ns, const RequestTrack& track) {
    const uint64_t seen_until_ns = track.end ? track.end_ns : until_ns_;
    if (const std::optional<uint64_t> first_ns = track.FirstTokenNs()) {
      ttft_ns_.push_back(Since(start_ns, *first_ns));
    } else if (track.NoToken() && track.Unfinished()) {
      ttft_unfinished_ns_.push_back(Since(start_ns, seen_until_ns));
    }
    if (track.Unfinished()) e2e_unfinished_ns_.push_back(Since(start_ns, seen_until_ns));
    if (track.Answered()) AddAnswer(start_ns, track.TokenNs());
  }

  // Of a request of which nothing was recorded, since it waited all along.
  void AddWaiting(uint64_t start_ns) {
    if (start_ns >= until_ns_) return;
    ttft_unfinished_ns_.push_back(until_ns_ - start_ns);
    e2e_unfinished_ns_.push_back(until_ns_ - start_ns);
  }

  RequestFigures Take(const char* start, size_t failed, const Distribution& itl_ns) {
    RequestFigures figures;
    figures.start = start;
    figures.requests = e2e_ns_.size();
    figures.failed = failed;
    figures.unfinished = e2e_unfinished_ns_.size();
    figures.ttft_ns = Distribution(std::move(ttft_ns_), std::move(ttft_unfinished_ns_));
    figures.tpot_ns = Distribution(std::move(tpot_ns_));
    figures.itl_ns = itl_ns;
    figures.e2e_ns = Distribution(std::move(e2e_ns_), std::move(e2e_unfinished_ns_));
    return figures;
  }

 private:
  // A caller's clock is not read at the same moment as the engine's.
  static uint64_t Since(uint64_t start_ns, uint64_t ns) { return ns > start_ns ? ns - start_ns : 0; }

  void AddAnswer(uint64_t start_ns, const std::vector<uint64_t>& token_ns) {
    const uint64_t count = token_ns.size();
    e2e_ns_.push_back(Since(start_ns, token_ns.back()));
    if (count > 1) tpot_ns_.push_back((token_ns.back() - token_ns.front() + (count - 1) / 2) / (count - 1));
  }

  const uint64_t until_ns_;
  std::vector<uint64_t> ttft_ns_, tpot_ns_, e2e_ns_;  // in order of requests' ids: as they were submitted
  std::vector<uint64_t> ttft_unfinished_ns_, e2e_unfinished_ns_;
};

using Tracks = std::map<uint64_t, RequestTrack>;

// In order of time. Who waits for its next token has waited so long at least.
Distribution GapsOf(const Tracks& tracks, uint64_t recorded_until_ns) {
  std::vector<TokenGaps::Gap> gaps;
  for (const auto& [id, track] : tracks) gaps.insert(gaps.end(), track.Gaps().begin(), track.Gaps().end());
  std::stable_sort(gaps.begin(), gaps.end(), [](const auto& a, const auto& b) { return a.end_ns < b.end_ns; });
  std::vector<uint64_t> ns;
  ns.reserve(gaps.size());
  for (const TokenGaps::Gap& gap : gaps) ns.push_back(gap.ns);
  std::vector<uint64_t> unfinished_ns;
  for (const auto& [id, track] : tracks) {
    if (const std::optional<uint64_t> wait_ns = track.WaitNs(recorded_until_ns)) unfinished_ns.push_back(*wait_ns);
  }
  return Distribution(std::move(ns), std::move(unfinished_ns));
}

size_t CountFailed(const Tracks& tracks) {
  size_t failed = 0;
  for (const auto& [id, track] : tracks) failed += track.end == FD_LEAVE_FAILED ? 1 : 0;
  return failed;
}

RequestFigures BySubmission(const Recording& recording, const Tracks& tracks, size_t failed, const Distribution& itl) {
  RequestSamples samples(recording.EndNs());
  for (const auto& [id, track] : tracks) {
    if (track.started && track.end != FD_LEAVE_FAILED) samples.Add(track.submit_ns, track);
  }
  for (const IntendedStart& start : recording.intended) {
    if (start.Submitted() && tracks.count(start.id) == 0 && start.WaitedUntil(recording.EndNs())) {
      samples.AddWaiting(start.submit_ns);
    }
  }
  return samples.Take("submitted", failed, itl);
}

RequestFigures ByIntent(const Recording& recording, const Tracks& tracks, size_t failed, const Distribution& itl) {
  std::unordered_map<uint64_t, uint64_t> intended_ns;
  RequestSamples samples(recording.EndNs());
  for (const IntendedStart& start : recording.intended) {
    if (start.Submitted()) intended_ns.emplace(start.id, start.intended_ns);
    const bool unseen = !start.Submitted() || tracks.count(start.id) == 0;
    if (unseen && start.WaitedUntil(recording.EndNs())) samples.AddWaiting(start.intended_ns);
  }
  for (const auto& [id, track] : tracks) {
    if (!track.started || track.end == FD_LEAVE_FAILED) continue;
    const auto intended = intended_ns.find(id);
    samples.Add(intended == intended_ns.end() ? track.submit_ns : intended->second, track);
  }
  return samples.Take("intended", failed, itl);
}

const Distribution& DistributionOf(const RequestFigures& figures, Slo::Metric metric) {
  switch (metric) {
    case Slo::Metric::kTtft:
      return figures.ttft_ns;
    case Slo::Metric::kTpot:
      return figures.tpot_ns;
    case Slo::Metric::kItl:
      return figures.itl_ns;
    case Slo::Metric::kE2e:
      break;
  }
  return figures.e2e_ns;
}

// A request that failed has waited for ever, so that an engine cannot keep its limits by failing. Gaps are of the
// tokens that there were.
Distribution WithFailed(const Distribution& ns, size_t failed) {
  std::vector<uint64_t> unfinished_ns = ns.unfinished_ns();
  unfinished_ns.insert(unfinished_ns.end(), failed, UINT64_MAX);
  return Distribution(ns.sorted_ns(), std::move(unfinished_ns));
}

SloVerdict Judge(const Slo& slo, const RequestFigures& figures, double silent_ns) {
  SloVerdict verdict;
  verdict.text = slo.text;
  verdict.limit_ns = slo.limit_ns;
  verdict.share = slo.share;
  const Distribution ns =
      WithFailed(DistributionOf(figures, slo.metric), slo.metric == Slo::Metric::kItl ? 0 : figures.failed);
  if (const std::optional<uint64_t> got = ns.Percentile(slo.share)) {
    verdict.got_ns = static_cast<double>(*got);
    verdict.met = *verdict.got_ns <= slo.limit_ns;
  } else if (const std::optional<uint64_t> least = ns.AtLeast(slo.share); least && *least < UINT64_MAX) {
    verdict.got_ns = static_cast<double>(*least);
    verdict.at_least = true;
  }
  if (silent_ns > slo.limit_ns) {
    verdict.silent_ns = silent_ns;
    verdict.met = false;
  }
  return verdict;
}

}  // namespace

absl::StatusOr<Slo> ParseSlo(const std::string& option, const std::string& text) {
  const auto refuse = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(option, ": '", text, "': ", what,
                                                   " (expected METRIC:DURATION,PERCENTILE, such as ttft:400ms,p90)"));
  };
  const size_t colon = text.find(':');
  const size_t comma = text.find(',');
  if (colon == std::string::npos || comma == std::string::npos || comma < colon) {
    return refuse("it is not made of three parts");
  }
  const absl::string_view all = text;
  const std::optional<Slo::Metric> metric = ParseMetric(all.substr(0, colon));
  if (!metric) return refuse(absl::StrCat("'", all.substr(0, colon), "' is none of ttft, tpot, itl, e2e"));
  const absl::string_view duration = all.substr(colon + 1, comma - colon - 1);
  const std::optional<double> limit_ns = ParseNs(std::string(duration));
  if (!limit_ns) return refuse(absl::StrCat("'", duration, "' is no duration in ns, us, ms or s up to a day"));
  const std::optional<double> share = ParseShare(all.substr(comma + 1));
  if (!share) return refuse(absl::StrCat("'", all.substr(comma + 1), "' is none of p50 to p99.99"));
  return Slo{text, *metric, *limit_ns, *share};
}

std::vector<RequestFigures> MeasureRequests(const Recording& recording) {
  const Tracks tracks = CollectTracks(recording.events);
  const Distribution itl_ns = GapsOf(tracks, recording.EndNs());
  const size_t failed = CountFailed(tracks);
  std::vector<RequestFigures> figures;
  if (!recording.intended.empty()) figures.push_back(ByIntent(recording, tracks, failed, itl_ns));
  figures.push_back(BySubmission(recording, tracks, failed, itl_ns));
  return figures;
}

std::vector<SloVerdict> JudgeSlos(const std::vector<Slo>& slos, const std::vector<RequestFigures>& figures,
                                  double silent_ns) {
  std::vector<SloVerdict> verdicts;
  for (const Slo& slo : slos) {
    verdicts.push_back(Judge(slo, figures.empty() ? RequestFigures() : figures.front(), silent_ns));
  }
  return verdicts;
}

}  // namespace fastdecode
