#include "tests/tools/latency/simulated_machine.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace fastdecode {

namespace {

constexpr double kDriftHoldNs = 100e6;
// A leader that polls sees a hop within this.
constexpr double kLeaderLookNs = 80;
constexpr double kReplyHeaderNs = 40;

uint32_t WholeNs(double ns) { return static_cast<uint32_t>(std::max(0.0, ns)); }

}  // namespace

std::vector<SimulatedTheft>::const_iterator SimulatedCore::NextTheft(double at) const {
  return std::partition_point(thefts_.begin(), thefts_.end(),
                              [at](const SimulatedTheft& theft) { return theft.start <= at; });
}

double SimulatedCore::Awake(double at) const {
  const auto next = NextTheft(at);
  return next == thefts_.begin() ? at : std::max(at, (next - 1)->end);
}

double SimulatedCore::Run(double from, double ns) const {
  double at = Awake(from);
  for (auto next = NextTheft(at); next != thefts_.end() && next->start < at + ns; ++next) {
    ns -= next->start - at;
    at = next->end;
  }
  return at + ns;
}

double SimulatedCore::Factor(double at) {
  if (at >= drift_until_) {
    drift_ = 0.7 * drift_ + noise_.drift * 0.714 * Normal();  // 0.7^2 + 0.714^2 = 1
    drift_until_ = at + kDriftHoldNs;
  }
  double factor = std::exp(noise_.spread * Normal() + drift_);
  if (Uniform() < noise_.tail_share) factor *= 1 + (noise_.tail_factor_max - 1) * Uniform();
  return factor;
}

SimulatedHome::SimulatedHome(int index, const SimulatedNoise& noise, const SimulatedLink& link,
                             const SimulatedAttention& attention, uint64_t seed)
    : index_(index),
      noise_(noise),
      link_(link),
      attention_(attention),
      leader_(noise, seed),
      helper_(noise, seed + 1),
      clock_offset_ns_(link.in_memory ? 0 : static_cast<uint64_t>(leader_.Uniform() * 1e12)),
      clock_drift_(link.in_memory ? 0 : (leader_.Uniform() - 0.5) * 40e-6) {}

double SimulatedHome::WireNs() {
  double factor = std::exp(noise_.wire_spread * leader_.Normal());
  if (leader_.Uniform() < noise_.tail_share) factor *= 1 + (noise_.tail_factor_max - 1) * leader_.Uniform();
  return link_.one_way_ns * factor;
}

void SimulatedHome::Die() {
  dead_ = true;
  waiting_.clear();
  replies_.clear();
}

void SimulatedHome::Post(const SimulatedHop& hop) {
  if (dead_) return;
  SimulatedHop posted = hop;
  const double bytes_ns = static_cast<double>(hop.payload_bytes) / 2 / link_.bytes_per_ns;
  const double there = WireNs() + bytes_ns + link_.extra_one_way_ns;
  posted.arrival = hop.posted + there;
  posted.back_ns = WireNs() + bytes_ns + link_.extra_one_way_ns;
  if (leader_.Uniform() < link_.late_share) {
    const bool there = leader_.Uniform() < 0.5 && !link_.in_memory;
    (there ? posted.arrival : posted.back_ns) += link_.late_ns;
  }
  waiting_.push_back(posted);
}

size_t SimulatedHome::NextIndex() const {
  size_t next = 0;
  for (size_t i = 1; i < waiting_.size(); ++i) {
    if (waiting_[i].arrival < waiting_[next].arrival) next = i;
  }
  return next;
}

double SimulatedHome::NextStart() const {
  if (waiting_.empty()) return kNever;
  return leader_.Awake(std::max(waiting_[NextIndex()].arrival, free_at_));
}

double SimulatedHome::AttendNs(const SimulatedHop& hop) const {
  const double further_rows = static_cast<double>(hop.rows - hop.sequences) / std::max(1u, hop.sequences);
  const double read_ns = hop.kv_bytes / attention_.bytes_per_ns;
  return attention_.attend_ns + attention_.attend_extra_ns + read_ns * (1 + attention_.chunk_row_share * further_rows);
}

