#ifndef FASTDECODE_RDMA_VERBS_VERBS_ORDER_PROBE_H_
#define FASTDECODE_RDMA_VERBS_VERBS_ORDER_PROBE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "rdma/link.h"
#include "rdma/verbs/verbs_channel.h"
#include "rdma/verbs/verbs_liveness.h"

namespace fastdecode {

// Whether on this path a slot's flag really comes behind its message, in either direction: no standard says so for the
// memory that a CPU polls. Messages of many lengths go back and forth over the slots that hops will use; whoever sees a
// flag looks at once at every word of what it announces. That it was in place each time is no proof; that it was not,
// once, is one, and ends the link with an error.
// Both ends run it at once, when both are connected and before anything else is sent.
struct OrderProbe {
  static constexpr int kRounds = 96;
  static constexpr size_t kPayloadBytesMax = 64 << 10;

  VerbsChannel* channel;
  VerbsLiveness* liveness;
  LinkSize size;
  uint64_t deadline_ns;   // NowNs()
  uint64_t round_ns_max;  // no round takes longer

  // Errors: FailedPrecondition, naming what came too late; Unavailable if the peer says so, or is gone;
  // DeadlineExceeded. The link is lost then, with the same text for its peer. Thread: one, before there is a data
  // thread.
  absl::Status RunAsEngine();
  absl::Status RunAsHome();

 private:
  void Send(int round, size_t payload_bytes_max);
  absl::Status Await(int round, size_t payload_bytes_max);
  absl::Status Lose(absl::Status status);
};

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_VERBS_VERBS_ORDER_PROBE_H_
