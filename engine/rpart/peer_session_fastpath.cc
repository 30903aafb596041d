// FAST PATH (docs/FAST_PATH.md)
#include <algorithm>
#include <cstring>
#include <limits>

#include "engine/rpart/peer_session.h"
#include "numa/clock.h"

namespace fastdecode {

namespace {

// So that a burst of control messages does not hold hops up for long.
constexpr int kControlMessagesPerTurn = 8;

uint32_t ElapsedNs(uint64_t from_ticks, uint64_t to_ticks) {
  const uint64_t ns = TickClock::Get().ToNs(to_ticks - from_ticks);
  return static_cast<uint32_t>(std::min<uint64_t>(ns, std::numeric_limits<uint32_t>::max()));
}

ShortDuration Short(uint64_t ticks) { return ShortDuration::FromNs(TickClock::Get().ToNs(ticks)); }

}  // namespace

PeerSession::Outcome PeerSession::Turn() {
  HopHeader header;
  const std::byte* rows = nullptr;
  const LinkPoll hop = link_->PollHop(&header, &rows);
  if (hop == LinkPoll::kLost) return Outcome::kLost;
  if (hop == LinkPoll::kMessage) TakeHop(header, rows);

  bool control = false;
  for (int i = 0; i < kControlMessagesPerTurn; ++i) {
    size_t bytes = 0;
    const LinkPoll message = link_->PollControl(control_buffer_.data(), &bytes);
    if (message == LinkPoll::kLost) return Outcome::kLost;
    if (message == LinkPoll::kEmpty) break;
    ApplyControl({control_buffer_.data(), bytes});
    control = true;
  }
  if (waiting_count_ > 0 && control) RunWaitingHops();
  if (asked_to_leave_.load(std::memory_order_relaxed) && !draining_said_) SayDraining();
  if (stats_changed_ && TickClock::Get().ToNs(NowTicks() - stats_sent_ticks_) >= kStatsPeriodNs) SendStats(/*idle=*/0);
  return hop == LinkPoll::kMessage || control ? Outcome::kWorked : Outcome::kNothing;
}

void PeerSession::TakeHop(const HopHeader& header, const std::byte* rows) {
  WaitingHop hop;
  hop.header = header;
  hop.rows = rows;
  hop.seen_ticks = NowTicks();
  const uint64_t empty_since_ticks = served_->empty_since_ticks;
  if (empty_since_ticks != 0) hop.idle = Short(hop.seen_ticks - empty_since_ticks);
  idle_ = false;
  if (micro_batches_[header.micro_batch]->roster().Reached(header.roster_version)) {
    RunHop(hop);
    return;
  }
  // Its roster was sent before it, but control has not been polled since.
  hop.waiting = true;
  waiting_[header.micro_batch] = hop;
  ++waiting_count_;
}

void PeerSession::RunWaitingHops() {
  for (WaitingHop& hop : waiting_) {
    if (!hop.waiting) continue;
    if (!micro_batches_[hop.header.micro_batch]->roster().Reached(hop.header.roster_version)) continue;
    hop.waiting = false;
    --waiting_count_;
    hop.seen_ticks = NowTicks();
    RunHop(hop);
  }
}

void PeerSession::RunHop(const WaitingHop& hop) {
  ReplyHeader reply;
  reply.step = hop.header.step;
  reply.layer = hop.header.layer;
  reply.micro_batch = hop.header.micro_batch;
  reply.idle = hop.idle;
  reply.post = last_post_;
  const char* const error = ComputeHop(hop, &reply);
  const uint64_t end_ticks = NowTicks();
  reply.work_ns = ElapsedNs(hop.seen_ticks, end_ticks);
  reply.end_clock_ns = static_cast<uint32_t>(NowNs());
  if (error != nullptr) {
    reply.status = HopStatus::kBadHop;
    reply.payload_bytes = 0;
  }
  stats_changed_ = true;
  stats_.busy_ns += reply.work_ns;
  served_->AddProgress(1);
  link_->PostReply(reply);
  last_post_ = Short(NowTicks() - end_ticks);
  if (error != nullptr) link_->MarkLost(error);
  served_->empty_since_ticks = 0;
}

const char* PeerSession::BeginHop(const HopHeader& header, const std::byte* rows, std::byte* o) {
  MicroBatch& micro_batch = *micro_batches_[header.micro_batch];
  if (const char* error = micro_batch.Check(header)) return error;
  if (const char* error = micro_batch.Prepare(header, &table_)) return error;
  work_.plan = &micro_batch.plan(header.layer);
  work_.attention = shape_.attention(header.layer);
  work_.entries = micro_batch.entries();
  work_.layer = header.layer;
  work_.rows = rows;
  work_.o = o;
  return nullptr;
}

const StepEntry* PeerSession::EndHop(const HopHeader& header) {
  MicroBatch& micro_batch = *micro_batches_[header.micro_batch];
  micro_batch.Finish(header.layer);
  stats_.hops += 1;
  stats_.kv_bytes_read += work_.plan->kv_bytes();
  stats_changed_ = true;
  return micro_batch.ReportBadEntry();
}

// Null, with *reply filled in, or what is wrong with the hop.
const char* PeerSession::ComputeHop(const WaitingHop& hop, ReplyHeader* reply) {
  if (const char* error = BeginHop(hop.header, hop.rows, link_->ReplyArea(hop.header.micro_batch))) return error;
  leader_ticks_ = {};
  const uint64_t start_ticks = NowTicks();
  served_->team->Run(&HopWork::RunShare, &work_);
  reply->prepare = Short(start_ticks - hop.seen_ticks);
  reply->append = Short(leader_ticks_.append);
  reply->merge = Short(leader_ticks_.merge);
  reply->wait = Short(NowTicks() - leader_ticks_.share_end);
  const StepEntry* const bad = EndHop(hop.header);
  reply->payload_bytes = static_cast<uint32_t>(hop.header.rows * shape_.reply_row_bytes());
  ZeroBadRows(work_.entries, work_.o);
  if (bad != nullptr) {
    reply->status = HopStatus::kBadRow;
    reply->failing_row = bad->first_row;
    // One reply names one row. A step that ends with more to tell would hand out wrong tokens.
    const bool last_layer = hop.header.layer + 1u == shape_.layers;
    if (last_layer && micro_batches_[hop.header.micro_batch]->has_unreported_bad_entry())
      return "hop: more rows failed in a step than it has layers";
  }
  return nullptr;
}

void PeerSession::ZeroBadRows(std::span<const StepEntry> entries, std::byte* o) const {
  const size_t row_bytes = shape_.reply_row_bytes();
  for (const StepEntry& entry : entries) {
    if (entry.bad) std::memset(o + entry.first_row * row_bytes, 0, entry.rows * row_bytes);
  }
}

}  // namespace fastdecode
