#ifndef FASTDECODE_ENGINE_API_STATUS_H_
#define FASTDECODE_ENGINE_API_STATUS_H_

#include <fastdecode/fastdecode.h>

#include <string>
#include <system_error>

#include "absl/status/status.h"

struct fd_status {
  fd_code code;
  std::string message;
};

namespace fastdecode {

// Null for what is no error; the caller destroys the others.
fd_status* ToStatus(const absl::Status& status);
fd_status* ToStatus(const std::system_error& error);
// InvalidArgument with this text; null if it is empty.
fd_status* ToStatus(const std::string& wrong);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_API_STATUS_H_
