#ifndef FASTDECODE_TESTS_KERNELS_GUARDED_AREAS_H_
#define FASTDECODE_TESTS_KERNELS_GUARDED_AREAS_H_

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>

namespace fastdecode {

enum class Flush { kStart, kEnd };  // where the inaccessible page begins: before the first byte, behind the last

// `count` areas of so many bytes, each between pages that nobody may touch, all as far apart.
class GuardedAreas {
 public:
  GuardedAreas(size_t bytes, size_t count, Flush flush)
      : page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))),
        used_((bytes + page_ - 1) / page_ * page_),
        stride_(used_ + page_),
        mapped_(stride_ * count + page_),
        start_(static_cast<std::byte*>(
            mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))),
        first_(start_ + page_ + (flush == Flush::kEnd ? used_ - bytes : 0)) {
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(mprotect(start_ + page_ + i * stride_, used_, PROT_READ | PROT_WRITE), 0);
      std::fill_n(at(i), bytes, std::byte{0xff});  // NaN in all types
    }
  }
  ~GuardedAreas() { munmap(start_, mapped_); }
  GuardedAreas(const GuardedAreas&) = delete;
  GuardedAreas& operator=(const GuardedAreas&) = delete;

  std::byte* at(size_t i = 0) const { return first_ + i * stride_; }
  float* floats() const { return reinterpret_cast<float*>(first_); }
  size_t stride_bytes() const { return stride_; }

 private:
  const size_t page_, used_, stride_, mapped_;
  std::byte* const start_;
  std::byte* const first_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_KERNELS_GUARDED_AREAS_H_
