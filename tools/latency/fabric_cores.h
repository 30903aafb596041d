#ifndef FASTDECODE_TOOLS_LATENCY_FABRIC_CORES_H_
#define FASTDECODE_TOOLS_LATENCY_FABRIC_CORES_H_

#include <cstddef>
#include <string>
#include <vector>

#include "numa/core_reservation.h"

namespace fastdecode {

// The cores of the threads of `latency fabric` in this process. Nobody of FastDecode starts on them meanwhile, the
// other end on this machine neither.
class FabricCores {
 public:
  // `asked`: the value of --cores, for the first threads; the others get the last cores that nobody of FastDecode has,
  // while there are any. Throws Error naming --cores and what is allowed. Says on stderr which cores another process of
  // FastDecode has too. Thread: one that is not pinned.
  FabricCores(const std::string& asked, size_t threads);

  // Of thread `index`, below `threads`.
  int operator[](size_t index) const { return cores_[index]; }

 private:
  std::vector<int> cores_;
  CoreReservation reservation_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_FABRIC_CORES_H_
