#ifndef FASTDECODE_NUMA_OPENMP_BINDING_H_
#define FASTDECODE_NUMA_OPENMP_BINDING_H_

#include <string>

#include "numa/topology.h"

namespace fastdecode {

// What makes OpenMP's runtime bind the thread that loads it, and so all that it starts.
inline constexpr char kOpenMpBindingVariables[] = "OMP_PROC_BIND, OMP_PLACES or GOMP_CPU_AFFINITY";

// Whether OpenMP's runtime, which oneDNN brings along, was told to bind threads to cores. False where it is not loaded.
bool OpenMpBindsThreads();

// A warning for people if it was and this process may not use all cores that are online; else empty.
std::string DescribeOpenMpBinding(const Topology& topology);

}  // namespace fastdecode

#endif  // FASTDECODE_NUMA_OPENMP_BINDING_H_
