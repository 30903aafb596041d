#include "tools/bench/memory_pass.h"

#include <algorithm>
#include <limits>

#include "numa/clock.h"

namespace fastdecode {

namespace {

// Halves of a page are whole blocks of the streams.
constexpr size_t kShareAlign = 4096;
// Of a read in four places: near each other, as the pages of a page table are.
constexpr size_t kPieceBytes = size_t{1} << 20;

}  // namespace

uint64_t MemoryPass::Run(TicketTeam* team) {
  const uint64_t start_ns = NowNs();
  team->Run(&RunShare, this);
  return NowNs() - start_ns;
}

size_t MemoryPass::ShareBytes(int threads) const {
  return bytes / static_cast<size_t>(threads) / kShareAlign * kShareAlign;
}

size_t MemoryPass::BytesMoved(int threads) const { return ShareBytes(threads) * static_cast<size_t>(threads); }

void MemoryPass::RunShare(void* context, int thread, int threads) {
  const MemoryPass& self = *static_cast<const MemoryPass*>(context);
  const size_t share_bytes = self.ShareBytes(threads);
  std::byte* const share = self.data + static_cast<size_t>(thread) * share_bytes;
  volatile uint64_t sink = 0;
  switch (self.operation) {
    case MemoryOperation::kRead:
      for (size_t at = 0; at < share_bytes; at += kPieceBytes) {
        sink = sink ^ ReadStream(share + at, std::min(kPieceBytes, share_bytes - at), self.streams);
      }
      return;
    case MemoryOperation::kWrite:
      return WriteStream(share, share_bytes, 0);
    case MemoryOperation::kCopy:
      return CopyStream(share + share_bytes / 2, share, share_bytes / 2);
  }
}

ReadStreams FasterStreams(MemoryPass pass, TicketTeam* team) {
  constexpr int kPasses = 3;
  pass.operation = MemoryOperation::kRead;
  ReadStreams faster = ReadStreams::kOne;
  uint64_t best_ns = std::numeric_limits<uint64_t>::max();
  for (int i = 0; i < kPasses; ++i) {
    for (const ReadStreams streams : {ReadStreams::kOne, ReadStreams::kFour}) {
      pass.streams = streams;
      const uint64_t ns = pass.Run(team);
      if (ns < best_ns) {
        best_ns = ns;
        faster = streams;
      }
    }
  }
  return faster;
}

}  // namespace fastdecode
