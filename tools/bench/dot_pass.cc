#include "tools/bench/dot_pass.h"

#include <algorithm>

#include "numa/clock.h"

namespace fastdecode {

DotPass::DotPass(const DotLoop& loop) : loop_(loop) {
  uint64_t least_ns = UINT64_MAX;  // the first times are slower
  for (int i = 0; i < 20; ++i) {
    const uint64_t start_ns = NowNs();
    loop_.run();
    least_ns = std::min(least_ns, NowNs() - start_ns);
  }
  runs_ = 20'000'000 / std::max<uint64_t>(least_ns, 1) + 1;
}

double DotPass::GflopPerS(TicketTeam* team) {
  const uint64_t start_ns = NowNs();
  team->Run(&RunShare, this);
  return loop_.flop * static_cast<double>(runs_) * team->thread_count() / static_cast<double>(NowNs() - start_ns);
}

void DotPass::RunShare(void* context, int, int) {
  const DotPass& self = *static_cast<const DotPass*>(context);
  for (uint64_t i = 0; i < self.runs_; ++i) self.loop_.run();
}

}  // namespace fastdecode
