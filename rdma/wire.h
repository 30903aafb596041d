#ifndef FASTDECODE_RDMA_WIRE_H_
#define FASTDECODE_RDMA_WIRE_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace fastdecode {

// What crosses a link on the hop channel. Both ends run on little-endian machines; every field is copied out of shared
// memory before it is validated, and validated before it is used.

inline constexpr uint32_t kProtocolVersion = 1;

// Engine -> home: one hop of one micro-batch. `payload_bytes` of rows follow in the slot's payload area.
struct HopHeader {
  uint64_t epoch = 0;             // of the link; anything else is a stale message
  uint64_t step = 0;              // counts the steps of the micro-batch, from 1
  uint32_t roster_version = 0;    // the roster that says whose rows these are
  uint32_t rows = 0;              // > 0
  uint32_t payload_bytes = 0;
  uint16_t layer = 0;
  uint8_t micro_batch = 0;        // = the slot
  uint8_t reserved = 0;
};
static_assert(sizeof(HopHeader) == 32 && std::is_trivially_copyable_v<HopHeader>);

// How a hop ended at the home.
enum class HopStatus : uint8_t {
  kOk = 0,
  kBadRow = 1,        // `failing_row` cannot be computed (position out of order, no page left): one sequence ends
  kBadHop = 2,        // header or roster do not fit together: the link ends
};

// Home -> engine: o of that hop, and where the home's time went (its own clock, nanoseconds).
struct ReplyHeader {
  uint64_t epoch = 0;
  uint64_t step = 0;
  uint32_t failing_row = 0;       // with kBadRow
  uint32_t payload_bytes = 0;
  uint32_t idle_ns = 0;           // polled in vain before this hop came; 0: it may have waited for the leader
  uint32_t work_ns = 0;           // hop seen -> last thread finished
  uint16_t layer = 0;
  uint8_t micro_batch = 0;
  HopStatus status = HopStatus::kOk;
  uint32_t reserved = 0;
};
static_assert(sizeof(ReplyHeader) == 40 && std::is_trivially_copyable_v<ReplyHeader>);

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_WIRE_H_
