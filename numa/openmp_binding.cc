#include "numa/openmp_binding.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

namespace fastdecode {

// The runtime is asked, for nothing here needs it.
bool OpenMpBindsThreads() {
  const auto get_proc_bind = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_proc_bind"));
  return get_proc_bind != nullptr && get_proc_bind() != 0;  // 0: omp_proc_bind_false
}

std::string DescribeOpenMpBinding(const Topology& topology) {
  if (topology.barred_cores.empty() || !OpenMpBindsThreads()) return "";
  return absl::StrCat("this process may use only core(s) ", FormatCores(topology.AllowedCores()), ", not ",
                      FormatCores(topology.barred_cores), ", and OpenMP's runtime was told to bind it; unset ",
                      kOpenMpBindingVariables);
}

}  // namespace fastdecode
