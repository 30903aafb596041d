#include "numa/arena.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "numa/mapped_pages.h"
#include "numa/memory_limit.h"
#include "numa/topology.h"

namespace fastdecode {

namespace {

constexpr double kMostlyHuge = 0.9;

size_t RoundUp(size_t bytes, size_t page_bytes) { return (bytes + page_bytes - 1) / page_bytes * page_bytes; }

absl::Status OutOfMemory(const ArenaOptions& options, const std::string& why) {
  const std::string where = options.node >= 0 ? absl::StrCat(" on node ", options.node) : "";
  return absl::ResourceExhaustedError(
      absl::StrCat("no memory for ", FormatBytes(options.bytes), " (", options.bytes, " bytes)", where, ": ", why));
}

// Refuses what would get the process killed at first touch.
absl::Status CheckAvailable(const ArenaOptions& options) {
  const MemoryLimit limit = MemoryLimit::Read();
  if (options.bytes > limit.available_bytes) {
    return OutOfMemory(options, absl::StrCat(FormatBytes(limit.available_bytes), " of ", FormatBytes(limit.limit_bytes),
                                             " available (", limit.source, ")"));
  }
  if (options.node < 0) return absl::OkStatus();
  const NodeMemory node = NodeMemory::Read(options.node);
  if (node.total_bytes != 0 && options.bytes > node.free_bytes) {
    return OutOfMemory(
        options, absl::StrCat(FormatBytes(node.free_bytes), " of the node's ", FormatBytes(node.total_bytes), " free"));
  }
  return absl::OkStatus();
}

}  // namespace

// The steps of Create, on an arena that unmaps itself should one fail.
class ArenaBuilder {
 public:
  explicit ArenaBuilder(const ArenaOptions& options) : options_(options) { arena_.node_ = options.node; }

  // Pages of the reserved pool: false if it has too few, or if much of the last page would be wasted.
  bool MapReserved(size_t page_bytes, int page_shift) {
    const size_t bytes = RoundUp(options_.bytes, page_bytes);
    if (bytes - options_.bytes > options_.bytes / 8) return false;
    if (FreeReservedPages(page_bytes, options_.node) < bytes / page_bytes) return false;
    const int huge_flags = page_shift << MAP_HUGE_SHIFT;
    if (!MapExactly(bytes, MAP_HUGETLB | huge_flags, MFD_HUGETLB | static_cast<unsigned>(huge_flags)).ok())
      return false;
    arena_.page_bytes_ = page_bytes;
    arena_.hugetlb_ = true;
    return true;
  }

  // Ordinary pages, which the kernel is asked to make huge if there is room for at least one.
  absl::Status MapOrdinary() {
    absl::Status status = CheckAvailable(options_);
    if (!status.ok()) return status;
    arena_.page_bytes_ = kSmallPageBytes;
    if (options_.bytes < kHugePageBytes) return MapExactly(RoundUp(options_.bytes, kSmallPageBytes), 0, 0);
    status = options_.shared ? MapExactly(RoundUp(options_.bytes, kHugePageBytes), 0, 0) : MapAligned();
    if (!status.ok()) return status;
    // Advice: huge_share() tells what came of it. EINVAL: this kernel has no huge pages to give.
    if (madvise(arena_.data_, arena_.bytes_, MADV_HUGEPAGE) != 0 && errno != EINVAL) {
      arena_.huge_refusal_ = absl::StrCat("madvise: ", std::strerror(errno));
    }
    return absl::OkStatus();
  }

  // Binds, touches, verifies.
  absl::Status Place() {
    absl::Status status = BindToNode();
    if (status.ok()) status = Prefault();
    if (status.ok()) status = VerifyPlacement();
    return status;
  }

  Arena Finish() { return std::move(arena_); }

 private:
  // Before the first touch.
  absl::Status BindToNode() {
    if (options_.node < 0) return absl::OkStatus();
    const absl::Status bound = BindPages(arena_.data_, arena_.bytes_, options_.node);
    arena_.placement_ = bound.ok() ? ArenaPlacement::kUnverified : ArenaPlacement::kRefused;
    if (!absl::IsPermissionDenied(bound)) return bound;
    arena_.refusal_ = std::string(bound.message());
    return absl::OkStatus();
  }

  absl::Status Prefault() {
    const size_t page_bytes =
        arena_.bytes_ < kHugePageBytes ? kSmallPageBytes : std::max(arena_.page_bytes_, kHugePageBytes);
    const absl::Status status = PrefaultPages(arena_.data_, arena_.bytes_, page_bytes,
                                              options_.prefault_cores, options_.interleaved);
    return status.ok() ? status : OutOfMemory(options_, std::string(status.message()));
  }

  absl::Status VerifyPlacement() {
    if (options_.node < 0) return absl::OkStatus();
    const absl::StatusOr<PageSample> sample = SamplePages(arena_.data_, arena_.bytes_, options_.node);
    if (!sample.ok()) return absl::OkStatus();  // stays unverified
    if (sample->on_node == sample->asked) {
      arena_.placement_ = ArenaPlacement::kVerified;
      return absl::OkStatus();
    }
    if (arena_.placement_ == ArenaPlacement::kRefused) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrCat("memory asked for on node ", options_.node, " is elsewhere: ", sample->asked - sample->on_node,
                     " of ", sample->asked, " pages, one of them on node ", sample->other_node));
  }

