#ifndef FASTDECODE_TESTS_RDMA_HEAP_LINK_H_
#define FASTDECODE_TESTS_RDMA_HEAP_LINK_H_

#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <utility>

#include "rdma/shm/shm_link.h"

namespace fastdecode {

// Memory of exactly so many bytes at the alignment of a region: one byte beyond it is AddressSanitizer's.
class ExactBuffer {
 public:
  explicit ExactBuffer(size_t bytes)
      : bytes_(bytes), data_(static_cast<std::byte*>(::operator new(bytes, std::align_val_t(kCacheLineBytes)))) {
    std::memset(data_, 0, bytes);
  }
  ~ExactBuffer() { ::operator delete(data_, std::align_val_t(kCacheLineBytes)); }
  ExactBuffer(const ExactBuffer&) = delete;
  ExactBuffer& operator=(const ExactBuffer&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  size_t bytes_;
  std::byte* data_;
};

// The regions of one link on the heap, where a test can write them as a hostile peer would.
struct HeapRegions {
  explicit HeapRegions(const LinkSize& size)
      : home(HomeRegion::Bytes(size)), engine(EngineRegion::Bytes(size)), size(size) {}

  ShmRegions regions() const { return {HomeRegion(home.data(), size), EngineRegion(engine.data(), size)}; }

  ExactBuffer home;
  ExactBuffer engine;
  LinkSize size;
};

// A peer that cannot be told anything.
class DeafPeer final : public ShmBacking {
 public:
  LossRecord* loss() override { return &loss_; }
  void TellPeer(const char* cause) override {}
  std::string peer_name() const override { return "hostile peer"; }

 private:
  LossRecord loss_;
};

inline std::unique_ptr<ShmEngineLink> MakeHeapEngine(const HeapRegions& memory, uint64_t epoch) {
  return std::make_unique<ShmEngineLink>(memory.size, epoch, memory.regions(), std::make_unique<DeafPeer>());
}
inline std::unique_ptr<ShmHomeLink> MakeHeapHome(const HeapRegions& memory, uint64_t epoch) {
  return std::make_unique<ShmHomeLink>(memory.size, epoch, memory.regions(), std::make_unique<DeafPeer>());
}

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_RDMA_HEAP_LINK_H_
