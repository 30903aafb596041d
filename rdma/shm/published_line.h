#ifndef FASTDECODE_RDMA_SHM_PUBLISHED_LINE_H_
#define FASTDECODE_RDMA_SHM_PUBLISHED_LINE_H_

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <type_traits>

#include "numa/atomics.h"
#include "numa/cache_line.h"

namespace fastdecode {

// One cache line that carries a header and its notification: one transfer between two caches brings both. The writer
// stores the header, then the sequence word, which counts up; whoever polls the sequence word and sees the next number
// sees the header, and what was written elsewhere (the payload) before. The header is read by single relaxed loads, so
// that a peer that keeps writing can spoil the copy but not change it after it was checked.
//
// Thread: one writer, one reader. The writer writes again only after the reader has answered elsewhere.
template <class Atomics = StdAtomics>
class alignas(kCacheLineBytes) PublishedLine {
 public:
  static constexpr size_t kHeaderWordsMax = 7;

  template <class Header>
  void Publish(const Header& header, uint64_t sequence) {
    constexpr size_t kWords = HeaderWords<Header>();
    uint64_t words[kWords];
    std::memcpy(words, &header, sizeof(header));
    for (size_t i = 0; i < kWords; ++i) words_[i].store(words[i], std::memory_order_relaxed);
    // Release: pairs with the acquire in sequence(). The reader that sees this number sees header and payload.
    sequence_.store(sequence, std::memory_order_release);
  }

  // Acquire: see Publish.
  uint64_t sequence() const { return sequence_.load(std::memory_order_acquire); }

  // After sequence() has shown a new number.
  template <class Header>
  Header CopyHeader() const {
    constexpr size_t kWords = HeaderWords<Header>();
    uint64_t words[kWords];
    for (size_t i = 0; i < kWords; ++i) words[i] = words_[i].load(std::memory_order_relaxed);
    Header header;
    std::memcpy(&header, words, sizeof(header));
    return header;
  }

 private:
  using Word = typename Atomics::template Atomic<uint64_t>;

  template <class Header>
  static constexpr size_t HeaderWords() {
    static_assert(std::is_trivially_copyable_v<Header> && sizeof(Header) % sizeof(uint64_t) == 0 &&
                  sizeof(Header) <= kHeaderWordsMax * sizeof(uint64_t));
    return sizeof(Header) / sizeof(uint64_t);
  }

  Word words_[kHeaderWordsMax] = {};
  Word sequence_{0};
};
static_assert(sizeof(PublishedLine<>) == kCacheLineBytes);

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_SHM_PUBLISHED_LINE_H_
