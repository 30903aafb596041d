#include "tools/latency/analysis/hop_times.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>

namespace fastdecode {
namespace {

constexpr uint64_t kNone = UINT64_MAX;

// A pipeline that has nothing else to do looks for replies more often than this.
constexpr uint64_t kLookNsMax = 10'000;

// What is known of a hop beside its times.
struct HopEvidence {
  size_t hop = 0;                   // index in HopsApart::hops
  uint64_t rest_ns = 0;             // seen - posted - work
  uint64_t unseen_ns = 0;           // the pipeline had not looked for so long when it saw the reply
  int64_t difference_ns = 0;        // home's clock when the reply was ready - seen, modulo 2^32
  uint64_t after_ns = 0;            // of rest_ns: after the reply was ready. By the clocks; their offset is one of many
  uint64_t off_ns = 0;              // by how much after_ns may be wrong
  uint64_t busy_before_ns = kNone;  // the home had been at work for at most so long when it began
};

// Does not let the home's times exceed the round trip, of which they are a part: they are right within 0.05 % alone.
void FitWork(HopTimes* hop) {
  const uint64_t round_trip = hop->seen_ns - hop->posted_ns;
  uint64_t over = hop->work_ns() > round_trip ? hop->work_ns() - round_trip : 0;
  for (uint64_t* part : {&hop->attend_ns, &hop->team_ns, &hop->append_ns, &hop->merge_ns, &hop->prepare_ns}) {
    const uint64_t cut = std::min(*part, over);
    *part -= cut;
    over -= cut;
  }
}

HopTimes ReadHop(const fd_record_event& event) {
  HopTimes hop;
  hop.seen_ns = event.end_ns;
  hop.posted_ns = std::min(event.start_ns, event.end_ns);
  hop.step = event.step;
  hop.layer = event.layer;
  hop.micro_batch = event.micro_batch;
  hop.home = event.home;
  hop.rows = event.rows;
  hop.payload_bytes = event.bytes;
  hop.prepare_ns = event.prepare_ns;
  hop.append_ns = event.append_ns;
  hop.attend_ns = event.attend_ns;
  hop.merge_ns = event.merge_ns;
  hop.team_ns = event.wait_ns;
  hop.idle_ns = event.idle_ns;
  FitWork(&hop);
  return hop;
}

HopEvidence ReadEvidence(const fd_record_event& event, const HopTimes& hop) {
  HopEvidence evidence;
  const uint64_t round_trip = hop.seen_ns - hop.posted_ns;
  evidence.rest_ns = round_trip - hop.work_ns();
  const bool looked = event.polled_ns > hop.posted_ns && event.polled_ns <= hop.seen_ns;
  evidence.unseen_ns = looked ? hop.seen_ns - event.polled_ns : round_trip;
  evidence.difference_ns = WrapClock(static_cast<int64_t>(event.home_end_ns - event.end_ns));
  return evidence;
}

// The least that a home's hops take on one way of the link. More bytes take longer: each size has its own. But if a
// size has only hops with which something else may be mixed in (the home was busy, or the pipeline did not look), it is
// judged by the sizes beside it.
class LinkFloor {
 public:
  // clean: nothing else is in `ns`.
  void Add(uint64_t payload_bytes, uint64_t ns, bool clean) {
    Size* size = &sizes_[SizeOf(payload_bytes)];
    if (ns < size->least_ns) size->bytes = payload_bytes;
    size->least_ns = std::min(size->least_ns, ns);
    if (clean) ++size->clean;
  }

