#ifndef FASTDECODE_NUMA_MAPPED_PAGES_H_
#define FASTDECODE_NUMA_MAPPED_PAGES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace fastdecode {

// What the kernel does with a range of mapped pages. Used by Arena; `data` and `bytes` are page-aligned.

inline constexpr size_t kSmallPageBytes = 4096;
inline constexpr size_t kHugePageBytes = size_t{2} << 20;
inline constexpr size_t kGiantPageBytes = size_t{1} << 30;

// Has the kernel take the pages from one node when they are first touched. Errors: InvalidArgument if there is no such
// node or its memory is not this process's to use; PermissionDenied if the kernel refuses to place memory at all (some
// containers).
absl::Status BindPages(uint8_t* data, size_t bytes, int node_os_index);

// Makes every page present and writable; one thread per entry of `cores` (empty: the calling thread), each for a part
// of whole `page_bytes`: one piece of the range, or (interleaved) every so manieth page. Errors: ResourceExhausted if the kernel has no page left.
absl::Status PrefaultPages(uint8_t* data, size_t bytes, size_t page_bytes, const std::vector<int>& cores,
                           bool interleaved = false);

// Where touched pages are: all of a small range, evenly spread ones of a large range.
struct PageSample {
  size_t asked = 0;
  size_t on_node = 0;
  int other_node = -1;  // where one that is not on the node is, -1 if none
};
// Errors: Unimplemented if the kernel or the container refuses to say.
absl::StatusOr<PageSample> SamplePages(uint8_t* data, size_t bytes, int node_os_index);

// Share of the range that transparent huge pages hold, 0 to 1; 0 if the kernel does not say. Takes as long as the
// kernel does to walk all memory of the process.
double TransparentHugeShare(const uint8_t* data, size_t bytes);

// Free pages of the kernel's reserved pool of this page size, on one node (-1: on all).
size_t FreeReservedPages(size_t page_bytes, int node_os_index);

}  // namespace fastdecode

#endif  // FASTDECODE_NUMA_MAPPED_PAGES_H_
