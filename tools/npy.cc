#include "tools/npy.h"

#include <cerrno>
#include <cstdio>
#include <cstring>

#include "engine/fastdecode.hpp"

namespace fastdecode {

void WriteNpy(const std::string& path, const float* values, size_t rows, size_t columns) {
  const std::string temporary = path + ".tmp";
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (" + std::to_string(rows) + ", " +
                       std::to_string(columns) + "), }";
  // Magic, version and length are 10 bytes; the data starts at a multiple of 64.
  header.append(63 - (10 + header.size()) % 64, ' ');
  header += '\n';
  const char prefix[10] = {'\x93', 'N', 'U', 'M', 'P', 'Y', 1, 0, static_cast<char>(header.size() & 0xff),
                           static_cast<char>(header.size() >> 8)};
  std::FILE* file = std::fopen(temporary.c_str(), "wb");
  bool written = file != nullptr && std::fwrite(prefix, 1, sizeof(prefix), file) == sizeof(prefix) &&
                 std::fwrite(header.data(), 1, header.size(), file) == header.size() &&
                 std::fwrite(values, sizeof(float), rows * columns, file) == rows * columns;
  if (file != nullptr) written = std::fclose(file) == 0 && written;
  if (written && std::rename(temporary.c_str(), path.c_str()) == 0) return;
  const std::string reason = std::strerror(errno);
  std::remove(temporary.c_str());
  throw Error(FD_PERMISSION_DENIED, path + ": cannot be written: " + reason);
}

}  // namespace fastdecode
