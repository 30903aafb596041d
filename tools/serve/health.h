#ifndef FASTDECODE_TOOLS_SERVE_HEALTH_H_
#define FASTDECODE_TOOLS_SERVE_HEALTH_H_

#include <fastdecode/fastdecode.h>

#include <cstdint>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"

namespace fastdecode::serve {

// Whether the engine makes progress: it has ended a step lately, or had nothing to do. Thread: the I/O thread.
class Health {
 public:
  // `stall_ns`: so long may requests wait for the end of a step.
  explicit Health(uint64_t stall_ns) : stall_ns_(stall_ns) {}

  // Looks at the engine. Called every second or so, and before each question.
  void Look(const fd_engine* engine);

  // Requests run or wait, and no step has ended for too long.
  bool stalled() const { return StepAge() > stall_ns_; }
  const fd_stats& stats() const { return stats_; }
  const std::vector<fd_home_stats>& homes() const { return homes_; }
  // What GET /health says.
  nlohmann::ordered_json Report() const;

 private:
  // Since the last step ended, or since there was nothing to do.
  uint64_t StepAge() const;

  const uint64_t stall_ns_;
  fd_stats stats_ = {};
  std::vector<fd_home_stats> homes_;
  uint64_t idle_ns_ = 0;  // engine clock: when there was nothing to do last
};

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_HEALTH_H_
