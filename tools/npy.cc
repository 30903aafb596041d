#include "tools/npy.h"

#include <ostream>

#include "tools/output.h"

namespace fastdecode {

namespace {

// Magic, version, length of the rest, and a dictionary padded so that the data starts at a multiple of 64.
std::string Header(size_t rows, size_t columns) {
  std::string dictionary = "{'descr': '<f4', 'fortran_order': False, 'shape': (" + std::to_string(rows) + ", " +
                           std::to_string(columns) + "), }";
  dictionary.append(63 - (10 + dictionary.size()) % 64, ' ');
  dictionary += '\n';
  std::string header("\x93NUMPY\x01\x00", 8);
  header += static_cast<char>(dictionary.size() & 0xff);
  header += static_cast<char>(dictionary.size() >> 8);
  return header + dictionary;
}

}  // namespace

void WriteNpy(const std::string& context, const std::string& path, const float* values, size_t rows, size_t columns) {
  WriteFile(context, path, [&](std::ostream& out) {
    out << Header(rows, columns);
    out.write(reinterpret_cast<const char*>(values), static_cast<std::streamsize>(rows * columns * sizeof(float)));
  });
}

}  // namespace fastdecode
