// FAST PATH (docs/FAST_PATH.md)
#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <iterator>
#include <utility>

#include "numa/check.h"
#include "rdma/shm/control_ring.h"
#include "rdma/verbs/crc32c.h"
#include "rdma/verbs/verbs_channel.h"
#include "rdma/verbs/verbs_link.h"
#include "rdma/verbs/verbs_memory_fastpath.h"
#include "rdma/wire_check.h"

namespace fastdecode {

namespace {

constexpr uint32_t Bit(int slot) { return 1u << slot; }

// What is not returned as credit at the latest: an eighth of ring or window.
constexpr uint64_t kCreditShare = 8;

// By arithmetic, not through memory: see ToWords.
template <class Header>
void HeaderOf(const MessageLine& line, Header* header) {
  std::array<uint64_t, sizeof(Header) / sizeof(uint64_t)> words;
  for (size_t i = 0; i < words.size(); ++i) words[i] = line.words[i];
  FromWords(words, header);
}

}  // namespace

// ---- Send queue ----

uint64_t VerbsChannel::RequestsOf(size_t payload_bytes) const {
  if (wiring_.peer_layout.OneWrite(payload_bytes)) return 1;
  return (payload_bytes + wiring_.chunk_bytes - 1) / wiring_.chunk_bytes + 1;
}

void VerbsChannel::Post(ibv_send_wr* first, ibv_send_wr* last, uint64_t requests) {
  const int error = sends_.Post(first, last, requests);
  if (__builtin_expect(error != 0, 0)) {
    failed_ = true;
    liveness_->LoseByCall("ibv_post_send", error);
  }
}

void VerbsChannel::PostWaiting() {
  for (int slot = 0; slot < wiring_.out_layout.slots() && waiting_slots_ != 0; ++slot) {
    if ((waiting_slots_ & Bit(slot)) == 0) continue;
    if (!sends_.HasRoom(RequestsOf(out_bytes_[slot]))) return;
    waiting_slots_ &= ~Bit(slot);
    PostSlotNow(slot);
  }
  if (waiting_ring_ && waiting_slots_ == 0) Ring();
}

// ---- Slots, outwards ----

void VerbsChannel::PostSlot(int slot, const uint64_t* header, size_t header_words, size_t payload_bytes) {
  if (Stopped()) return;
  FD_CHECK(header_words <= MessageLine::kHeaderWordsMax && payload_bytes <= wiring_.out_layout.payload_bytes_max(),
           "message size");
  std::byte* const line = wiring_.out.data + wiring_.out_layout.line_offset(slot);
  for (size_t i = 0; i < header_words; ++i) StoreWord(line + i * sizeof(uint64_t), header[i]);
  StoreWord(line + MessageLine::kSequenceWord * sizeof(uint64_t), ++out_sequence_[slot]);
  if (__builtin_expect(wiring_.checksum, 0)) {
    const uint32_t checksum = Crc32c(Crc32c(0, line, MessageLine::kChecksummedBytes), out_payload(slot), payload_bytes);
    StoreWord(line + MessageLine::kChecksumWord * sizeof(uint64_t), checksum);
  }
  out_bytes_[slot] = payload_bytes;
  if (__builtin_expect(!sends_.HasRoom(RequestsOf(payload_bytes)), 0)) {
    waiting_slots_ |= Bit(slot);
    return;
  }
  PostSlotNow(slot);
}

void VerbsChannel::PostSlotNow(int slot) {
  SlotRequests& requests = slots_[slot];
  const size_t payload_bytes = out_bytes_[slot];
  if (wiring_.peer_layout.OneWrite(payload_bytes)) return PostWhole(&requests, slot, payload_bytes);
  const uint64_t count = RequestsOf(payload_bytes);
  requests.line.send_flags = sizeof(MessageLine) <= wiring_.inline_bytes_max ? IBV_SEND_INLINE : 0;
  PostNotified(slot, PatchChain(&requests, slot, payload_bytes), &requests.line, count);
}

// `last` writes the message's line, and notifies.
void VerbsChannel::PostNotified(int slot, ibv_send_wr* first, ibv_send_wr* last, uint64_t count) {
  last->imm_data = ImmData(own_kind_, slot, out_sequence_[slot]).ToWire();
  last->wr_id = WrId(own_kind_, slot, sends_.posted() + count).bits();
  Post(first, last, count);
}

void VerbsChannel::PostWhole(SlotRequests* requests, int slot, size_t payload_bytes) {
  ibv_send_wr* const whole = &requests->whole;
  const size_t bytes = sizeof(MessageLine) + payload_bytes;
  const bool apart = wiring_.out_layout.payload_apart();  // the CPU cannot copy it into the work request
  requests->whole_pieces[0].length = static_cast<uint32_t>(apart ? sizeof(MessageLine) : bytes);
  requests->whole_pieces[1].length = static_cast<uint32_t>(payload_bytes);
  whole->num_sge = apart && payload_bytes > 0 ? 2 : 1;
  whole->send_flags = bytes <= wiring_.inline_bytes_max && whole->num_sge == 1 ? IBV_SEND_INLINE : 0;
  PostNotified(slot, whole, whole, 1);
}

// Cuts the chain to the payload's length, the line behind it.
ibv_send_wr* VerbsChannel::PatchChain(SlotRequests* requests, int slot, size_t payload_bytes) {
  const size_t pieces = (payload_bytes + wiring_.chunk_bytes - 1) / wiring_.chunk_bytes;
  FD_CHECK(pieces <= requests->chain.size(), "chain length");
  if (pieces == 0) return &requests->line;
  for (size_t i = 0; i < pieces; ++i) {
    const bool last = i + 1 == pieces;
    requests->chain_pieces[i].length =
        static_cast<uint32_t>(last ? payload_bytes - i * wiring_.chunk_bytes : wiring_.chunk_bytes);
    requests->chain[i].next = last ? &requests->line : &requests->chain[i + 1];
    requests->chain[i].wr_id = WrId(own_kind_, slot, sends_.posted() + i + 1).bits();
  }
  return requests->chain.data();
}

// ---- Completions ----

void VerbsChannel::Poll() {
  ++polls_;
  if (liveness_->lost()) return;
  ibv_wc completions[kPollBatch];
  int count;
  bool any = false;
  // To the last one: what a sleeper leaves behind would not wake it. Bounded by what can be in flight.
  do {
    count = ibv_poll_cq(wiring_.completions, kPollBatch, completions);
    if (__builtin_expect(count < 0, 0)) return liveness_->LoseByCall("ibv_poll_cq", -count);
    for (int i = 0; i < count; ++i) TakeCompletion(completions[i]);
    any |= count > 0;
    if (count > 0 && !Stopped()) PostReceives();
  } while (count == kPollBatch && !liveness_->lost());
  if (Stopped()) return;
  if (__builtin_expect(waiting_slots_ != 0 || waiting_ring_, 0)) PostWaiting();
  if (!any && in_waiting_ == 0 && OwesCredit()) ReturnCredit();
}

void VerbsChannel::TakeCompletion(const ibv_wc& completion) {
  if (bulk_ != nullptr && WrId::FromBits(completion.wr_id).kind() == MessageKind::kBulk) {
    return bulk_->TakeCompletion(completion);
  }
  if (__builtin_expect(completion.status != IBV_WC_SUCCESS, 0)) {
    failed_ = true;
    liveness_->LoseByCompletion(completion);
    return;
  }
  if ((completion.opcode & IBV_WC_RECV) != 0) return TakeNotification(completion);
  sends_.Retire(completion);
}

void VerbsChannel::TakeNotification(const ibv_wc& completion) {
  receives_.Use();
  if (completion.opcode != IBV_WC_RECV_RDMA_WITH_IMM || (completion.wc_flags & IBV_WC_WITH_IMM) == 0) {
    return Lose("a message that is no write with a notification");
  }
  const ImmData data = ImmData::FromWire(completion.imm_data);
  if (data.kind() == their_kind_) return TakeSlotNotification(data, completion.byte_len);
  if (data.kind() == MessageKind::kControl || data.kind() == MessageKind::kRing) return TakeControlNotification(data);
  Lose("a notification of unknown kind");
}

void VerbsChannel::TakeSlotNotification(const ImmData& data, uint32_t written_bytes) {
  const int slot = data.slot();
  if (slot >= wiring_.in_layout.slots()) return Lose("a notification of a slot that does not exist", slot);
  if ((arrived_slots_ & Bit(slot)) != 0) return Lose("a second message in a slot before the first was answered", slot);
  if (!data.MatchesSequence(in_sequence_[slot] + 1)) return Lose("message out of sequence", slot);
  ++in_sequence_[slot];
  arrived_slots_ |= Bit(slot);
  arrivals_[(arrivals_head_ + arrivals_count_++) % kMaxSlots] = {slot, written_bytes};
}

void VerbsChannel::TakeControlNotification(const ImmData& data) {
  if (!data.MatchesSequence(++in_announced_)) return Lose("control message out of sequence");
  if (in_announced_ - returned_messages_ > kControlWindow) return Lose("more control messages than the window allows");
  if (data.kind() == MessageKind::kControl) {
    ++in_waiting_;
    return;
  }
  // Relaxed: the sleeper only looks again, and finds the rest by polling.
  rung_.store(true, std::memory_order_relaxed);
  ++in_messages_;
}

void VerbsChannel::PostReceives() {
  if (const int error = receives_.PostUsed(); error != 0) liveness_->LoseByCall("ibv_post_recv", error);
  if (bulk_ != nullptr) bulk_->PostReceives();
}

void VerbsChannel::Lose(const char* defect, int slot) {
  failed_ = true;
  liveness_->LoseByProtocol(defect, slot);
}

// ---- Slots, inwards ----

bool VerbsChannel::NextArrival(Arrival* out) {
  if (arrivals_count_ == 0) Poll();
  if (arrivals_count_ == 0) return false;
  *out = arrivals_[arrivals_head_ % kMaxSlots];
  ++arrivals_head_;
  --arrivals_count_;
  arrived_slots_ &= ~Bit(out->slot);
  return true;
}

const char* VerbsChannel::TakeLine(const Arrival& arrival, MessageLine* line) {
  const std::byte* const from = wiring_.in.data + wiring_.in_layout.line_offset(arrival.slot);
  // Relaxed: the completion orders the device's writes before these loads.
  for (size_t i = 0; i < std::size(line->words); ++i) {
    line->words[i] = LoadWord(from + i * sizeof(uint64_t), std::memory_order_relaxed);
  }
  return line->words[MessageLine::kSequenceWord] == in_sequence_[arrival.slot]
             ? nullptr
             : "a slot's line is not the one that was announced";
}

const char* VerbsChannel::CheckPayload(const Arrival& arrival, const MessageLine& line, size_t payload_bytes) const {
  const size_t written = sizeof(MessageLine) + (wiring_.in_layout.OneWrite(payload_bytes) ? payload_bytes : 0);
  if (arrival.written_bytes != written) return "header and write differ in the message's length";
  if (!wiring_.checksum) return nullptr;
  const uint32_t checksum =
      Crc32c(Crc32c(0, line.words, MessageLine::kChecksummedBytes), in_payload(arrival.slot), payload_bytes);
  return checksum == line.words[MessageLine::kChecksumWord] ? nullptr : "payload checksum";
}

// ---- Control, outwards ----

bool VerbsChannel::HasCredit(size_t ring_bytes) const {
  return out_messages_ - credit_messages_ < kControlWindow &&
         wiring_.out_layout.ring_bytes() - (out_ring_bytes_ - credit_bytes_) >= ring_bytes;
}

bool VerbsChannel::GetCredit(size_t ring_bytes) {
  if (HasCredit(ring_bytes)) return true;
  const std::byte* const line = wiring_.in.data + wiring_.in_layout.credit_offset();
  // Acquire: pairs with the device's write of the word, posted by the peer after it had read those bytes; we overwrite
  // them afterwards.
  const uint64_t bytes = LoadWord(line + offsetof(CreditLine, bytes), std::memory_order_acquire);
  const uint64_t messages = LoadWord(line + offsetof(CreditLine, messages), std::memory_order_acquire);
  if (bytes > out_ring_bytes_ || bytes % sizeof(ControlWord) != 0 || messages > out_messages_) {
    Lose("control credit out of bounds");
    return false;
  }
  // On a fabric with several paths an older write may land after a newer one; the next credit makes that good.
  credit_bytes_ = std::max(credit_bytes_, bytes);
  credit_messages_ = std::max(credit_messages_, messages);
  return HasCredit(ring_bytes);
}

uint32_t VerbsChannel::ControlTag(uint64_t sequence, const void* message, size_t bytes) const {
  if (!wiring_.checksum) return static_cast<uint32_t>(sequence);
  return Crc32c(Crc32c(0, &sequence, sizeof(sequence)), message, bytes);
}

void VerbsChannel::CopyToRing(uint64_t index, const void* from, size_t bytes) {
  std::byte* const ring = wiring_.out.data + wiring_.out_layout.ring_offset();
  const size_t offset = index & (wiring_.out_layout.ring_bytes() - 1);
  const size_t before_end = std::min(bytes, wiring_.out_layout.ring_bytes() - offset);
  std::memcpy(ring + offset, from, before_end);
  std::memcpy(ring, static_cast<const std::byte*>(from) + before_end, bytes - before_end);
}

bool VerbsChannel::TrySendControl(const void* message, size_t bytes) {
  FD_CHECK(bytes > 0 && bytes <= RingMessageBytesMax(wiring_.out_layout.ring_bytes()), "control message size");
  if (!sends_.HasRoom(control_.size())) Poll();
  if (Stopped() || !sends_.HasRoom(control_.size()) || !GetCredit(RingBytesTaken(bytes))) return false;
  const ControlWord word = {static_cast<uint32_t>(bytes), ControlTag(++out_written_, message, bytes)};
  CopyToRing(out_ring_bytes_, &word, sizeof(word));
  CopyToRing(out_ring_bytes_ + sizeof(word), message, bytes);
  PostControl(out_ring_bytes_, sizeof(word) + bytes);
  out_ring_bytes_ += RingBytesTaken(bytes);
  return true;
}

// One write, or two where the bytes go round the ring's end; the last one notifies.
void VerbsChannel::PostControl(uint64_t index, size_t bytes) {
  const RegionLayout& layout = wiring_.out_layout;
  const size_t offset = index & (layout.ring_bytes() - 1);
  const size_t before_end = std::min(bytes, layout.ring_bytes() - offset);
  const bool wraps = before_end < bytes;
  const auto patch = [&](size_t i, size_t at, size_t length) {
    FD_CHECK(at + length <= layout.ring_bytes(), "control write outside the ring");
    control_pieces_[i].addr = wiring_.out.address + layout.ring_offset() + at;
    control_pieces_[i].length = static_cast<uint32_t>(length);
    control_[i].wr.rdma.remote_addr = wiring_.peer_control.address + wiring_.peer_layout.ring_offset() + at;
    control_[i].send_flags = length <= wiring_.inline_bytes_max ? IBV_SEND_INLINE : 0;
    control_[i].wr_id = WrId(MessageKind::kControl, 0, sends_.posted() + i + 1).bits();
    control_[i].opcode = IBV_WR_RDMA_WRITE;
    control_[i].next = nullptr;
  };
  patch(0, offset, before_end);
  if (wraps) {
    patch(1, 0, bytes - before_end);
    control_[0].next = &control_[1];
  }
  ibv_send_wr* const last = &control_[wraps ? 1 : 0];
  last->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
  last->imm_data = ImmData(MessageKind::kControl, 0, ++out_messages_).ToWire();
  Post(&control_[0], last, wraps ? 2 : 1);
}

// Behind the slots that wait, so that the sleeper finds what it is rung for.
void VerbsChannel::Ring() {
  if (Stopped()) return;
  waiting_ring_ = waiting_slots_ != 0 || !sends_.HasRoom(1) || !GetCredit(0);
  if (waiting_ring_) return;
  ring_.imm_data = ImmData(MessageKind::kRing, 0, ++out_messages_).ToWire();
  ring_.wr_id = WrId(MessageKind::kRing, 0, sends_.posted() + 1).bits();
  ring_.send_flags = IBV_SEND_SOLICITED;
  Post(&ring_, &ring_, 1);
}

// ---- Control, inwards ----

bool VerbsChannel::TakeRing() { return rung_.exchange(false, std::memory_order_relaxed); }

void VerbsChannel::CopyFromRing(uint64_t index, void* to, size_t bytes) const {
  const std::byte* const ring = wiring_.in.data + wiring_.in_layout.ring_offset();
  const size_t offset = index & (wiring_.in_layout.ring_bytes() - 1);
  const size_t before_end = std::min(bytes, wiring_.in_layout.ring_bytes() - offset);
  std::memcpy(to, ring + offset, before_end);
  std::memcpy(static_cast<std::byte*>(to) + before_end, ring, bytes - before_end);
}

bool VerbsChannel::NextControl(void* buffer, size_t* bytes) {
  if (in_waiting_ == 0) Poll();
  if (Stopped() || in_waiting_ == 0) return false;
  const size_t ring_bytes = wiring_.in_layout.ring_bytes();
  const uint64_t bits =
      LoadWord(wiring_.in.data + wiring_.in_layout.ring_offset() + (in_ring_bytes_ & (ring_bytes - 1)),
               std::memory_order_relaxed);
  ControlWord word;
  std::memcpy(&word, &bits, sizeof(word));
  const size_t unreturned = in_ring_bytes_ - returned_ring_bytes_;
  if (word.bytes == 0 || word.bytes > RingMessageBytesMax(ring_bytes) ||
      RingBytesTaken(word.bytes) > ring_bytes - unreturned) {
    Lose("control message out of bounds");
    return false;
  }
  CopyFromRing(in_ring_bytes_ + sizeof(word), buffer, word.bytes);
  if (ControlTag(++in_read_, buffer, word.bytes) != word.tag) {
    Lose(wiring_.checksum ? "control message checksum" : "a control message is not the one that was announced");
    return false;
  }
  *bytes = word.bytes;
  --in_waiting_;
  ++in_messages_;
  in_ring_bytes_ += RingBytesTaken(word.bytes);
  if (in_ring_bytes_ - returned_ring_bytes_ >= ring_bytes / kCreditShare ||
      in_messages_ - returned_messages_ >= kControlWindow / kCreditShare) {
    ReturnCredit();
  }
  return true;
}

// Not if there is no room: the next poll that finds nothing does.
void VerbsChannel::ReturnCredit() {
  if (!sends_.HasRoom(1)) return;
  std::byte* const line = wiring_.out.data + wiring_.out_layout.credit_offset();
  // The words only count up: a write that is still under way may carry the newer values just as well. Hence release:
  // the device that fetches one for that write must not see it before our reads of what it gives back are done.
  StoreWord(line + offsetof(CreditLine, bytes), in_ring_bytes_, std::memory_order_release);
  StoreWord(line + offsetof(CreditLine, messages), in_messages_, std::memory_order_release);
  returned_ring_bytes_ = in_ring_bytes_;
  returned_messages_ = in_messages_;
  if (bulk_ != nullptr) {
    returned_segments_ = bulk_->freed();
    StoreWord(line + offsetof(CreditLine, segments), returned_segments_, std::memory_order_release);
  }
  credit_.wr_id = WrId(MessageKind::kCredit, 0, sends_.posted() + 1).bits();
  credit_.send_flags = kCreditBytes <= wiring_.inline_bytes_max ? IBV_SEND_INLINE : 0;
  Post(&credit_, &credit_, 1);
}

void VerbsChannel::ReturnBulkCredit() {
  if (!Stopped() && bulk_->OwesCredit(returned_segments_)) ReturnCredit();
}

// ---- The engine's end ----

std::byte* VerbsEngineLink::SendArea(int slot) {
  FD_CHECK(slot >= 0 && slot < size_.slots, "slot out of range");
  return parts_.channel.out_payload(slot);
}

const std::byte* VerbsEngineLink::ReceiveArea(int slot) {
  FD_CHECK(slot >= 0 && slot < size_.slots, "slot out of range");
  return parts_.channel.in_payload(slot);
}

void VerbsEngineLink::PostHop(const HopHeader& header) {
  if (lost()) return;
  const int slot = header.micro_batch;
  FD_CHECK(slot < size_.slots, "slot out of range");
  FD_CHECK((open_slots_ & Bit(slot)) == 0, "the slot's previous hop has no reply yet");
  FD_CHECK(header.rows > 0 && header.payload_bytes <= size_.hop_payload_bytes_max, "hop size");
  HopHeader hop = header;
  hop.epoch = epoch_;
  // First of all: the home's clock runs from here, our own books do not.
  const auto words = ToWords(hop);
  parts_.channel.PostSlot(slot, words.data(), words.size(), hop.payload_bytes);
  hops_[slot] = hop;
  open_slots_ |= Bit(slot);
}

LinkPoll VerbsEngineLink::PollReply(ReplyHeader* out) {
  if (lost()) return LinkPoll::kLost;
  VerbsChannel::Arrival arrival;
  if (parts_.channel.NextArrival(&arrival)) return TakeReply(arrival, out);
  return lost() ? LinkPoll::kLost : LinkPoll::kEmpty;
}

LinkPoll VerbsEngineLink::TakeReply(const VerbsChannel::Arrival& arrival, ReplyHeader* out) {
  const int slot = arrival.slot;
  if ((open_slots_ & Bit(slot)) == 0) return Lose(slot, "reply to a slot without an open hop");
  MessageLine line;
  if (const char* defect = parts_.channel.TakeLine(arrival, &line)) return Lose(slot, defect);
  ReplyHeader reply;
  HeaderOf(line, &reply);
  if (const char* defect = ReplyDefect(reply, hops_[slot], size_)) return Lose(slot, defect);
  if (const char* defect = parts_.channel.CheckPayload(arrival, line, reply.payload_bytes)) return Lose(slot, defect);
  if (flush_ != nullptr && reply.payload_bytes > 0 && !flush_->FlushWrites()) {
    MarkLost("cuFlushGPUDirectRDMAWrites failed: the GPU might not see what has come");
    return LinkPoll::kLost;
  }
  open_slots_ &= ~Bit(slot);
  *out = reply;
  return LinkPoll::kMessage;
}

bool VerbsEngineLink::TrySendControl(const void* message, size_t bytes) {
  return parts_.channel.TrySendControl(message, bytes);
}

LinkPoll VerbsEngineLink::PollControl(void* buffer, size_t* bytes) {
  if (lost()) return LinkPoll::kLost;
  if (parts_.channel.NextControl(buffer, bytes)) return LinkPoll::kMessage;
  return lost() ? LinkPoll::kLost : LinkPoll::kEmpty;
}

std::byte* VerbsEngineLink::BulkArea() {
  if (parts_.bulk == nullptr) return nullptr;
  if (std::byte* const area = parts_.bulk->Area(); area != nullptr) return area;
  // What is known of the send queue is in the completion queue, which nobody else may be polling now.
  parts_.channel.Poll();
  return parts_.bulk->Area();
}

void VerbsEngineLink::PostBulk(size_t bytes) {
  if (lost()) return;
  FD_CHECK(parts_.bulk != nullptr, "the link has no bulk channel");
  parts_.bulk->Post(bytes);
}

uint64_t VerbsEngineLink::BulkFreed() { return parts_.bulk == nullptr ? 0 : parts_.bulk->Credit(); }

void VerbsEngineLink::RingHome() { parts_.channel.Ring(); }

// ---- The home's end ----

LinkPoll VerbsHomeLink::PollHop(HopHeader* out, const std::byte** payload) {
  if (lost()) return LinkPoll::kLost;
  VerbsChannel::Arrival arrival;
  if (parts_.channel.NextArrival(&arrival)) return TakeHop(arrival, out, payload);
  return lost() ? LinkPoll::kLost : LinkPoll::kEmpty;
}

LinkPoll VerbsHomeLink::TakeHop(const VerbsChannel::Arrival& arrival, HopHeader* out, const std::byte** payload) {
  const int slot = arrival.slot;
  if ((open_slots_ & Bit(slot)) != 0) return Lose(slot, "hop to a slot whose last hop has no reply yet");
  MessageLine line;
  if (const char* defect = parts_.channel.TakeLine(arrival, &line)) return Lose(slot, defect);
  HopHeader hop;
  HeaderOf(line, &hop);
  if (const char* defect = HopDefect(hop, slot, epoch_, size_)) return Lose(slot, defect);
  if (const char* defect = parts_.channel.CheckPayload(arrival, line, hop.payload_bytes)) return Lose(slot, defect);
  open_slots_ |= Bit(slot);
  *out = hop;
  *payload = parts_.channel.in_payload(slot);
  return LinkPoll::kMessage;
}

std::byte* VerbsHomeLink::ReplyArea(int slot) {
  FD_CHECK(slot >= 0 && slot < size_.slots, "slot out of range");
  return parts_.channel.out_payload(slot);
}

void VerbsHomeLink::PostReply(const ReplyHeader& header) {
  if (lost()) return;
  const int slot = header.micro_batch;
  FD_CHECK(slot < size_.slots && (open_slots_ & Bit(slot)) != 0, "reply to a slot without an open hop");
  FD_CHECK(header.payload_bytes <= size_.reply_payload_bytes_max, "reply size");
  ReplyHeader reply = header;
  reply.epoch = epoch_;
  const auto words = ToWords(reply);
  parts_.channel.PostSlot(slot, words.data(), words.size(), reply.payload_bytes);
  open_slots_ &= ~Bit(slot);
}

LinkPoll VerbsHomeLink::PollControl(void* buffer, size_t* bytes) {
  if (lost()) return LinkPoll::kLost;
  if (parts_.channel.NextControl(buffer, bytes)) return LinkPoll::kMessage;
  return lost() ? LinkPoll::kLost : LinkPoll::kEmpty;
}

bool VerbsHomeLink::TrySendControl(const void* message, size_t bytes) {
  return parts_.channel.TrySendControl(message, bytes);
}

LinkPoll VerbsHomeLink::PollBulk(const std::byte** segment, size_t* bytes) {
  if (lost()) return LinkPoll::kLost;
  if (parts_.bulk == nullptr) return LinkPoll::kEmpty;
  // A leader that has just polled for hops has polled for segments, too.
  if (polls_seen_ == parts_.channel.polls()) parts_.channel.Poll();
  polls_seen_ = parts_.channel.polls();
  if (parts_.bulk->Next(segment, bytes)) return LinkPoll::kMessage;
  return lost() ? LinkPoll::kLost : LinkPoll::kEmpty;
}

void VerbsHomeLink::FreeBulk() {
  if (lost()) return;
  FD_CHECK(parts_.bulk != nullptr, "the link has no bulk channel");
  parts_.bulk->Free();
  parts_.channel.ReturnBulkCredit();
}

}  // namespace fastdecode
