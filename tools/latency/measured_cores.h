#ifndef FASTDECODE_TOOLS_LATENCY_MEASURED_CORES_H_
#define FASTDECODE_TOOLS_LATENCY_MEASURED_CORES_H_

#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "numa/core_reservation.h"

namespace fastdecode {

// Which cores a command measures that is about cores alone: those asked for, else those that an engine of this host
// would take. Nobody of FastDecode starts on them meanwhile.
class MeasuredCores {
 public:
  void AddTo(CLI::App* command);  // --cores

  // Chooses and reserves. Throws Error naming --cores and what is allowed. Says on stderr which of them a process of
  // FastDecode has already: it will be seen, and disturbed. Thread: one that is not pinned.
  const std::vector<int>& Take();

 private:
  std::string asked_;
  std::vector<int> cores_;
  CoreReservation reservation_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_MEASURED_CORES_H_
