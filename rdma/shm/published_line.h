#ifndef FASTDECODE_RDMA_SHM_PUBLISHED_LINE_H_
#define FASTDECODE_RDMA_SHM_PUBLISHED_LINE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "numa/atomics.h"
#include "numa/cache_line.h"
#include "rdma/wire.h"

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
    StoreWords(ToWords(header), std::make_index_sequence<HeaderWords<Header>()>());
    // Release: pairs with the acquire in sequence(). The reader that sees this number sees header and payload.
    sequence_.store(sequence, std::memory_order_release);
  }

  // Acquire: see Publish.
  uint64_t sequence() const { return sequence_.load(std::memory_order_acquire); }

  // After sequence() has shown a new number.
  template <class Header>
  void CopyHeader(Header* out) const {
    FromWords(LoadWords(std::make_index_sequence<HeaderWords<Header>()>()), out);
  }

 private:
  using Word = typename Atomics::template Atomic<uint64_t>;

  template <class Header>
  static constexpr size_t HeaderWords() {
    static_assert(std::is_trivially_copyable_v<Header> && sizeof(Header) % sizeof(uint64_t) == 0 &&
                  sizeof(Header) <= kHeaderWordsMax * sizeof(uint64_t));
    return sizeof(Header) / sizeof(uint64_t);
  }

  template <size_t... kIndex>
  void StoreWords(const std::array<uint64_t, sizeof...(kIndex)>& words, std::index_sequence<kIndex...>) {
    (words_[kIndex].store(words[kIndex], std::memory_order_relaxed), ...);
  }
  template <size_t... kIndex>
  std::array<uint64_t, sizeof...(kIndex)> LoadWords(std::index_sequence<kIndex...>) const {
    return {words_[kIndex].load(std::memory_order_relaxed)...};
  }

  Word words_[kHeaderWordsMax] = {};
  Word sequence_{0};
};
static_assert(sizeof(PublishedLine<>) == kCacheLineBytes);

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_SHM_PUBLISHED_LINE_H_
