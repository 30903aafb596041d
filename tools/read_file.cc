#include "tools/read_file.h"

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fastdecode/fastdecode.hpp>

namespace fastdecode {

std::string ReadFile(const std::string& path) {
  std::FILE* file = path == "-" ? stdin : std::fopen(path.c_str(), "rb");
  std::string text;
  if (file != nullptr) {
    char part[1 << 16];
    while (const size_t bytes = std::fread(part, 1, sizeof(part), file)) text.append(part, bytes);
  }
  if (file == nullptr || std::ferror(file) != 0) {
    throw Error(FD_NOT_FOUND, (path == "-" ? "standard input" : path) + ": cannot be read: " + std::strerror(errno));
  }
  if (file != stdin) std::fclose(file);
  return text;
}

}  // namespace fastdecode
