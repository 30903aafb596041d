#ifndef FASTDECODE_RDMA_VERBS_VERBS_CHANNEL_H_
#define FASTDECODE_RDMA_VERBS_VERBS_CHANNEL_H_

#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "rdma/link.h"
#include "rdma/verbs/verbs_bulk.h"
#include "rdma/verbs/verbs_end.h"
#include "rdma/verbs/verbs_liveness.h"
#include "rdma/verbs/verbs_queues_fastpath.h"
#include "rdma/verbs/verbs_wire.h"

namespace fastdecode {

// The hop and control channel of one end: slots and a control ring in either direction over one queue pair. Every work
// request is built when the link is; posting patches what changes. The send queue cannot overflow: a post that finds no
// room waits for the next Poll (slots, ring, credits) or is refused (control messages).
//
// Who writes what the peer reads, and how it learns of it:
//   slots, control ring: the peer reads them after the completion that carries the ImmData, never before
//   credit line: the peer polls its words
// Polls the link's completion queue, and hands on what concerns the bulk channel.
// Owns: the work requests. Bounded: at most one message a slot and kControlWindow control messages each way.
// Thread: the data thread alone.
class VerbsChannel {
 public:
  // A slot that the peer says it has written.
  struct Arrival {
    int slot = 0;
    uint32_t written_bytes = 0;  // by the write that brought the notification: all of a message, or its line
  };

  // `own`, `theirs`: what this end's slot messages and the peer's are. `liveness` and `bulk` (null: there is none) must
  // outlive it.
  VerbsChannel(const VerbsWiring& wiring, MessageKind own, MessageKind theirs, VerbsLiveness* liveness,
               VerbsBulk* bulk);

  // Its work requests point at each other.
  VerbsChannel(const VerbsChannel&) = delete;
  VerbsChannel& operator=(const VerbsChannel&) = delete;

  std::byte* out_payload(int slot) const { return wiring_.out_payload.data + wiring_.out_layout.payload_offset(slot); }
  const std::byte* in_payload(int slot) const {
    return wiring_.in_payload.data + wiring_.in_layout.payload_offset(slot);
  }

  // Sends header (ToWords: at most MessageLine::kHeaderWordsMax) and payload of a slot. REQUIRES: the slot's last
  // message was answered; payload_bytes within the layout.
  void PostSlot(int slot, const uint64_t* header, size_t header_words, size_t payload_bytes);

  // Takes completions in and posts what had to wait. Errors lose the link.
  void Poll();
  // Calls of Poll so far.
  uint64_t polls() const { return polls_; }
  // The oldest arrival that was not taken yet; polls if there is none.
  bool NextArrival(Arrival* out);
  // Copies the arrival's line, which the peer can change no more, and checks its sequence. Null, or what is wrong.
  const char* TakeLine(const Arrival& arrival, MessageLine* line);
  // After the header was validated: whether as much was written as it says, and the checksum. Null, or what is wrong.
  const char* CheckPayload(const Arrival& arrival, const MessageLine& line, size_t payload_bytes) const;

  bool TrySendControl(const void* message, size_t bytes);
  // False: nothing there, or the link is lost.
  bool NextControl(void* buffer, size_t* bytes);
  // After bulk segments were freed.
  void ReturnBulkCredit();
  // A completion that wakes the peer's sleeper; behind all that was posted.
  void Ring();
  // Whether a ring came since the last call. Thread: the sleeper, which may be another than the data thread.
  bool TakeRing();

  // For tests: work requests in the send queue that nothing is known of.
  uint64_t in_flight() const { return sends_.in_flight(); }

 private:
  static constexpr int kPollBatch = 16;

  // The work requests of a slot: `whole` for a short message, else `chain`, pieces of chunk_bytes of payload, and
  // `line` behind them. Each points at its pieces.
  struct SlotRequests {
    ibv_send_wr whole = {};
    std::array<ibv_sge, 2> whole_pieces = {};  // one, if line and payload lie together
    std::vector<ibv_send_wr> chain;
    std::vector<ibv_sge> chain_pieces;
    ibv_send_wr line = {};
    ibv_sge line_piece = {};
  };

