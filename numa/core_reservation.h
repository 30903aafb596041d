#ifndef FASTDECODE_NUMA_CORE_RESERVATION_H_
#define FASTDECODE_NUMA_CORE_RESERVATION_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace fastdecode {

// Tells the other FastDecode processes of this host which cores are in use: a locked file "core-N" a core. The kernel
// drops the locks when the process dies, however it dies, and with it the children that it forked while it held them
// and that still run its program; the empty files stay. Advisory: nobody is kept from running anywhere. Owns: the
// locked files' descriptors. Thread: one owner.
class CoreReservation {
 public:
  // Where the files are: /run/fastdecode, or /tmp/fastdecode-UID where this user cannot write there. Made if missing.
  // Errors: as mkdir; FailedPrecondition if the directory in /tmp belongs to somebody else.
  static absl::StatusOr<std::string> HostDirectory();

  // The cores that somebody (another process, or another reservation of this one) holds now, ascending.
  static std::vector<int> TakenCores(const std::string& directory);

  // Reserves those of `cores` that nobody holds. Errors: a file cannot be made or locked, for any other reason than
  // held.
  static absl::StatusOr<CoreReservation> Reserve(const std::string& directory, const std::vector<int>& cores);

  CoreReservation() = default;
  CoreReservation(CoreReservation&& other) noexcept = default;
  CoreReservation& operator=(CoreReservation&& other) noexcept;
  ~CoreReservation() { Release(); }

  void Release();

  const std::vector<int>& held() const { return held_; }
  // Asked for, but somebody else's.
  const std::vector<int>& refused() const { return refused_; }

 private:
  std::vector<int> fds_;
  std::vector<int> held_;
  std::vector<int> refused_;
};

// An exclusive lock on a file of `directory`, held until destroyed; waits for it.
class DirectoryLock {
 public:
  static absl::StatusOr<DirectoryLock> Acquire(const std::string& directory);
  DirectoryLock(DirectoryLock&& other) noexcept : fd_(other.fd_) { other.fd_ = -1; }
  DirectoryLock& operator=(DirectoryLock&&) = delete;
  ~DirectoryLock();

 private:
  explicit DirectoryLock(int fd) : fd_(fd) {}
  int fd_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_NUMA_CORE_RESERVATION_H_