void SimulatedHome::ServeNext() {
  const size_t next = NextIndex();
  SimulatedHop hop = waiting_[next];
  waiting_.erase(waiting_.begin() + static_cast<ptrdiff_t>(next));
  // While it is busy it does not look: what came meanwhile is there at its next look.
  const double first_look = free_at_ + kReplyHeaderNs;
  const bool idle = hop.arrival > first_look;
  const double seen = leader_.Awake(idle ? hop.arrival + kLeaderLookNs * leader_.Uniform() : first_look);
  hop.idle = idle ? seen - first_look : 0;
  hop.post = posted_ns_;

  const double rows = hop.rows;
  const double prepare_ns = attention_.prepare_ns * (hop.layer == 0 ? 10 + rows : 1) + attention_.prepare_extra_ns;
  const double append_ns = attention_.append_ns * (1 + rows / 10);
  const double attend_ns = AttendNs(hop);
  const double prepared = leader_.RunNoisy(seen, prepare_ns);
  const double appended = leader_.RunNoisy(prepared, append_ns);
  const double attended = leader_.RunNoisy(appended, attend_ns);
  const double merged = leader_.RunNoisy(attended, attention_.merge_ns);
  const double helped = helper_.RunNoisy(helper_.RunNoisy(prepared, append_ns), attend_ns);
  const double ready = leader_.Awake(std::max(merged, helped) + kLeaderLookNs);
  free_at_ = leader_.RunNoisy(ready, attention_.post_ns);

  hop.prepare = prepared - seen;
  hop.append = appended - prepared;
  hop.attend = attended - appended;
  hop.merge = merged - attended;
  hop.wait = ready - merged;
  hop.home_end = ready;
  hop.reply = free_at_ + hop.back_ns;
  posted_ns_ = free_at_ - ready;
  replies_.push_back(hop);
}

double SimulatedHome::NextReply() const {
  double next = kNever;
  for (const SimulatedHop& hop : replies_) next = std::min(next, hop.reply);
  return next;
}

bool SimulatedHome::TakeReply(double now, SimulatedHop* hop) {
  for (size_t i = 0; i < replies_.size(); ++i) {
    if (replies_[i].reply > now) continue;
    *hop = replies_[i];
    replies_.erase(replies_.begin() + static_cast<ptrdiff_t>(i));
    return true;
  }
  return false;
}

fd_record_event SimulatedHome::Describe(const SimulatedHop& hop, double seen) const {
  fd_record_event event = {};
  event.kind = FD_RECORD_HOP;
  event.start_ns = static_cast<uint64_t>(hop.posted);
  event.end_ns = static_cast<uint64_t>(seen);
  event.bytes = hop.payload_bytes;
  event.step = hop.step;
  event.rows = hop.rows;
  event.layer = static_cast<uint16_t>(hop.layer);
  event.home = static_cast<int16_t>(index_);
  event.micro_batch = static_cast<uint8_t>(hop.micro_batch);
  event.polled_ns = hop.polled > hop.posted ? static_cast<uint64_t>(hop.polled) : 0;
  // The home's clock, of which 32 bits are known, next to the engine's.
  const uint64_t home_clock = static_cast<uint64_t>(hop.home_end * (1 + clock_drift_)) + clock_offset_ns_;
  const auto difference = static_cast<int32_t>(static_cast<uint32_t>(home_clock - event.end_ns));
  event.home_end_ns = event.end_ns + static_cast<uint64_t>(static_cast<int64_t>(difference));
  event.idle_ns = WholeNs(hop.idle);
  event.prepare_ns = WholeNs(hop.prepare);
  event.append_ns = WholeNs(hop.append);
  event.attend_ns = WholeNs(hop.attend);
  event.merge_ns = WholeNs(hop.merge);
  event.wait_ns = WholeNs(hop.wait);
  event.post_ns = WholeNs(hop.post);
  return event;
}

}  // namespace fastdecode
