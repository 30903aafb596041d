#include "engine/api/status.h"

namespace fastdecode {

fd_status* ToStatus(const absl::Status& status) {
  if (status.ok()) return nullptr;
  fd_code code = FD_INTERNAL;
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
      code = FD_INVALID_ARGUMENT;
      break;
    case absl::StatusCode::kNotFound:
      code = FD_NOT_FOUND;
      break;
    case absl::StatusCode::kAlreadyExists:
      code = FD_ALREADY_EXISTS;
      break;
    case absl::StatusCode::kPermissionDenied:
      code = FD_PERMISSION_DENIED;
      break;
    case absl::StatusCode::kResourceExhausted:
      code = FD_RESOURCE_EXHAUSTED;
      break;
    case absl::StatusCode::kFailedPrecondition:
      code = FD_FAILED_PRECONDITION;
      break;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      code = FD_UNAVAILABLE;
      break;
    default:
      break;
  }
  return new fd_status{code, std::string(status.message())};
}

fd_status* ToStatus(const std::system_error& error) {
  const bool no_thread_left = error.code() == std::errc::resource_unavailable_try_again;
  return new fd_status{no_thread_left ? FD_RESOURCE_EXHAUSTED : FD_INTERNAL, error.what()};
}

fd_status* ToStatus(const std::string& wrong) {
  return wrong.empty() ? nullptr : new fd_status{FD_INVALID_ARGUMENT, wrong};
}

}  // namespace fastdecode
