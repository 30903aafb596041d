#ifndef FASTDECODE_TOOLS_NPY_H_
#define FASTDECODE_TOOLS_NPY_H_

#include <cstddef>
#include <string>

namespace fastdecode {

// Writes a float32 [rows][columns] array as a NumPy file (format 1.0), as WriteFile does.
void WriteNpy(const std::string& context, const std::string& path, const float* values, size_t rows, size_t columns);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_NPY_H_