  // Once, after all Add().
  void Settle() {
    const Size *first = nullptr, *last = nullptr;
    uint64_t least_ns = kNone;
    for (const Size& size : sizes_) {
      least_ns = std::min(least_ns, size.least_ns);
      if (size.clean < kCleanMin) continue;
      if (first == nullptr) first = &size;
      last = &size;
    }
    if (first == nullptr) {
      for (Size& size : sizes_) size.least_ns = least_ns;
      return;
    }
    double ns_per_byte = 0;
    if (last->bytes > first->bytes && last->least_ns > first->least_ns) {
      ns_per_byte =
          static_cast<double>(last->least_ns - first->least_ns) / static_cast<double>(last->bytes - first->bytes);
    }
    const Size* beside = first;
    for (Size& size : sizes_) {
      if (size.clean >= kCleanMin) beside = &size;
      if (beside == &size || size.least_ns == kNone) continue;
      const double more_bytes = static_cast<double>(size.bytes) - static_cast<double>(beside->bytes);
      const double ns = std::max(0.0, static_cast<double>(beside->least_ns) + ns_per_byte * more_bytes);
      size.least_ns = std::min(size.least_ns, static_cast<uint64_t>(ns));
    }
  }

  // Of a size that was added.
  uint64_t Of(uint64_t payload_bytes) const { return sizes_[SizeOf(payload_bytes)].least_ns; }

 private:
  struct Size {
    uint64_t least_ns = kNone;
    uint64_t bytes = 0;  // of that hop
    size_t clean = 0;
  };
  static constexpr size_t kSizesPerOctave = 4;
  static constexpr size_t kCleanMin = 16;  // fewer may all have been slow

  static size_t SizeOf(uint64_t bytes) {
    const int width = std::bit_width(bytes);
    const uint64_t fraction = width > 3 ? (bytes >> (width - 3)) & 3 : 0;
    return static_cast<size_t>(width) * kSizesPerOctave + fraction;
  }

  std::array<Size, 65 * kSizesPerOctave> sizes_;
};

// The hops of one home.
class HomeHops {
 public:
  HomeHops(std::vector<HopEvidence> evidence, std::vector<HopTimes>* hops)
      : evidence_(std::move(evidence)), hops_(*hops) {}

  // Of round trip - work; of hops alone whose home was idle, if there are any.
  uint64_t LeastRest() const {
    return Least([](const HopEvidence& evidence, const HopTimes&) { return evidence.rest_ns; });
  }
  // After Divide().
  uint64_t LeastWire() const {
    return Least([](const HopEvidence&, const HopTimes& hop) { return hop.wire_ns; });
  }

  ClockRelation Clock() const {
    std::vector<ClockReading> readings;
    readings.reserve(evidence_.size());
    for (const HopEvidence& evidence : evidence_) {
      const HopTimes& hop = hops_[evidence.hop];
      readings.push_back({hop.posted_ns, hop.seen_ns, hop.work_ns(), evidence.difference_ns});
    }
    return RelateClocks(readings);
  }
  // Of a home that is said to have the engine's clock; as its hops say, if they say otherwise (another time namespace).
  ClockRelation SharedClock() const {
    ClockRelation clock = Clock();
    if (!clock.known || std::abs(clock.offset_ns) > clock.bound_ns + kClockReadNs) return clock;
    ClockRelation shared;
    shared.known = true;
    shared.middle_ns = clock.middle_ns;
    return shared;
  }

  // `look_ns`: what the pipeline needs to look once, which is no late pickup.
  void Divide(const ClockRelation& clock, uint64_t look_ns, bool same_host) {
    // A clock that was set, or is no clock, would put what is before and what is after a hop's work into each other.
    const bool sided = clock.known && clock.bent_ns <= static_cast<double>(LeastRest()) / 2;
    if (sided) {
      FindSides(clock);
      FindBusyBefore();
    }
    Floors floors;
    const uint64_t prompt_ns = std::max(kPromptNs, 4 * look_ns);
    for (const HopEvidence& evidence : evidence_) {
      const HopTimes& hop = hops_[evidence.hop];
      const bool idle = hop.idle_ns > 0, prompt = evidence.unseen_ns <= prompt_ns;
      floors.before.Add(hop.payload_bytes, evidence.rest_ns - evidence.after_ns, idle);
      floors.after.Add(hop.payload_bytes, evidence.after_ns, prompt);
      floors.rest.Add(hop.payload_bytes, evidence.rest_ns, idle && prompt);
    }
    for (LinkFloor* floor : {&floors.before, &floors.after, &floors.rest}) floor->Settle();
    floors.symmetric = same_host && sided;
    for (const HopEvidence& evidence : evidence_) DivideOne(evidence, floors, sided, look_ns, &hops_[evidence.hop]);
  }

