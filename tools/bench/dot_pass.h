#ifndef FASTDECODE_TOOLS_BENCH_DOT_PASS_H_
#define FASTDECODE_TOOLS_BENCH_DOT_PASS_H_

#include <cstdint>

#include "kernels/dot_loop.h"
#include "numa/ticket_team.h"

namespace fastdecode {

// All threads of a team at a DotLoop for some 20 ms: what a kernel gets that waits for nothing. Thread: the team's
// owner.
class DotPass {
 public:
  explicit DotPass(const DotLoop& loop);

  const char* instruction() const { return loop_.instruction; }
  // Of all threads together.
  double GflopPerS(TicketTeam* team);

 private:
  static void RunShare(void* context, int thread, int threads);

  const DotLoop loop_;
  uint64_t runs_ = 0;  // of each thread
};

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_BENCH_DOT_PASS_H_
