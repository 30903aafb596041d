#ifndef FASTDECODE_NUMA_ARENA_H_
#define FASTDECODE_NUMA_ARENA_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace fastdecode {

struct ArenaOptions {
  size_t bytes = 0;     // at least; rounded up to whole pages
  int node = -1;        // os_index of the NUMA node that must hold it; -1: anywhere
  bool shared = false;  // backed by a sealed memfd, so that another process can map it
  std::vector<int> prefault_cores =
      {};  // first touch runs on these in parallel (0.6-2 GB/s each); empty: the calling thread
  // With node -1 and prefault cores on several nodes: pages go round the cores, so that any large part of the memory lies
  // on all of these nodes; else each core touches one piece.
  bool interleaved = false;
};

// Whether the memory is where it was asked for.
enum class ArenaPlacement {
  kAnywhere,    // no node was asked for
  kVerified,    // the kernel says that the pages (a sample of many) are on the node
  kUnverified,  // the kernel was told the node and refuses to say (some containers)
  kRefused,     // it refuses to place, too: may be anywhere
};

// One zeroed mapping, on one NUMA node, in the largest pages to be had (1 GiB, 2 MiB, transparent huge, 4 KiB), all of
// it touched before Create returns: later use never faults. Owns: the mapping and, if shared, the memfd. Thread:
// created and destroyed by one owner; the memory is anyone's.
class Arena {
 public:
  // Errors: InvalidArgument (no bytes, unknown node); ResourceExhausted naming bytes and what is available;
  // FailedPrecondition if pages ended up on another node than the kernel took note of.
  static absl::StatusOr<Arena> Create(const ArenaOptions& options);

  // Maps another process's shared arena, whole; `fd` stays the caller's. Its pages are the creator's business.
  // Errors: InvalidArgument if it is not sealed against shrinking and growing (a peer could take the memory away).
  static absl::StatusOr<Arena> Attach(int fd);

  Arena() = default;
  Arena(Arena&& other) noexcept;
  Arena& operator=(Arena&& other) noexcept;
  ~Arena();

  uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // Page size of the mapping: 1 GiB, 2 MiB or 4 KiB, many of which may be transparent huge pages.
  size_t page_bytes() const { return page_bytes_; }
  // Share of the bytes in pages larger than 4 KiB, 0 to 1, as it is now. The kernel looks at all memory of this process
  // to say so: 12 to 25 ms for each GiB in 4 KiB pages. Not where a peer waits.
  double huge_share() const;
  int node() const { return node_; }
  ArenaPlacement placement() const { return placement_; }
  // How it was refused, "mbind to node 1: Operation not permitted"; empty: it was not.
  const std::string& refusal() const { return refusal_; }
  // How the kernel refused to make transparent pages huge, "madvise: Operation not permitted"; empty: it did not.
  const std::string& huge_refusal() const { return huge_refusal_; }
  // The memfd of a shared arena (borrowed: dup or send it), else -1.
  int fd() const { return fd_; }

  // "2 GiB on node 0 (verified), 2 MiB pages (100 % transparent huge)": 2 MiB also if at least 90 % are. As dear as
  // huge_share().
  std::string Describe() const;
  // "2 GiB on node 0 (verified)", at once.
  std::string DescribePlace() const;

 private:
  friend class ArenaBuilder;

  void Unmap();

  uint8_t* data_ = nullptr;
  size_t bytes_ = 0;
  size_t page_bytes_ = 0;
  bool hugetlb_ = false;  // from the kernel's reserved pool, not transparent
  int node_ = -1;
  ArenaPlacement placement_ = ArenaPlacement::kAnywhere;
  std::string refusal_, huge_refusal_;
  int fd_ = -1;
};

}  // namespace fastdecode

#endif  // FASTDECODE_NUMA_ARENA_H_
