#include "numa/mapped_pages.h"

#include <numaif.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <climits>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "numa/pinned_thread.h"

namespace fastdecode {

namespace {

constexpr size_t kPopulateStepBytes = size_t{64} << 20;
constexpr size_t kSampledPagesMax = 4096;
constexpr int kNodesMax = 1024;  // the kernel's own bound, CONFIG_NODES_SHIFT = 10

// Makes [data, data + bytes) present. 0 or an errno. MADV_POPULATE_WRITE reports a lack of pages, where a plain write,
// which does for a kernel that lacks it (before Linux 5.14) or refuses it, would end in SIGBUS.
int Populate(uint8_t* data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const size_t step = std::min(bytes - done, kPopulateStepBytes);
    if (madvise(data + done, step, MADV_POPULATE_WRITE) == 0) {
      done += step;
    } else if (errno == EINVAL || errno == EPERM || errno == ENOSYS) {
      volatile uint8_t* const pages = data;
      for (; done < bytes; done += kSmallPageBytes) pages[done] = 0;
    } else if (errno != EINTR && errno != EAGAIN) {
      return errno;
    }
  }
  return 0;
}

}  // namespace

absl::Status BindPages(uint8_t* data, size_t bytes, int node_os_index) {
  const auto no_such_node = [&] {
    return absl::InvalidArgumentError(
        absl::StrCat("node ", node_os_index, " does not exist or this process may not use its memory"));
  };
  constexpr int kBits = sizeof(unsigned long) * CHAR_BIT;
  unsigned long mask[kNodesMax / kBits] = {};
  if (node_os_index >= kNodesMax) return no_such_node();
  mask[node_os_index / kBits] |= 1ul << (node_os_index % kBits);
  if (mbind(data, bytes, MPOL_BIND, mask, kNodesMax + 1, 0) == 0) return absl::OkStatus();
  if (errno == EINVAL) return no_such_node();
  const bool refused = errno == EPERM || errno == ENOSYS;
  return absl::Status(refused ? absl::StatusCode::kPermissionDenied : absl::StatusCode::kInternal,
                      absl::StrCat("mbind to node ", node_os_index, ": ", std::strerror(errno)));
}

absl::Status PrefaultPages(uint8_t* data, size_t bytes, size_t page_bytes, const std::vector<int>& cores,
                           bool interleaved) {
  const size_t pages = (bytes + page_bytes - 1) / page_bytes;
  const size_t parts = std::clamp<size_t>(cores.size(), 1, pages);
  std::atomic<int> first_error{0};
  const auto populate_part = [&](size_t part) {
    const auto populate = [&](size_t first_page, size_t end_page) {
      const size_t begin = std::min(bytes, first_page * page_bytes), end = std::min(bytes, end_page * page_bytes);
      // Relaxed: joining the threads orders it before the load below.
      if (const int error = Populate(data + begin, end - begin)) first_error.store(error, std::memory_order_relaxed);
    };
    if (!interleaved) {
      populate(pages * part / parts, pages * (part + 1) / parts);
      return;
    }
    for (size_t page = part; page < pages; page += parts) populate(page, page + 1);
  };
  if (cores.empty()) {
    populate_part(0);
  } else {
    std::vector<PinnedThread> threads;
    for (size_t part = 0; part < parts; ++part) {
      threads.emplace_back("prefault", cores[part], [&populate_part, part] { populate_part(part); });
    }
  }
  const int error = first_error.load(std::memory_order_relaxed);
  if (error == 0) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("cannot get all of ", bytes, " bytes: ", std::strerror(error)));
}

absl::StatusOr<PageSample> SamplePages(uint8_t* data, size_t bytes, int node_os_index) {
  const size_t pages = bytes / kSmallPageBytes;
  PageSample sample;
  sample.asked = std::min(pages, kSampledPagesMax);
  std::vector<void*> addresses(sample.asked);
  std::vector<int> nodes(sample.asked, -1);
  for (size_t i = 0; i < sample.asked; ++i) addresses[i] = data + i * pages / sample.asked * kSmallPageBytes;
  if (move_pages(0, sample.asked, addresses.data(), nullptr, nodes.data(), 0) != 0) {
    return absl::UnimplementedError(absl::StrCat("move_pages: ", std::strerror(errno)));
  }
  for (const int node : nodes) {
    if (node == node_os_index) {
      ++sample.on_node;
    } else {
      sample.other_node = node;
    }
  }
  return sample;
}

double TransparentHugeShare(const uint8_t* data, size_t bytes) {
  // No huge page fits, and reading smaps takes tens of milliseconds in a large process.
  if (bytes < (size_t{2} << 20)) return 0;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(data);
  std::ifstream smaps("/proc/self/smaps");
  uint64_t mapped_kib = 0;  // of the mappings that overlap ours: the kernel may have joined neighbours to it
  uint64_t huge_kib = 0;
  bool overlaps = false;
  for (std::string line; std::getline(smaps, line);) {
    std::istringstream words(line);
    std::string key;
    words >> key;
    if (key.empty() || key.back() != ':') {  // "7f0000000000-7f0000200000 rw-p ..." begins a mapping
      const size_t dash = key.find('-');
      if (dash == std::string::npos) continue;
      const uintptr_t from = std::stoull(key.substr(0, dash), nullptr, 16);
      const uintptr_t to = std::stoull(key.substr(dash + 1), nullptr, 16);
      overlaps = from < begin + bytes && to > begin;
      if (overlaps) mapped_kib += (to - from) / 1024;
      continue;
    }
    uint64_t kib;
    if (overlaps && (key == "AnonHugePages:" || key == "ShmemPmdMapped:") && words >> kib) huge_kib += kib;
  }
  return mapped_kib == 0 ? 0 : static_cast<double>(huge_kib) / static_cast<double>(mapped_kib);
}

size_t FreeReservedPages(size_t page_bytes, int node_os_index) {
  const std::string pool = absl::StrCat("hugepages/hugepages-", page_bytes / 1024, "kB/free_hugepages");
  const std::string all = absl::StrCat("/sys/kernel/mm/", pool);
  const std::string one = absl::StrCat("/sys/devices/system/node/node", node_os_index, "/", pool);
  size_t free_pages = 0;
  std::ifstream(node_os_index < 0 ? all : one) >> free_pages;
  return free_pages;
}

}  // namespace fastdecode
