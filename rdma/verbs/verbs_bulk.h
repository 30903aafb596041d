#ifndef FASTDECODE_RDMA_VERBS_VERBS_BULK_H_
#define FASTDECODE_RDMA_VERBS_VERBS_BULK_H_

#include <infiniband/verbs.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "rdma/verbs/verbs_end.h"
#include "rdma/verbs/verbs_liveness.h"
#include "rdma/verbs/verbs_queues_fastpath.h"
#include "rdma/verbs/verbs_wire.h"

namespace fastdecode {

// The bulk channel of one end: a ring of segments from engine to home over a queue pair of its own, so that a hop waits
// behind no segment in a send queue. Each is one WRITE_WITH_IMM, solicited, so that it wakes a home that sleeps. Its
// completions come through the link's one completion queue, and VerbsChannel hands them over; the home's count of freed
// segments goes back on VerbsChannel's credit line.
// Owns: the work requests. Bounded: as many segments as the link has.
// Thread: the data thread alone.
class VerbsBulk {
 public:
  // `liveness` must outlive it. REQUIRES: the wiring has a bulk channel.
  VerbsBulk(const VerbsWiring& wiring, VerbsLiveness* liveness);

  // Its work request points at its pieces.
  VerbsBulk(const VerbsBulk&) = delete;
  VerbsBulk& operator=(const VerbsBulk&) = delete;

  // verbs_bulk_fastpath.cc
  // ---- The engine's end: see EngineLink ----
  std::byte* Area();
  void Post(size_t bytes);
  uint64_t Credit();

  // ---- The home's end: see HomeLink ----
  bool Next(const std::byte** segment, size_t* bytes);
  void Free();
  // Segments since the link was made; and whether enough are freed that the engine should hear of it soon.
  uint64_t freed() const { return freed_; }
  bool OwesCredit(uint64_t returned) const { return freed_ - returned >= (wiring_.bulk_layout.segments() + 3) / 4; }

  // A completion of this queue pair. Errors lose the link.
  void TakeCompletion(const ibv_wc& completion);
  // Posts used receives again.
  void PostReceives();

 private:
  void TakeCredit();
  uint64_t Tag(uint64_t number, const std::byte* segment, size_t bytes) const;
  void Lose(const char* defect);
  bool Stopped() const { return failed_ || liveness_->lost(); }

  // Constant after construction.
  const VerbsWiring wiring_;
  VerbsLiveness* const liveness_;

  bool failed_ = false;  // a completion or a call said so: nothing is posted any more

  // The engine's end: written - segments <= credit <= written.
  SendQueue sends_;
  uint64_t written_ = 0;  // segments
  uint64_t credit_ = 0;   // those that the home has freed, as far as we know
  ibv_send_wr request_ = {};
  std::array<ibv_sge, 2> pieces_ = {};  // segment, trailer

  // The home's end: freed <= given <= arrived <= freed + segments.
  ReceiveQueue receives_;
  uint64_t arrived_ = 0;
  uint64_t given_ = 0;
  uint64_t freed_ = 0;
  std::array<uint32_t, kBulkSegmentsMax> bytes_ = {};  // of the segments that have arrived
};

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_VERBS_VERBS_BULK_H_
