#ifndef FASTDECODE_RDMA_TCP_SECRET_H_
#define FASTDECODE_RDMA_TCP_SECRET_H_

#include <sys/types.h>

#include <array>
#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace fastdecode {

inline constexpr size_t kSecretBytesMin = 16;
inline constexpr size_t kSecretBytesMax = 4096;

// The permissions that a secret's file must not give: any to others, and any to a group. But root's file may be read by
// a group where `user` is not root: so Kubernetes (fsGroup) and systemd (LoadCredential=) hand secrets out.
mode_t ForbiddenSecretMode(uid_t owner, uid_t user);

// What an engine and its workers on other hosts know and nobody else: who has it may use the workers.
// Owns: its bytes, which are wiped at the end.
// Thread: any; immutable.
class Secret {
 public:
  // The contents of a file, without one newline at its end. `option`: for messages ("--secret-file").
  // Errors, naming option, file, field and value, and how to make such a file: NotFound, PermissionDenied (open; the
  // owner is neither this user nor root; ForbiddenSecretMode), InvalidArgument (no regular file; too few or too
  // many bytes).
  static absl::StatusOr<std::shared_ptr<const Secret>> Read(const std::string& option, const std::string& path);

  ~Secret();
  Secret(const Secret&) = delete;
  Secret& operator=(const Secret&) = delete;

  const unsigned char* data() const { return bytes_.data(); }
  size_t size() const { return size_; }

 private:
  Secret() = default;

  // One more than may be, to see that there are too many. Read in place, so that no copy is left anywhere.
  std::array<unsigned char, kSecretBytesMax + 1> bytes_ = {};
  size_t size_ = 0;
};

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_TCP_SECRET_H_
