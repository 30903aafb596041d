#ifndef FASTDECODE_KERNELS_CPU_AMX_PANELS_H_
#define FASTDECODE_KERNELS_CPU_AMX_PANELS_H_

#include <immintrin.h>

#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/attention_page.h"
#include "kernels/cpu/avx512bf16_dots.h"
#include "kernels/cpu/byte_panels.h"

namespace fastdecode {
namespace {  // Each ISA-specific translation unit has its own copy: see attention_template.h.

// Up to 16 vectors times a panel (attention_page.h) by tiles. The vectors are rows of the left tile, a line of the
// panel is a row of the right one. One line of a panel meets 4 bytes of a vector, in bf16 as in bytes.
//
// A panel of K is cut into equal steps of up to 16 lines, so that no step is a shorter one and one configuration does
// for a whole call; a panel of V is one step. The steps of K add up in two chains, the even and the odd ones, because a
// product waits for the one before it in its chain three times as long as the unit takes for one. That the same
// registers serve for the next panel does not make it wait: they are renamed.
inline constexpr int kEvenSum = 0, kOddSum = 1, kVSum = 2;
inline constexpr int kKLeft = 4, kKRight = 5, kVLeft = 6, kVRight = 7;

// Lines of a step: of the fewest equal steps, for each number of lines a panel of K can have, in quads.
struct KSteps {
  uint8_t lines[33];
};
constexpr KSteps FindKSteps() {
  KSteps steps = {};
  for (int quads = 1; quads < 33; ++quads) {
    int count = (4 * quads + kAmxRows - 1) / kAmxRows;
    while (4 * quads % count != 0) ++count;
    steps.lines[quads] = static_cast<uint8_t>(4 * quads / count);
  }
  return steps;
}
constexpr KSteps kKSteps = FindKSteps();
constexpr int KStepLines(int panel_lines) { return kKSteps.lines[panel_lines / 4]; }
static_assert(KStepLines(64) == 16 && KStepLines(20) == 10 && KStepLines(4) == 4 && KStepLines(128) == 16);

// For `rows` vectors and panels of so many lines.
inline TileConfig PanelTiles(int rows, int k_lines, int v_lines) {
  TileConfig config;
  config.Set(kEvenSum, rows, kTileRowBytes);
  config.Set(kOddSum, rows, kTileRowBytes);
  config.Set(kVSum, rows, kTileRowBytes);
  config.Set(kKLeft, rows, KStepLines(k_lines) * kTileStepBytes);
  config.Set(kKRight, KStepLines(k_lines), kTileRowBytes);
  config.Set(kVLeft, rows, v_lines * kTileStepBytes);
  config.Set(kVRight, v_lines, kTileRowBytes);
  return config;
}

// What tiles add up, [vectors][16 lanes] of 32 bits. Rows are those of the configuration: one more than a call's
// smaller tiles have.
struct TileSums {
  alignas(64) std::byte rows[kAmxRows][kTileRowBytes];
  __m512 Floats(int row) const { return _mm512_load_ps(rows[row]); }
  __m512i Ints(int row) const { return _mm512_load_si512(rows[row]); }
};

// Every how many lines are prefetched.
enum class Prefetch { kNone = 0, kEvery = 1, kFourth = 4 };

template <class Product, Prefetch kPrefetch>
struct TilePanel {
  static inline void MultiplyK(const std::byte* panel, int lines, const std::byte* x, ptrdiff_t x_bytes,
                               ptrdiff_t prefetch_bytes, TileSums* even, TileSums* odd) {
    const int step = KStepLines(lines);
    ZeroTile<kEvenSum>();
    ZeroTile<kOddSum>();
    for (int line = 0; line < lines; line += step) {
      Step<kEvenSum, kKLeft, kKRight>(panel, line, step, x, x_bytes, prefetch_bytes);
      line += step;
      if (line == lines) break;
      Step<kOddSum, kKLeft, kKRight>(panel, line, step, x, x_bytes, prefetch_bytes);
    }
    StoreTile<kEvenSum>(even, kTileRowBytes);
    StoreTile<kOddSum>(odd, kTileRowBytes);
  }

  static inline void MultiplyV(const std::byte* panel, int lines, const std::byte* x, ptrdiff_t x_bytes,
                               ptrdiff_t prefetch_bytes, TileSums* sums) {
    ZeroTile<kVSum>();
    Step<kVSum, kVLeft, kVRight>(panel, 0, lines, x, x_bytes, prefetch_bytes);
    StoreTile<kVSum>(sums, kTileRowBytes);
  }

 private:
  template <int kSum, int kLeft, int kRight>
  static inline void Step(const std::byte* panel, int line, int lines, const std::byte* x, ptrdiff_t x_bytes,
                          ptrdiff_t prefetch_bytes) {
    const std::byte* const at = panel + line * kTileRowBytes;
    LoadTile<kLeft>(x + line * kTileStepBytes, x_bytes);
    LoadTile<kRight>(at, kTileRowBytes);
    if constexpr (kPrefetch != Prefetch::kNone) {
      for (int i = 0; i < lines; i += static_cast<int>(kPrefetch)) {
        _mm_prefetch(reinterpret_cast<const char*>(at) + i * kTileRowBytes + prefetch_bytes, _MM_HINT_T1);
      }
    }
    Product::template Multiply<kSum, kLeft, kRight>();
  }
};

// As Bf16Dots, in another order: within a step the even and the odd elements of x are two chains of FMAs, added when it
// is done. Denormals count as zeros.
struct TileDots : Bf16Dots {
  static constexpr int kSparseTileMax = kAmxRows;