  void BuildSlots();
  void BuildControl();

  // verbs_link_fastpath.cc
  uint64_t RequestsOf(size_t payload_bytes) const;
  void PostSlotNow(int slot);
  void PostWhole(SlotRequests* requests, int slot, size_t payload_bytes);
  void PostNotified(int slot, ibv_send_wr* first, ibv_send_wr* last, uint64_t count);
  ibv_send_wr* PatchChain(SlotRequests* requests, int slot, size_t payload_bytes);
  void Post(ibv_send_wr* first, ibv_send_wr* last, uint64_t requests);
  void PostWaiting();
  void TakeCompletion(const ibv_wc& completion);
  void TakeNotification(const ibv_wc& completion);
  void TakeSlotNotification(const ImmData& data, uint32_t written_bytes);
  void TakeControlNotification(const ImmData& data);
  void PostReceives();
  bool HasCredit(size_t ring_bytes) const;
  bool GetCredit(size_t ring_bytes);
  void PostControl(uint64_t index, size_t bytes);
  uint32_t ControlTag(uint64_t sequence, const void* message, size_t bytes) const;
  void CopyToRing(uint64_t index, const void* from, size_t bytes);
  void CopyFromRing(uint64_t index, void* to, size_t bytes) const;
  bool OwesCredit() const {
    return in_messages_ != returned_messages_ || (bulk_ != nullptr && bulk_->freed() != returned_segments_);
  }
  void ReturnCredit();
  void Lose(const char* defect, int slot = -1);
  bool Stopped() const { return failed_ || liveness_->lost(); }

  // Constant after construction.
  const VerbsWiring wiring_;
  const MessageKind own_kind_;
  const MessageKind their_kind_;
  VerbsLiveness* const liveness_;
  VerbsBulk* const bulk_;

  SendQueue sends_;
  ReceiveQueue receives_;
  uint32_t waiting_slots_ = 0;  // bit per slot: to be posted when there is room
  bool waiting_ring_ = false;
  uint64_t polls_ = 0;
  bool failed_ = false;  // a completion said so: nothing is posted any more

  // Arrivals, oldest first.
  std::array<Arrival, kMaxSlots> arrivals_;
  uint32_t arrivals_head_ = 0;
  uint32_t arrivals_count_ = 0;
  uint32_t arrived_slots_ = 0;  // bit per slot: in arrivals_

  // Slots.
  std::array<uint64_t, kMaxSlots> out_sequence_ = {};
  std::array<uint64_t, kMaxSlots> in_sequence_ = {};
  std::array<size_t, kMaxSlots> out_bytes_ = {};  // of the last message's payload
  std::vector<SlotRequests> slots_;

  // Control, outwards: what was sent, and what the peer has said to have consumed.
  uint64_t out_ring_bytes_ = 0;
  uint64_t out_messages_ = 0;  // rings included
  uint64_t out_written_ = 0;   // messages put into the ring
  uint64_t credit_bytes_ = 0;
  uint64_t credit_messages_ = 0;
  std::array<ibv_send_wr, 2> control_ = {};  // two where a message goes round the ring's end
  std::array<ibv_sge, 2> control_pieces_ = {};
  ibv_send_wr ring_ = {};

  // Control, inwards: what was announced, consumed, and returned as credit.
  uint64_t in_announced_ = 0;  // messages, rings included
  uint64_t in_waiting_ = 0;    // announced messages in the ring, not yet read
  uint64_t in_messages_ = 0;   // consumed, rings included
  uint64_t in_ring_bytes_ = 0;
  uint64_t returned_messages_ = 0;
  uint64_t returned_ring_bytes_ = 0;
  uint64_t returned_segments_ = 0;
  uint64_t in_read_ = 0;           // messages taken out of the ring
  std::atomic<bool> rung_{false};  // read by whoever sleeps for the data thread
  ibv_send_wr credit_ = {};
  ibv_sge credit_piece_ = {};
};

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_VERBS_VERBS_CHANNEL_H_