 private:
  struct Floors {
    LinkFloor before, after, rest;
    bool symmetric = false;  // the way there takes as long as the way back
  };
  template <typename Function>
  uint64_t Least(const Function& ns_of) const {
    uint64_t idle_least = kNone, least = kNone;
    for (const HopEvidence& evidence : evidence_) {
      const HopTimes& hop = hops_[evidence.hop];
      const uint64_t ns = ns_of(evidence, hop);
      least = std::min(least, ns);
      if (hop.idle_ns > 0) idle_least = std::min(idle_least, ns);
    }
    if (idle_least != kNone) return idle_least;
    return least != kNone ? least : 0;
  }

  // Between the end of a home's work and its reading of the clock.
  static constexpr double kClockReadNs = 1000;

  // A reply that was seen so soon after a look in vain was hardly late, however fast the pipeline can look.
  static constexpr uint64_t kPromptNs = 1000;

  void FindSides(const ClockRelation& clock) {
    for (HopEvidence& evidence : evidence_) {
      const int64_t at_ns = std::llround(clock.LikelyAt(hops_[evidence.hop].seen_ns));
      const int64_t after_ns = WrapClock(at_ns - evidence.difference_ns);
      evidence.after_ns = std::min(static_cast<uint64_t>(std::max<int64_t>(after_ns, 0)), evidence.rest_ns);
      const uint64_t seen_ns = hops_[evidence.hop].seen_ns;
      evidence.off_ns = static_cast<uint64_t>(clock.bound_ns + std::abs(clock.LikelyAt(seen_ns) - clock.At(seen_ns)));
    }
  }

  // A hop that found its home busy can have waited since the home's last idle moment, and no longer.
  void FindBusyBefore() {
    struct Served {
      int64_t start_ns = 0;  // home's clock, as far as it goes
      size_t index = 0;
    };
    if (evidence_.empty()) return;
    std::vector<Served> served(evidence_.size());
    const int64_t reference = evidence_.front().difference_ns;
    for (size_t i = 0; i < evidence_.size(); ++i) {
      const HopTimes& hop = hops_[evidence_[i].hop];
      const int64_t drifted = WrapClock(evidence_[i].difference_ns - reference);
      served[i] = {static_cast<int64_t>(hop.seen_ns - hop.work_ns()) + drifted, i};
    }
    std::sort(served.begin(), served.end(), [](const Served& a, const Served& b) { return a.start_ns < b.start_ns; });
    bool known = false;
    int64_t busy_since_ns = 0;
    for (const Served& one : served) {
      if (hops_[evidence_[one.index].hop].idle_ns > 0) {
        known = true;
        busy_since_ns = one.start_ns;
      } else if (known) {
        evidence_[one.index].busy_before_ns = static_cast<uint64_t>(one.start_ns - busy_since_ns);
      }
    }
  }

