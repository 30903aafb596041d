#ifndef FASTDECODE_RDMA_WIRE_CHECK_H_
#define FASTDECODE_RDMA_WIRE_CHECK_H_

#include <cstdint>

#include "rdma/link.h"
#include "rdma/wire.h"

namespace fastdecode {

// The rules that every header from the other end must obey, for all providers. Each takes a private copy and returns
// what is wrong with it, or null.

inline const char* HopDefect(const HopHeader& hop, int slot, uint64_t epoch, const LinkSize& size) {
  if (hop.epoch != epoch) return "hop header of another epoch";
  if (hop.micro_batch != slot) return "hop header of another slot";
  if (hop.rows == 0) return "hop header without rows";
  if (hop.payload_bytes > size.hop_payload_bytes_max) return "hop payload larger than agreed";
  return nullptr;
}

// `hop`: the open hop that `reply` claims to answer, as it was posted with the link's epoch.
inline const char* ReplyDefect(const ReplyHeader& reply, const HopHeader& hop, const LinkSize& size) {
  if (reply.epoch != hop.epoch) return "reply header of another epoch";
  if (reply.micro_batch != hop.micro_batch) return "reply header of another slot";
  if (reply.step != hop.step) return "reply to another step than the slot's open hop";
  if (reply.layer != hop.layer) return "reply to another layer than the slot's open hop";
  if (reply.payload_bytes > size.reply_payload_bytes_max) return "reply payload larger than agreed";
  switch (reply.status) {
    case HopStatus::kOk:
    case HopStatus::kBadHop:
      return nullptr;
    case HopStatus::kBadRow:
      return reply.failing_row < hop.rows ? nullptr : "reply names a failing row that the hop has not";
  }
  return "reply with an unknown status";
}

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_WIRE_CHECK_H_