  // Maps `bytes` from a new sealed memfd or anonymously; nothing is left behind on failure.
  absl::Status MapExactly(size_t bytes, int map_flags, unsigned memfd_flags) {
    if (options_.shared) {
      const absl::Status status = OpenMemfd(bytes, memfd_flags);
      if (!status.ok()) return status;
      // The memfd has its page size itself.
      map_flags = MAP_SHARED;
    } else {
      map_flags |= MAP_PRIVATE | MAP_ANONYMOUS;
    }
    void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, map_flags, arena_.fd_, 0);
    if (data == MAP_FAILED) {
      const int error = errno;
      if (arena_.fd_ >= 0) close(std::exchange(arena_.fd_, -1));
      return OutOfMemory(options_, absl::StrCat("mmap: ", std::strerror(error)));
    }
    arena_.data_ = static_cast<uint8_t*>(data);
    arena_.bytes_ = bytes;
    return absl::OkStatus();
  }

  absl::Status OpenMemfd(size_t bytes, unsigned memfd_flags) {
    const int fd = memfd_create("fastdecode-arena", MFD_CLOEXEC | MFD_ALLOW_SEALING | memfd_flags);
    if (fd < 0) {
      return absl::ResourceExhaustedError(
          absl::StrCat("no memory that processes can share: memfd_create: ", std::strerror(errno)));
    }
    if (ftruncate(fd, static_cast<off_t>(bytes)) != 0 ||
        fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0) {
      const int error = errno;
      close(fd);
      return OutOfMemory(options_, absl::StrCat("memfd: ", std::strerror(error)));
    }
    arena_.fd_ = fd;
    return absl::OkStatus();
  }

  // Anonymous memory that begins at a multiple of a huge page: one huge page more is mapped, and the ends cut off.
  absl::Status MapAligned() {
    const size_t bytes = RoundUp(options_.bytes, kHugePageBytes);
    const absl::Status status = MapExactly(bytes + kHugePageBytes, 0, 0);
    if (!status.ok()) return status;
    const uintptr_t begin = reinterpret_cast<uintptr_t>(arena_.data_);
    const size_t head = RoundUp(begin, kHugePageBytes) - begin;
    const size_t tail = kHugePageBytes - head;
    if (head != 0) munmap(arena_.data_, head);
    if (tail != 0) munmap(arena_.data_ + head + bytes, tail);
    arena_.data_ += head;
    arena_.bytes_ = bytes;
    return absl::OkStatus();
  }

  const ArenaOptions& options_;
  Arena arena_;
};

absl::StatusOr<Arena> Arena::Create(const ArenaOptions& options) {
  if (options.bytes == 0 || options.bytes > SIZE_MAX / 2) {
    return absl::InvalidArgumentError(absl::StrCat("an arena of ", options.bytes, " bytes"));
  }
  // The reserved pools may still refuse at first touch (hugetlb cgroup limits): then smaller pages get their turn.
  for (const auto& [page_bytes, page_shift] : {std::pair(kGiantPageBytes, 30), std::pair(kHugePageBytes, 21)}) {
    ArenaBuilder builder(options);
    if (builder.MapReserved(page_bytes, page_shift) && builder.Place().ok()) return builder.Finish();
  }
  ArenaBuilder builder(options);
  absl::Status status = builder.MapOrdinary();
  if (status.ok()) status = builder.Place();
  if (!status.ok()) return status;
  return builder.Finish();
}

absl::StatusOr<Arena> Arena::Attach(int fd) {
  struct stat info;
  const int seals = fcntl(fd, F_GET_SEALS);
  constexpr int kNeeded = F_SEAL_SHRINK | F_SEAL_GROW;
  if (seals < 0 || (seals & kNeeded) != kNeeded || fstat(fd, &info) != 0 || info.st_size <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("descriptor ", fd, " is not a sealed shared arena"));
  }
  const size_t bytes = static_cast<size_t>(info.st_size);
  void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot map a shared arena of ", bytes, " bytes: ", std::strerror(errno)));
  }
  Arena arena;
  arena.data_ = static_cast<uint8_t*>(data);
  arena.bytes_ = bytes;
  arena.page_bytes_ = static_cast<size_t>(info.st_blksize);
  arena.hugetlb_ = arena.page_bytes_ > kSmallPageBytes;
  return arena;
}

Arena::Arena(Arena&& other) noexcept { *this = std::move(other); }

Arena& Arena::operator=(Arena&& other) noexcept {
  if (this == &other) return *this;
  Unmap();
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  fd_ = std::exchange(other.fd_, -1);
  page_bytes_ = other.page_bytes_;
  hugetlb_ = other.hugetlb_;
  node_ = other.node_;
  placement_ = other.placement_;
  refusal_ = std::move(other.refusal_);
  huge_refusal_ = std::move(other.huge_refusal_);
  return *this;
}

Arena::~Arena() { Unmap(); }

void Arena::Unmap() {
  if (data_ != nullptr) munmap(data_, bytes_);
  if (fd_ >= 0) close(fd_);
  data_ = nullptr;
  fd_ = -1;
}

double Arena::huge_share() const { return hugetlb_ ? 1 : TransparentHugeShare(data_, bytes_); }

std::string Arena::DescribePlace() const {
  std::string where = "on any node";
  if (node_ >= 0) {
    where = absl::StrCat("on node ", node_, placement_ == ArenaPlacement::kVerified ? " (verified)" : " (unverified)");
  }
  return absl::StrCat(FormatBytes(bytes_), " ", where);
}

std::string Arena::Describe() const {
  const double share = huge_share();
  const size_t page_bytes = !hugetlb_ && share >= kMostlyHuge ? kHugePageBytes : page_bytes_;
  const std::string kind = hugetlb_ ? "reserved" : absl::StrFormat("%.0f %% transparent huge", share * 100);
  return absl::StrCat(DescribePlace(), ", ", FormatBytes(page_bytes), " pages (", kind, ")");
}

}  // namespace fastdecode
