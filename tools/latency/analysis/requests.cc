#include "tools/latency/analysis/requests.h"

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <unordered_map>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
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

// Between tokens that follow each other, wherever in the request the recording began.
struct Gaps {
  std::optional<uint32_t> last;  // token
  uint64_t last_ns = 0;
  std::vector<uint64_t> ns;

  void Add(uint32_t number, uint64_t at_ns) {
    if (last && number == *last + 1 && at_ns >= last_ns) ns.push_back(at_ns - last_ns);
    last = number;
    last_ns = at_ns;
  }
};

// What was recorded of one request.
struct Track {
  bool joined = false;  // for the first time, within the recording
  uint64_t submit_ns = 0;
  std::vector<uint64_t> step_ns;   // [token] end of its step
  std::vector<uint64_t> taken_ns;  // [token] from when a caller could take it
  Gaps step_gaps, taken_gaps;
  bool torn = false;               // a token is missing, or its start
  std::optional<uint16_t> end;     // fd_record_leave, but for preemption
  uint32_t generated = 0;          // as its end says

  bool Whole() const { return joined && end && !torn && step_ns.size() >= generated; }
  // Deliveries, if there are those of all tokens: never a mixture, whose gaps would be of neither.
  const std::vector<uint64_t>& TokenNs() const { return taken_ns.size() == step_ns.size() ? taken_ns : step_ns; }
  const std::vector<uint64_t>& GapsNs() const {
    return taken_gaps.ns.size() >= step_gaps.ns.size() ? taken_gaps.ns : step_gaps.ns;
  }
};

// Tokens come in order. What comes out of it is not trusted with an index.
void AddToken(uint32_t number, uint64_t at_ns, std::vector<uint64_t>* tokens, bool* torn) {
  if (number == tokens->size()) {
    tokens->push_back(at_ns);
  } else {
    *torn = true;
  }
}

void AddEvent(const fd_record_event& event, Track* track) {
  switch (event.kind) {
    case FD_RECORD_JOIN:
      if (event.part == 1) break;  // it comes back after a preemption, and keeps its start
      track->joined = true;
      track->submit_ns = event.start_ns;
      break;
    case FD_RECORD_TOKEN:
      AddToken(event.count, event.end_ns, &track->step_ns, &track->torn);
      track->step_gaps.Add(event.count, event.end_ns);
      break;
    case FD_RECORD_DELIVER: {
      bool ignored = false;  // the steps' ends stand in
      AddToken(event.count, event.end_ns, &track->taken_ns, &ignored);
      track->taken_gaps.Add(event.count, event.end_ns);
      break;
    }
    case FD_RECORD_LEAVE:
      if (event.part == FD_LEAVE_PREEMPTED) break;
      track->end = event.part;
      track->generated = event.count;
      break;
  }
}

bool OfRequest(const fd_record_event& event) {
  return event.kind == FD_RECORD_JOIN || event.kind == FD_RECORD_TOKEN || event.kind == FD_RECORD_DELIVER ||
         event.kind == FD_RECORD_LEAVE;
}

// By id, so that figures do not depend on how a map hashes.
std::map<uint64_t, Track> CollectTracks(const std::vector<fd_record_event>& events) {
  std::map<uint64_t, Track> tracks;
  for (const fd_record_event& event : events) {
    if (OfRequest(event)) AddEvent(event, &tracks[event.id]);
  }
  return tracks;
}

// Samples of one way of counting starts.
struct Samples {
  std::vector<uint64_t> ttft_ns, tpot_ns, e2e_ns;

  void Add(uint64_t start_ns, const std::vector<uint64_t>& token_ns) {
    const uint64_t count = token_ns.size();
    // A caller's clock is not read at the same moment as the engine's.
    const auto since_start = [start_ns](uint64_t ns) { return ns > start_ns ? ns - start_ns : 0; };
    ttft_ns.push_back(since_start(token_ns.front()));
    e2e_ns.push_back(since_start(token_ns.back()));
    if (count < 2) return;
    tpot_ns.push_back((token_ns.back() - token_ns.front() + (count - 1) / 2) / (count - 1));
  }
};

RequestFigures ToFigures(const std::string& start, size_t failed, Samples samples, const Distribution& itl_ns) {
  RequestFigures figures;
  figures.start = start;
  figures.requests = samples.e2e_ns.size();
  figures.failed = failed;
  figures.ttft_ns = Distribution(std::move(samples.ttft_ns));
  figures.tpot_ns = Distribution(std::move(samples.tpot_ns));
  figures.itl_ns = itl_ns;
  figures.e2e_ns = Distribution(std::move(samples.e2e_ns));
  return figures;
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
SloVerdict Judge(const Slo& slo, const RequestFigures& figures) {
  SloVerdict verdict;
  verdict.text = slo.text;
  verdict.limit_ns = slo.limit_ns;
  verdict.share = slo.share;
  const Distribution& ns = DistributionOf(figures, slo.metric);
  const size_t failed = slo.metric == Slo::Metric::kItl ? 0 : figures.failed;
  // The share of those that did not fail which is as large as the asked share of all.
  const double all = static_cast<double>(ns.count() + failed);
  const double share = ns.empty() ? 1 : slo.share * all / static_cast<double>(ns.count());
  if (share >= 1 || !ns.Percentile(slo.share)) return verdict;
  verdict.got_ns = static_cast<double>(ns.Quantile(share));
  verdict.met = *verdict.got_ns <= slo.limit_ns;
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
  std::unordered_map<uint64_t, uint64_t> intended_ns;
  for (const IntendedStart& start : recording.intended) intended_ns.emplace(start.id, start.intended_ns);
  Samples by_intent, by_submission;
  std::vector<uint64_t> gaps_ns;
  size_t failed = 0;
  for (const auto& [id, track] : CollectTracks(recording.events)) {
    gaps_ns.insert(gaps_ns.end(), track.GapsNs().begin(), track.GapsNs().end());
    if (track.end == FD_LEAVE_FAILED) ++failed;
    if (!track.Whole() || track.end != FD_LEAVE_FINISHED || track.step_ns.empty()) continue;
    const auto intended = intended_ns.find(id);
    by_intent.Add(intended == intended_ns.end() ? track.submit_ns : intended->second, track.TokenNs());
    by_submission.Add(track.submit_ns, track.TokenNs());
  }
  const Distribution itl_ns(std::move(gaps_ns));
  std::vector<RequestFigures> figures;
  if (!intended_ns.empty()) figures.push_back(ToFigures("intended", failed, std::move(by_intent), itl_ns));
  figures.push_back(ToFigures("submitted", failed, std::move(by_submission), itl_ns));
  return figures;
}

std::vector<SloVerdict> JudgeSlos(const std::vector<Slo>& slos, const std::vector<RequestFigures>& figures) {
  std::vector<SloVerdict> verdicts;
  for (const Slo& slo : slos) verdicts.push_back(Judge(slo, figures.empty() ? RequestFigures() : figures.front()));
  return verdicts;
}

}  // namespace fastdecode