  static void DivideOne(const HopEvidence& evidence, const Floors& floors, bool sided, uint64_t look_ns,
                        HopTimes* hop) {
    const uint64_t rest = evidence.rest_ns;
    const uint64_t late_max = evidence.unseen_ns > look_ns ? evidence.unseen_ns - look_ns : 0;
    const uint64_t queue_max = hop->idle_ns > 0 ? 0 : evidence.busy_before_ns;
    const uint64_t before = rest - evidence.after_ns;
    // More than the link's least, on each side; without sides all of it may be on either.
    uint64_t link = floors.rest.Of(hop->payload_bytes);
    uint64_t more_before = rest - link, more_after = rest - link;
    if (sided) {
      uint64_t there = floors.before.Of(hop->payload_bytes), back = floors.after.Of(hop->payload_bytes);
      // One of them may have a clean hop, where the home never was idle or the pipeline always late.
      if (floors.symmetric) there = back = std::min(there, back);
      link = there + back;
      more_before = before - there;
      more_after = evidence.after_ns - back;
    }
    hop->pickup_ns = std::min(more_after, late_max);
    hop->queue_ns = std::min(sided ? more_before : more_before - hop->pickup_ns, queue_max);
    hop->wire_ns = rest - hop->pickup_ns - hop->queue_ns;
    hop->wire_there_ns = sided ? std::min(before - hop->queue_ns, hop->wire_ns) : hop->wire_ns / 2;
    const uint64_t pickup_most = std::min(evidence.unseen_ns, more_after + link);
    const uint64_t queue_most = std::min(queue_max, more_before + link);
    const uint64_t more_pickup = pickup_most - std::min(pickup_most, hop->pickup_ns);
    const uint64_t more_queue = queue_most - std::min(queue_most, hop->queue_ns);
    hop->queue_uncertain_ns = std::max(hop->queue_ns, more_queue);
    hop->uncertain_ns = std::max({hop->pickup_ns + hop->queue_ns, more_pickup, more_queue});
    // The clocks may be off by so much, and then pickup and queue are longer.
    const uint64_t after_most = sided ? evidence.after_ns + evidence.off_ns : rest;
    const uint64_t before_most = sided ? before + evidence.off_ns : rest;
    const uint64_t not_wire = std::min(evidence.unseen_ns, after_most) + std::min(queue_max, before_most);
    hop->wire_least_ns = rest - std::min(rest, not_wire);
  }

  std::vector<HopEvidence> evidence_;
  std::vector<HopTimes>& hops_;
};

// As much as there will be: a vector that grows has its old memory and the new at once.
std::vector<std::vector<HopEvidence>> RoomForEvidence(const std::vector<fd_record_event>& events, int homes,
                                                      std::vector<HopTimes>* hops) {
  std::vector<size_t> counts(static_cast<size_t>(homes));
  size_t all = 0;
  for (const fd_record_event& event : events) {
    if (!IsHop(event, homes)) continue;
    ++counts[static_cast<size_t>(event.home)];
    ++all;
  }
  hops->reserve(all);
  std::vector<std::vector<HopEvidence>> evidence(counts.size());
  for (size_t home = 0; home < counts.size(); ++home) evidence[home].reserve(counts[home]);
  return evidence;
}

}  // namespace

HopsApart TakeHopsApart(const std::vector<fd_record_event>& events, int homes, const std::vector<bool>& same_host) {
  HopsApart apart;
  std::vector<std::vector<HopEvidence>> evidence = RoomForEvidence(events, homes, &apart.hops);
  uint64_t look_ns = kNone;
  for (const fd_record_event& event : events) {
    if (!IsHop(event, homes)) continue;
    apart.hops.push_back(ReadHop(event));
    HopEvidence one = ReadEvidence(event, apart.hops.back());
    one.hop = apart.hops.size() - 1;
    look_ns = std::min(look_ns, one.unseen_ns);
    evidence[static_cast<size_t>(event.home)].push_back(one);
  }
  // If it was never there in time, the least is no look.
  look_ns = std::min(look_ns, kLookNsMax);
  for (std::vector<HopEvidence>& of_home : evidence) {
    HomeHops home(std::move(of_home), &apart.hops);
    const size_t index = apart.clocks.size();
    const bool shared = index < same_host.size() && same_host[index];
    const ClockRelation clock = shared ? home.SharedClock() : home.Clock();
    home.Divide(clock, look_ns, shared);
    apart.clocks.push_back(clock);
    apart.least_rest_ns.push_back(home.LeastWire());
  }
  return apart;
}

}  // namespace fastdecode
