#include "tests/engine/pipeline/sim_link.h"

#include <cstring>
#include <utility>

#include "engine/rpart/rpart_shape.h"
#include "numa/check.h"

namespace fastdecode {

namespace {
constexpr int kScribble = 0xee;
}  // namespace

SimLink::SimLink(const RPartShape& shape, uint32_t pages, const SimLinkOptions& options, uint64_t seed)
    : shape_(shape),
      options_(options),
      size_(LinkSizeFor(shape)),
      home_(shape, pages),
      random_(seed),
      slots_(shape.micro_batches),
      control_(options.control_messages_max) {
  for (Slot& slot : slots_) {
    slot.send.resize(size_.hop_payload_bytes_max);
    slot.receive.resize(size_.reply_payload_bytes_max);
    slot.o.resize(size_.reply_payload_bytes_max);
  }
}

bool SimLink::Happens(double share) { return share > 0 && static_cast<double>(random_() >> 11) * 0x1p-53 < share; }

int SimLink::PickSlot(SlotState state) {
  const size_t first = random_() % slots_.size();
  for (size_t i = 0; i < slots_.size(); ++i) {
    const size_t slot = (first + i) % slots_.size();
    if (slots_[slot].state == state) return static_cast<int>(slot);
  }
  return -1;
}

bool SimLink::has_open_hop() const {
  for (const Slot& slot : slots_) {
    if (slot.state != SlotState::kFree) return true;
  }
  return false;
}

void SimLink::Violate(const std::string& what) {
  if (violation_.empty()) violation_ = what;
  MarkLost(what.c_str());
}

void SimLink::MarkLost(const char* cause) {
  if (lost_) return;
  lost_ = true;
  cause_ = cause;
}

void SimLink::Turn() {
  if (lost_ || hung_ || asleep_ || !Happens(options_.work_share)) return;
  const int slot = PickSlot(SlotState::kPosted);
  asleep_ = home_.idle() && slot < 0 && control_used_ == 0;
  if (slot < 0) {
    if (Happens(options_.control_share)) ApplyControl();
  } else {
    RunHop(slots_[slot]);
  }
}

void SimLink::DrainControl() {
  while (!lost_ && ApplyControl()) {
  }
}

bool SimLink::ApplyControl() {
  if (control_used_ == 0) return false;
  const std::vector<std::byte>& message = control_[control_head_];
  if (std::string wrong = home_.Apply(message); !wrong.empty()) Violate(wrong);
  uint32_t kind = 0;
  if (message.size() >= sizeof(kind)) std::memcpy(&kind, message.data(), sizeof(kind));
  if (kind == static_cast<uint32_t>(ControlKind::kIdle)) SayPages();
  if (home_.left()) MarkLost("the engine has left");
  control_head_ = (control_head_ + 1) % control_.size();
  --control_used_;
  ++progress_;
  return true;
}

void SimLink::SayPages() {
  StatsMessage message;
  message.pages_total = home_.pages_total();
  message.pages_free = home_.pages_total() - home_.pages_used();
  message.pages_held = held_;
  Say(&message, sizeof(message));
  ++pages_said_;
}

void SimLink::Drain() {
  const DrainingMessage message;
  Say(&message, sizeof(message));
}

void SimLink::Say(const void* message, size_t bytes) {
  const auto* const from = static_cast<const std::byte*>(message);
  said_.emplace_back(from, from + bytes);
}

LinkPoll SimLink::PollControl(void* buffer, size_t* bytes) {
  if (lost_) return LinkPoll::kLost;
  if (said_.empty()) return LinkPoll::kEmpty;
  std::memcpy(buffer, said_.front().data(), said_.front().size());
  *bytes = said_.front().size();
  said_.pop_front();
  return LinkPoll::kMessage;
}

void SimLink::RunHop(Slot& slot) {
  // As late as may be: of the control messages only those that the hop's roster needs.
  while (!lost_ && home_.Awaits(slot.hop)) {
    if (!ApplyControl()) return Violate("hop: its roster was not sent before it");
  }
  if (lost_) return;
  if (std::string wrong = home_.RunHop(slot.hop, slot.send.data(), slot.o.data(), &slot.reply); !wrong.empty()) {
    return Violate(wrong);
  }
  slot.state = SlotState::kDone;
  ++progress_;
  if (Happens(options_.pages_share)) SayPages();
}

void SimLink::PostHop(const HopHeader& header) {
  if (lost_) return;
  FD_CHECK(header.micro_batch < slots_.size(), "a hop of no slot");
  Slot& slot = slots_[header.micro_batch];
  FD_CHECK(slot.state == SlotState::kFree, "a hop on a slot that is not free");
  FD_CHECK(header.payload_bytes <= size_.hop_payload_bytes_max && header.rows > 0, "a hop of a wrong size");
  slot.state = SlotState::kPosted;
  slot.hop = header;
  std::memset(slot.receive.data(), kScribble, slot.receive.size());
}

void SimLink::Attend(int micro_batch, uint32_t layer, uint32_t rows, uint32_t first_position) {
  Slot& slot = slots_[static_cast<size_t>(micro_batch)];
  HopHeader hop = home_.HopOf(static_cast<uint32_t>(micro_batch), layer, first_position);
  hop.rows = rows;
  hop.payload_bytes = static_cast<uint32_t>(rows * shape_.hop_row_bytes());
  std::memset(slot.receive.data(), kScribble, slot.receive.size());
  if (std::string wrong = home_.RunHop(hop, slot.send.data(), slot.receive.data(), &slot.reply); !wrong.empty()) {
    Violate(wrong);
  }
  std::memset(slot.send.data(), kScribble, slot.send.size());
}

LinkPoll SimLink::PollReply(ReplyHeader* out) {
  if (lost_) return LinkPoll::kLost;
  if (repeat_due_) {
    repeat_due_ = false;
    *out = last_reply_;
    return LinkPoll::kMessage;
  }
  const int index = PickSlot(SlotState::kDone);
  if (index < 0 || Happens(options_.late_reply_share)) return LinkPoll::kEmpty;
  Slot& slot = slots_[index];
  slot.state = SlotState::kFree;
  std::memcpy(slot.receive.data(), slot.o.data(), slot.reply.payload_bytes);
  std::memset(slot.send.data(), kScribble, slot.send.size());
  *out = slot.reply;
  last_reply_ = slot.reply;
  repeat_due_ = repeat_;
  repeat_ = false;
  if (change_ != nullptr) {
    change_(out);
    change_ = nullptr;
  }
  return LinkPoll::kMessage;
}

void SimLink::TakeMemory() {
  for (std::vector<std::byte>& message : control_) {
    message.reserve(sizeof(RosterMessage) + shape_.max_rows * sizeof(RosterEntry));
  }
}

bool SimLink::TrySendControl(const void* message, size_t bytes) {
  if (lost_) return false;
  const bool refuses = refuse_all_ || control_used_ == control_.size() || Happens(options_.refuse_share);
  if (refuses && !options_.in_stage) return false;
  const std::byte* const from = static_cast<const std::byte*>(message);
  control_[(control_head_ + control_used_) % control_.size()].assign(from, from + bytes);
  ++control_used_;
  ++control_count_;
  if (options_.in_stage) DrainControl();
  return true;
}

}  // namespace fastdecode
