#ifndef FASTDECODE_TESTS_TESTS_FOLDER_H_
#define FASTDECODE_TESTS_TESTS_FOLDER_H_

#include <cstdlib>
#include <string>

namespace fastdecode {

// Tests run where they were built, or in a bundle elsewhere (tools/gpu-check), which says by the environment where their
// files are.

inline std::string FromEnvironment(const char* name, const char* otherwise) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : otherwise;
}
// The folder that has golden/.
inline std::string TestsFolder() { return FromEnvironment("FASTDECODE_TESTS_DIR", FASTDECODE_TESTS_DIR); }
// The module for GPUs; `built`: where it was built, or empty.
inline std::string CudaModule(const char* built) { return FromEnvironment("FASTDECODE_CUDA_MODULE", built); }

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_TESTS_FOLDER_H_
