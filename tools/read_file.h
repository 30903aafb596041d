#ifndef FASTDECODE_TOOLS_READ_FILE_H_
#define FASTDECODE_TOOLS_READ_FILE_H_

#include <string>

namespace fastdecode {

// All of a file; - is stdin. Throws Error naming the path.
std::string ReadFile(const std::string& path);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_READ_FILE_H_
