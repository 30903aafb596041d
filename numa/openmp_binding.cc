#include "numa/openmp_binding.h"

#include <dlfcn.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "numa/topology.h"

namespace fastdecode {

// The runtime is asked, for nothing here needs it.
bool OpenMpBindsThreads() {
  const auto get_proc_bind = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "omp_get_proc_bind"));
  return get_proc_bind != nullptr && get_proc_bind() != 0;  // 0: omp_proc_bind_false
}

std::string DescribeOpenMpBinding(const std::vector<int>& allowed_cores) {
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  if (static_cast<long>(allowed_cores.size()) >= online || !OpenMpBindsThreads()) return "";
  return absl::StrCat("this process may use only core(s) ", FormatCores(allowed_cores), " of ", online,
                      ": OpenMP's runtime has bound it to them; unset ", kOpenMpBindingVariables);
}

}  // namespace fastdecode
