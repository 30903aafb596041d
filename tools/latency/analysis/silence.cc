#include "tools/latency/analysis/silence.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <unordered_set>
#include <utility>

#include "tools/latency/analysis/home_losses.h"
#include "tools/latency/analysis/request_tracks.h"

namespace fastdecode {

namespace {

// What is shorter is hard to tell from a busy machine, and goes into the stalls.
constexpr double kSilenceMinNs = 100e6;
// As many times as long as what is usual: the longest but for so many, more than the stages of two prompts.
constexpr double kUsualTimes = 5;
constexpr size_t kUnusualMin = 8, kUnusualPerStage = 3;

double OverlapNs(const std::vector<Span>& spans, const Silence& silence) {
  double sum_ns = 0;
  for (const Span& span : spans) {
    const uint64_t from_ns = std::max(span.start_ns, silence.start_ns), to_ns = std::min(span.end_ns, silence.end_ns);
    if (to_ns > from_ns) sum_ns += static_cast<double>(to_ns - from_ns);
  }
  return sum_ns;
}

// `losses`: of which the wait for one that was lost already is a reason, too.
bool HadReason(const Timeline& timeline, const std::vector<HomeLoss>& losses, const Silence& silence) {
  double waited_ns = 0;
  for (const HomeLoss& loss : losses) waited_ns = std::max(waited_ns, OverlapNs(loss.waits, silence));
  return 2 * (OverlapNs(timeline.idle, silence) + OverlapNs(timeline.held, silence) + waited_ns) >= silence.ns();
}

// When the recording ends. What ends later than a request itself (its last delivery) says nothing.
bool SomeRequestRuns(const std::vector<fd_record_event>& events) {
  std::unordered_set<uint64_t> seen, ended;
  for (const fd_record_event& event : events) {
    if (event.kind == FD_RECORD_SUBMIT || event.kind == FD_RECORD_JOIN || event.kind == FD_RECORD_TOKEN) {
      seen.insert(event.id);
    } else if (event.kind == FD_RECORD_LEAVE && !GoesOn(event.part)) {
      ended.insert(event.id);
    }
  }
  return std::any_of(seen.begin(), seen.end(), [&ended](uint64_t id) { return !ended.contains(id); });
}

// Of so many in all, `long_ns` has those that matter: five times a shorter one is no silence yet.
double LongestUsualNs(std::vector<double> long_ns, size_t count, int layers) {
  const size_t unusual = std::max(kUnusualMin, kUnusualPerStage * static_cast<size_t>(layers + 1));
  const size_t rank = std::min(unusual, count / 2);
  if (rank >= long_ns.size()) return 0;
  std::nth_element(long_ns.begin(), long_ns.begin() + static_cast<ptrdiff_t>(rank), long_ns.end(), std::greater<>());
  return long_ns[rank];
}

}  // namespace

std::vector<Silence> FindSilences(const Recording& recording, const Timeline& timeline) {
  const std::vector<fd_record_event>& events = recording.events;
  if (events.empty()) return {};
  std::vector<double> long_ns;
  std::vector<Silence> silences;
  uint64_t last_ns = recording.StartNs();
  const auto until = [&](uint64_t ns, bool at_end) {
    const Silence silence = {last_ns, std::max(last_ns, ns), at_end};
    last_ns = silence.end_ns;
    if (silence.ns() >= kSilenceMinNs / kUsualTimes) long_ns.push_back(silence.ns());
    if (silence.ns() >= kSilenceMinNs) silences.push_back(silence);
  };
  for (const fd_record_event& event : events) until(event.end_ns, false);
  until(recording.EndNs(), true);
  const double least_ns = kUsualTimes * LongestUsualNs(std::move(long_ns), events.size() + 1, timeline.layers);
  if (silences.empty()) return {};
  const std::vector<HomeLoss> losses = FindHomeLosses(recording);
  std::erase_if(silences, [&](const Silence& silence) {
    if (silence.ns() < least_ns) return true;
    return silence.at_end ? !SomeRequestRuns(events) : HadReason(timeline, losses, silence);
  });
  return silences;
}

double SilentAtEndNs(const std::vector<Silence>& silences) {
  return !silences.empty() && silences.back().at_end ? silences.back().ns() : 0;
}

}  // namespace fastdecode