  template <int J, bool kSparse, bool kOfK>
  static inline void Multiply(const Bf16* panel, int steps, const Bf16* x, int x_stride, ptrdiff_t prefetch_bytes,
                              __m512 (&sum)[J][1]) {
    using Panel = TilePanel<TileBf16, kSparse ? Prefetch::kFourth : Prefetch::kEvery>;
    const std::byte* const lines = reinterpret_cast<const std::byte*>(panel);
    const std::byte* const vectors = reinterpret_cast<const std::byte*>(x);
    const ptrdiff_t x_bytes = x_stride * static_cast<ptrdiff_t>(sizeof(Bf16));
    TileSums sums;
    if constexpr (kOfK) {
      TileSums odd;
      Panel::MultiplyK(lines, steps / 2, vectors, x_bytes, prefetch_bytes, &sums, &odd);
#pragma GCC unroll 16
      for (int j = 0; j < J; ++j) sum[j][0] = _mm512_add_ps(sums.Floats(j), odd.Floats(j));
    } else {
      Panel::MultiplyV(lines, steps / 2, vectors, x_bytes, prefetch_bytes, &sums);
#pragma GCC unroll 16
      for (int j = 0; j < J; ++j) sum[j][0] = sums.Floats(j);
    }
  }
};

// As BytePanels, which multiplies where there are too few vectors for tiles to gain: a line takes vpdpbusd J / 2
// cycles, tiles 1 to 2 with what goes around them. Half bytes are unpacked first, by 4 operations and 2 stores a line,
// where vpdpbusd needs J cycles and the 4 operations.
template <class V>
struct TileBytes : BytePanels<V> {
  using Base = BytePanels<V>;
  using Int = typename V::Int;
  static constexpr int kBytesTileMin = 2, kNibblesTileMin = 3;
  static constexpr int kMaxLines = 256 / 4;  // of a panel

  template <int J, bool kSparse, bool kPanelUnsigned>
  static inline void MultiplyBytes(const std::byte* panel, int lines, const std::byte* x, ptrdiff_t x_bytes,
                                   ptrdiff_t prefetch_bytes, Int (&sum)[J][1]) {
    if constexpr (J < kBytesTileMin) {
      Base::template MultiplyBytes<J, kSparse, kPanelUnsigned>(panel, lines, x, x_bytes, prefetch_bytes, sum);
    } else {
      constexpr Prefetch kPrefetch = kSparse ? Prefetch::kFourth : Prefetch::kEvery;
      Multiply<J, kPrefetch, kPanelUnsigned>(panel, lines, x, x_bytes, prefetch_bytes, sum);
    }
  }

  template <int J, bool kPanelUnsigned>
  static inline void MultiplyNibbles(const std::byte* panel, int lines, const std::byte* x, ptrdiff_t x_bytes,
                                     ptrdiff_t prefetch_bytes, Int (&sum)[J][1]) {
    if constexpr (J < kNibblesTileMin) {
      Base::template MultiplyNibbles<J, kPanelUnsigned>(panel, lines, x, x_bytes, prefetch_bytes, sum);
    } else {
      alignas(64) std::byte unpacked[kMaxLines][kTileRowBytes];
      for (int i = 0; i < lines; ++i) {
        const std::byte* const at = panel + i * kTileRowBytes;
        _mm_prefetch(reinterpret_cast<const char*>(at) + prefetch_bytes, _MM_HINT_T1);
        Int low, high;
        V::LoadNibbles(at, &low, &high);
        _mm512_store_si512(unpacked[2 * i], low);
        _mm512_store_si512(unpacked[2 * i + 1], high);
      }
      Multiply<J, Prefetch::kNone, kPanelUnsigned>(unpacked[0], 2 * lines, x, x_bytes, 0, sum);
    }
  }

 private:
  template <int J, Prefetch kPrefetch, bool kOfK>
  static inline void Multiply(const std::byte* panel, int lines, const std::byte* x, ptrdiff_t x_bytes,
                              ptrdiff_t prefetch_bytes, Int (&sum)[J][1]) {
    TileSums sums;
    if constexpr (kOfK) {
      TileSums odd;
      TilePanel<TileSU, kPrefetch>::MultiplyK(panel, lines, x, x_bytes, prefetch_bytes, &sums, &odd);
#pragma GCC unroll 16
      for (int j = 0; j < J; ++j) sum[j][0] = V::AddInt(sum[j][0], V::AddInt(sums.Ints(j), odd.Ints(j)));
    } else {
      TilePanel<TileUS, kPrefetch>::MultiplyV(panel, lines, x, x_bytes, prefetch_bytes, &sums);
#pragma GCC unroll 16
      for (int j = 0; j < J; ++j) sum[j][0] = V::AddInt(sum[j][0], sums.Ints(j));
    }
  }
};

}  // namespace
}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_AMX_PANELS_H_
