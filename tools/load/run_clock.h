#ifndef FASTDECODE_TOOLS_LOAD_RUN_CLOCK_H_
#define FASTDECODE_TOOLS_LOAD_RUN_CLOCK_H_

#include <time.h>

#include <cstdint>

#include "numa/clock.h"
#include "tools/load/result.h"

namespace fastdecode::load {

// Times one run, and what its thread spends of the time. Thread: one.
class RunClock {
 public:
  explicit RunClock(LoadRun* run) : run_(run), cpu_start_ns_(CpuNs()) { run->start_ns = Now(); }
  // Calls after the first have no effect.
  void Stop() {
    if (run_->end_ns != 0) return;
    run_->end_ns = Now();
    run_->cpu_ns = CpuNs() - cpu_start_ns_;
  }
  static int64_t Now() { return static_cast<int64_t>(NowNs()); }

 private:
  static int64_t CpuNs() {
    timespec used;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
    return static_cast<int64_t>(used.tv_sec) * 1'000'000'000 + used.tv_nsec;
  }

  LoadRun* const run_;
  const int64_t cpu_start_ns_;
};

}  // namespace fastdecode::load

#endif  // FASTDECODE_TOOLS_LOAD_RUN_CLOCK_H_
