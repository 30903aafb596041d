#include "rdma/fault_link.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "numa/check.h"
#include "rdma/wire_check.h"

namespace fastdecode {

namespace {
// Far apart for links whose epochs follow each other.
uint64_t SeedOfLink(uint64_t seed, uint64_t epoch) { return seed + epoch * 0x9e3779b97f4a7c15u; }
}  // namespace

FaultLink::FaultLink(std::unique_ptr<EngineLink> link, const FaultOptions& options, ClockFunction now_ns)
    : link_(std::move(link)), options_(options), now_ns_(now_ns), random_(SeedOfLink(options.seed, link_->epoch())) {}

// 53 random bits make a double in [0, 1). Share 0 takes no number, so that adding a fault does not change the others'
// absence.
bool FaultLink::Happens(double share) {
  if (share <= 0) return false;
  return static_cast<double>(random_() >> 11) * 0x1.0p-53 < share;
}

void FaultLink::FlipBit(void* bytes, size_t count) {
  const uint64_t bit = random_() % (count * 8);
  static_cast<unsigned char*>(bytes)[bit / 8] ^= static_cast<unsigned char>(1u << (bit % 8));
}

// A field that the wrapped link passes on as it is: it stamps the epoch itself, and takes a slot, a size beyond the
// slot's or no rows for a mistake of ours.
void FaultLink::CorruptHop(HopHeader* header) {
  const HopHeader before = *header;
  do {
    *header = before;
    switch (random_() % 5) {
      case 0:
        FlipBit(&header->step, sizeof(header->step));
        break;
      case 1:
        FlipBit(&header->roster_version, sizeof(header->roster_version));
        break;
      case 2:
        FlipBit(&header->rows, sizeof(header->rows));
        break;
      case 3:
        FlipBit(&header->payload_bytes, sizeof(header->payload_bytes));
        break;
      case 4:
        FlipBit(&header->layer, sizeof(header->layer));
        break;
    }
  } while (header->rows == 0 || header->payload_bytes > size().hop_payload_bytes_max);
}

void FaultLink::PostHop(const HopHeader& header) {
  if (lost()) return;
  FD_CHECK(header.micro_batch < size().slots, "slot out of range");
  FD_CHECK((open_slots_ >> header.micro_batch & 1) == 0, "the slot's previous hop has no reply yet");
  if (options_.cut_after_hops != 0 && counts_.hops == options_.cut_after_hops) return Cut();
  if (Happens(options_.cut_share)) return Cut();
  ++counts_.hops;
  open_slots_ |= 1u << header.micro_batch;
  open_hops_[header.micro_batch] = header;
  open_hops_[header.micro_batch].epoch = epoch();

  if (Happens(options_.drop_hop_share)) {
    ++counts_.dropped_hops;
    return;
  }
  HopHeader sent = header;
  if (Happens(options_.corrupt_hop_share)) {
    ++counts_.corrupted_hops;
    CorruptHop(&sent);
  }
  if (header.payload_bytes > 0 && Happens(options_.corrupt_payload_share)) {
    ++counts_.corrupted_payloads;
    FlipBit(SendArea(header.micro_batch), header.payload_bytes);
  }
  link_->PostHop(sent);
}

void FaultLink::Cut() {
  char cause[64];
  std::snprintf(cause, sizeof(cause), "fault link: cut after %llu hops", static_cast<unsigned long long>(counts_.hops));
  MarkLost(cause);
}

LinkPoll FaultLink::PollReply(ReplyHeader* out) {
  ++polls_;
  ReplyHeader reply;
  LinkPoll outcome;
  while ((outcome = link_->PollReply(&reply)) == LinkPoll::kMessage) TakeIn(reply);
  if (outcome == LinkPoll::kLost) return LinkPoll::kLost;
  for (size_t i = 0; i < held_count_; ++i) {
    if (Due(held_[i])) return Deliver(i, out);
  }
  return LinkPoll::kEmpty;
}

// Decides what becomes of a reply that has just arrived.
void FaultLink::TakeIn(const ReplyHeader& reply) {
  ++counts_.replies;
  if (Happens(options_.drop_reply_share)) {
    ++counts_.dropped_replies;
    return;
  }
  HeldReply held;
  held.reply = reply;
  if (Happens(options_.corrupt_reply_share)) {
    ++counts_.corrupted_replies;
    FlipBit(&held.reply, sizeof(held.reply));
  }
  if (Happens(options_.delay_share)) {
    ++counts_.delayed;
    if (options_.delay_ns != 0) held.due_ns = now_ns_() + options_.delay_ns;
    held.due_poll = polls_ + options_.delay_polls;
  }
  if (Happens(options_.reorder_share)) {
    ++counts_.reordered;
    held.waits_for_another = true;
    held.due_poll = polls_ + kReorderPollsMax;
  }
  const bool twice = Happens(options_.duplicate_share);
  if (twice) ++counts_.duplicated;
  FD_CHECK(held_count_ + 1 + twice <= kHeldMax, "more replies on their way than slots");
  held_[held_count_++] = held;
  if (twice) held_[held_count_++] = held;
}

bool FaultLink::Due(const HeldReply& held) const {
  return polls_ >= held.due_poll && (held.due_ns == 0 || now_ns_() >= held.due_ns);
}

LinkPoll FaultLink::Deliver(size_t index, ReplyHeader* out) {
  const ReplyHeader reply = held_[index].reply;
  std::move(held_.begin() + index + 1, held_.begin() + held_count_, held_.begin() + index);
  --held_count_;
  // Those that waited to be overtaken were; a duplicate that was reordered goes with its twin.
  for (size_t i = 0; i < held_count_; ++i) {
    if (held_[i].waits_for_another) held_[i].due_poll = polls_;
    held_[i].waits_for_another = false;
  }
  const int slot = reply.micro_batch;
  const bool open = slot < size().slots && (open_slots_ >> slot & 1) != 0;
  const char* const defect =
      open ? ReplyDefect(reply, open_hops_[slot], size()) : "reply to a slot without an open hop";
  if (defect != nullptr) {
    MarkLost((std::string("protocol error by the home: ") + defect).c_str());
    return LinkPoll::kLost;
  }
  open_slots_ &= ~(1u << slot);
  *out = reply;
  return LinkPoll::kMessage;
}

}  // namespace fastdecode
