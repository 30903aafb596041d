#ifndef FASTDECODE_TOOLS_BENCH_MEMORY_PASS_H_
#define FASTDECODE_TOOLS_BENCH_MEMORY_PASS_H_

#include <cstddef>
#include <cstdint>

#include "kernels/memory_stream.h"
#include "numa/ticket_team.h"

namespace fastdecode {

enum class MemoryOperation {
  kRead,
  kWrite,  // past the caches
  kCopy,   // the first half of a share to its second, past the caches
};

// One pass of a team over memory: what a kernel that does nothing else gets. Every thread has a share of its own, from
// start to end. Owns: nothing. Thread: the team's owner.
struct MemoryPass {
  std::byte* data = nullptr;  // page-aligned
  size_t bytes = 0;
  MemoryOperation operation = MemoryOperation::kRead;
  ReadStreams streams = ReadStreams::kOne;  // of kRead

  // Returns ns of wall time.
  uint64_t Run(TicketTeam* team);
  // Read and written together: all shares, which are of whole pages of 4 KiB.
  size_t BytesMoved(int threads) const;

 private:
  size_t ShareBytes(int threads) const;
  static void RunShare(void* context, int thread, int threads);
};

// The faster way to read the pass's memory with this team: the better of some passes each.
ReadStreams FasterStreams(MemoryPass pass, TicketTeam* team);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_BENCH_MEMORY_PASS_H_
