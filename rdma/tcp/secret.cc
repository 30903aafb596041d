#include "rdma/tcp/secret.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "rdma/file_descriptor.h"

namespace fastdecode {

namespace {

std::string HowToMake(const std::string& path) {
  return absl::StrCat(" (to make one: head -c 32 /dev/urandom | base64 > ", path, "; chmod 600 ", path, ")");
}

absl::Status OpenError(const std::string& what, int error) {
  const std::string message = absl::StrCat(what, ": ", std::strerror(error));
  if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(message);
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(message);
  return absl::InternalError(message);
}

absl::Status CheckFile(const std::string& what, const std::string& path, const struct stat& info) {
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(absl::StrCat(what, ": is no regular file"));
  if (info.st_uid != geteuid() && info.st_uid != 0) {
    return absl::PermissionDeniedError(
        absl::StrFormat("%s: owner: uid %d is neither this user (%d) nor root", what, info.st_uid, geteuid()));
  }
  const mode_t forbidden = ForbiddenSecretMode(info.st_uid, geteuid());
  if ((info.st_mode & forbidden) != 0) {
    return absl::PermissionDeniedError(absl::StrFormat("%s: mode: %04o lets others read or write it; chmod %o %s", what,
                                                       info.st_mode & 07777, 0666 & ~forbidden, path));
  }
  return absl::OkStatus();
}

}  // namespace

mode_t ForbiddenSecretMode(uid_t owner, uid_t user) { return owner == 0 && user != 0 ? 037 : 077; }

Secret::~Secret() { OPENSSL_cleanse(bytes_.data(), bytes_.size()); }

absl::StatusOr<std::shared_ptr<const Secret>> Secret::Read(const std::string& option, const std::string& path) {
  const std::string what = absl::StrCat(option, ": '", path, "'");
  // Not blocking: a FIFO must not keep us here.
  const FileDescriptor fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!fd.valid()) {
    absl::Status error = OpenError(what, errno);
    if (!absl::IsNotFound(error)) return error;
    return absl::NotFoundError(absl::StrCat(std::string(error.message()), HowToMake(path)));
  }
  struct stat info = {};
  if (fstat(fd.get(), &info) != 0) return OpenError(what, errno);
  if (absl::Status status = CheckFile(what, path, info); !status.ok()) return status;

  const std::shared_ptr<Secret> secret(new Secret);
  while (secret->size_ < secret->bytes_.size()) {
    const ssize_t got = read(fd.get(), secret->bytes_.data() + secret->size_, secret->bytes_.size() - secret->size_);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return OpenError(what, errno);
    if (got == 0) break;
    secret->size_ += static_cast<size_t>(got);
  }
  if (secret->size_ > kSecretBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: size: more than %d bytes are no secret", what, kSecretBytesMax));
  }
  if (secret->size_ > 0 && secret->bytes_[secret->size_ - 1] == '\n') --secret->size_;
  if (secret->size_ < kSecretBytesMin) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: size: %d bytes are less than %d%s", what, secret->size_,
                                                      kSecretBytesMin, HowToMake(path)));
  }
  return std::shared_ptr<const Secret>(secret);
}

}  // namespace fastdecode
