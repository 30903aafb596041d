#include "numa/core_reservation.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace fastdecode {

namespace {

constexpr char kCoreFilePrefix[] = "core-";
constexpr int kDirectoryLockTries = 500;  // of 10 ms; its holders need less than one

absl::Status FileError(const std::string& what, const std::string& path) {
  return absl::ErrnoToStatus(errno, absl::StrCat(what, " ", path));
}

// Opens or makes a file that any user may lock. Not O_CREAT at once: in a sticky directory the kernel refuses that for
// another user's file.
int OpenLockFile(const std::string& path) {
  constexpr mode_t kMode = 0644;
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd >= 0 || errno != ENOENT) return fd;
  const int made = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_CREAT, kMode);
  if (made >= 0) fchmod(made, kMode);  // past the umask; of another user's, made meanwhile, it changes nothing
  return made;
}

// Unlocked rather than closed alone: a forked child may have it open for as long as it likes.
void CloseLockFile(int fd) {
  flock(fd, LOCK_UN);
  close(fd);
}

}  // namespace

absl::StatusOr<std::string> CoreReservation::HostDirectory() {
  const std::string run = "/run/fastdecode";
  if (mkdir(run.c_str(), 0755) == 0) chmod(run.c_str(), 01777);  // for all users of the host, past the umask
  if (access(run.c_str(), R_OK | W_OK | X_OK) == 0) return run;

  const std::string tmp = absl::StrCat("/tmp/fastdecode-", geteuid());
  if (mkdir(tmp.c_str(), 0700) != 0 && errno != EEXIST) return FileError("cannot make", tmp);
  struct stat info;
  if (lstat(tmp.c_str(), &info) != 0) return FileError("cannot read", tmp);
  if (!S_ISDIR(info.st_mode) || info.st_uid != geteuid()) {
    return absl::FailedPreconditionError(absl::StrCat(tmp, " is not a directory of this user"));
  }
  return tmp;
}

std::vector<int> CoreReservation::TakenCores(const std::string& directory) {
  std::vector<int> taken;
  DIR* const files = opendir(directory.c_str());
  if (files == nullptr) return taken;
  while (const dirent* entry = readdir(files)) {
    const std::string name = entry->d_name;
    int core;
    if (name.rfind(kCoreFilePrefix, 0) != 0 || !absl::SimpleAtoi(name.substr(sizeof(kCoreFilePrefix) - 1), &core))
      continue;
    const int fd = open(absl::StrCat(directory, "/", name).c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) {
      if (errno == EACCES) taken.push_back(core);  // for all that can be seen
      continue;
    }
    if (flock(fd, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK) taken.push_back(core);
    CloseLockFile(fd);
  }
  closedir(files);
  std::sort(taken.begin(), taken.end());
  return taken;
}

absl::StatusOr<CoreReservation> CoreReservation::Reserve(const std::string& directory, const std::vector<int>& cores) {
  CoreReservation reservation;
  for (const int core : cores) {
    const std::string path = absl::StrCat(directory, "/", kCoreFilePrefix, core);
    const int fd = OpenLockFile(path);
    if (fd < 0 && errno == EACCES) {
      reservation.refused_.push_back(core);
      continue;
    }
    if (fd < 0) return FileError("cannot open", path);
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) {
      reservation.fds_.push_back(fd);
      reservation.held_.push_back(core);
      continue;
    }
    const int error = errno;
    close(fd);
    if (error != EWOULDBLOCK) return absl::ErrnoToStatus(error, absl::StrCat("cannot lock ", path));
    reservation.refused_.push_back(core);
  }
  return reservation;
}

CoreReservation& CoreReservation::operator=(CoreReservation&& other) noexcept {
  if (this == &other) return *this;
  Release();
  fds_ = std::move(other.fds_);
  held_ = std::move(other.held_);
  refused_ = std::move(other.refused_);
  return *this;
}

void CoreReservation::Release() {
  for (const int fd : fds_) CloseLockFile(fd);
  fds_.clear();
  held_.clear();
}

absl::StatusOr<DirectoryLock> DirectoryLock::Acquire(const std::string& directory) {
  const std::string path = absl::StrCat(directory, "/lock");
  const int fd = OpenLockFile(path);
  if (fd < 0) return FileError("cannot open", path);
  for (int i = 0; i < kDirectoryLockTries; ++i) {
    if (flock(fd, LOCK_EX | LOCK_NB) == 0) return DirectoryLock(fd);
    const timespec pause = {0, 10'000'000};
    nanosleep(&pause, nullptr);
  }
  close(fd);
  return absl::DeadlineExceededError(absl::StrCat("somebody has kept ", path, " locked for 5 s"));
}

DirectoryLock::~DirectoryLock() {
  if (fd_ >= 0) CloseLockFile(fd_);
}

}  // namespace fastdecode
