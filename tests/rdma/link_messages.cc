#include "tests/rdma/link_messages.h"

namespace fastdecode {

namespace {

std::byte PatternAt(size_t i, uint64_t seed) { return static_cast<std::byte>((i * 2654435761u >> 7) + seed * 31); }

}  // namespace

void FillPattern(std::byte* to, size_t bytes, uint64_t seed) {
  for (size_t i = 0; i < bytes; ++i) to[i] = PatternAt(i, seed);
}

bool HasPattern(const std::byte* at, size_t bytes, uint64_t seed) {
  for (size_t i = 0; i < bytes; ++i) {
    if (at[i] != PatternAt(i, seed)) return false;
  }
  return true;
}

LinkSize SmallSize() {
  return {.slots = 3,
          .hop_payload_bytes_max = 200,
          .reply_payload_bytes_max = 100,
          .control_ring_bytes = 4096,
          .bulk_segments = 3,
          .bulk_segment_bytes_max = 500};
}

HopHeader Hop(int slot, uint64_t step, int layer) {
  HopHeader hop;
  hop.step = step;
  hop.roster_version = 4;
  hop.rows = 2;
  hop.payload_bytes = 200;
  hop.layer = static_cast<uint16_t>(layer);
  hop.micro_batch = static_cast<uint8_t>(slot);
  return hop;
}

ReplyHeader ReplyTo(const HopHeader& hop) {
  ReplyHeader reply;
  reply.step = hop.step;
  reply.layer = hop.layer;
  reply.micro_batch = hop.micro_batch;
  reply.payload_bytes = 100;
  return reply;
}

}  // namespace fastdecode
