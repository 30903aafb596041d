#ifndef FASTDECODE_KERNELS_CPU_AMX_PANELS_H_
#define FASTDECODE_KERNELS_CPU_AMX_PANELS_H_

#include <immintrin.h>

#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/attention_page.h"
#include "kernels/cpu/avx512bf16_dots.h"
#include "kernels/cpu/byte_panels.h"
#include "kernels/cpu/panel_kv.h"

namespace fastdecode {
namespace {  // Each ISA-specific translation unit has its own copy: see attention_template.h.

// Up to 16 vectors times a panel (attention_page.h) by tiles. The vectors are rows of the left tile, a line of the
// panel is a row of the right one. One line of a panel meets 4 bytes of a vector, in bf16 as in bytes.
//
// A panel of K is cut into equal steps of up to 16 lines, so that no step is a shorter one and one configuration does
// for a whole call; a panel of V is one step. The steps add up in one chain: a product waits for the one before it no
// longer than the unit takes for one, and storing a tile takes as long as another two products. That the same registers
// serve for the next panel does not make it wait: they are renamed.
inline constexpr int kKSum = 0, kVSum = 1;
inline constexpr int kKLeft = 2, kKRight = 3, kVLeft = 4, kVRight = 5;

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
  config.Set(kKSum, rows, kTileRowBytes);
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

template <class Product, class Prefetch, Fetch kFetch>
struct TilePanel {
  static inline void MultiplyK(const std::byte* panel, int lines, const std::byte* x, ptrdiff_t x_bytes,
                               const Ahead& ahead, void* sums, ptrdiff_t sums_bytes) {
    const Prefetch prefetch(ahead, panel);
    const int step = KStepLines(lines);
    ZeroTile<kKSum>();
    for (int line = 0; line < lines; line += step) {
      LoadTile<kKLeft>(x + line * kTileStepBytes, x_bytes);
      MultiplyLines<kKSum, kKLeft, kKRight>(panel + line * kTileRowBytes, step, prefetch);
    }
    StoreTile<kKSum>(sums, sums_bytes);
  }

  // V's vectors are loaded once for all panels, which are multiplied, or added to what lies at `sums`.
  static inline void LoadV(const void* x, ptrdiff_t x_bytes) { LoadTile<kVLeft>(x, x_bytes); }
  static inline void MultiplyV(const std::byte* panel, int lines, const Ahead& ahead, TileSums* sums) {
    ZeroTile<kVSum>();
    MultiplyLines<kVSum, kVLeft, kVRight>(panel, lines, Prefetch(ahead, panel));
    StoreTile<kVSum>(sums, kTileRowBytes);
  }
  static inline void AddV(const std::byte* panel, int lines, const Ahead& ahead, float* sums, ptrdiff_t sums_bytes) {
    LoadTile<kVSum>(sums, sums_bytes);
    MultiplyLines<kVSum, kVLeft, kVRight>(panel, lines, Prefetch(ahead, panel));
    StoreTile<kVSum>(sums, sums_bytes);
  }

 private:
  template <int kSum, int kLeft, int kRight>
  static inline void MultiplyLines(const std::byte* lines, int count, const Prefetch& prefetch) {
    LoadTile<kRight>(lines, kTileRowBytes);
    for (int i = 0; i < count; ++i) {
      FetchAhead<kFetch>(prefetch, i, lines + i * kTileRowBytes);
    }
    Product::template Multiply<kSum, kLeft, kRight>();
  }
};

// As Bf16Dots, in another order: within a step the even and the odd elements of x are two chains of FMAs, added when it
// is done. Denormals count as zeros.
struct TileDots : Bf16Dots<AmxBf16Stages> {
  template <Fetch kFetch>
  using Panel = TilePanel<TileBf16, Prefetch, kFetch>;
  static constexpr float kPRounding = 0x1.0cp-9f;  // to bf16, and what Exponentiate leaves out
};

// Pages of bf16: scores, and where that can be acc, are the tiles' sums as they lie in memory. p is a polynomial of
// degree 3, off by 8.6e-5; its product with v takes it rounded to bf16, its sum as it is. A factor other than 1 first
// multiplies acc in memory, then a tile adds the sum of its two chains to it.
template <class V>
struct TileBf16Kv : PanelKv<V, TileDots> {
  using Base = PanelKv<V, TileDots>;
  using Weights = typename Base::Weights;

  // 2^x for x <= 127 by 2^(x - floor(x)), with 2^0 = 1 exactly; 0 far below -126, and no assist for a denormal where
  // they count as zeros. NaN gives NaN.
  static inline __m512 PowerOf2(__m512 x) {
    const __m512 f = _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    return _mm512_scalef_ps(CoarsePowerOf2<V>(f), x);
  }
  static inline void StoreP(__m512 low, __m512 high, Bf16* p) {
    _mm512_storeu_si512(p, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
  }
  static inline void Exponentiate(__m512 (&x)[2], Bf16* p, float* sums) {
    x[0] = PowerOf2(x[0]);
    x[1] = PowerOf2(x[1]);
    StoreP(x[0], x[1], p);
    _mm512_storeu_ps(sums, _mm512_add_ps(_mm512_loadu_ps(sums), _mm512_add_ps(x[0], x[1])));
  }

  template <int J, Fetch kFetch>
  static inline void Scores(int head_dim, const std::byte* page_head, const Ahead& ahead, const std::byte* q, int,
                            const typename Base::Prepared&, float* scores) {
    using Panel = TileDots::Panel<kFetch>;
    for (int t = 0; t < kPageTokens; t += kPanelLanes) {
      const std::byte* const panel = page_head + t * head_dim * sizeof(Bf16);
      Panel::MultiplyK(panel, head_dim / 2, q, Base::QueryBytes(head_dim), ahead, scores + t,
                       kPageTokens * sizeof(float));
    }
  }

  // In place, if the tile has the rows of the configuration.
  template <int J, Fetch kFetch>
  static inline void Add(int head_dim, const std::byte* page_head, const Ahead& ahead, const Bf16* p, int,
                         const Weights&, bool largest, float* acc) {
    using Panel = TileDots::Panel<kFetch>;
    const std::byte* const v = page_head + PageKElements(head_dim) * sizeof(Bf16);
    Panel::LoadV(p, kPageTokens * sizeof(Bf16));
    for (int dim = 0; dim < head_dim; dim += kPanelLanes) {
      const std::byte* const panel = v + dim * kPageTokens * sizeof(Bf16);
      if (largest) {
        Panel::AddV(panel, kPageTokens / 2, ahead, acc + dim, head_dim * sizeof(float));
      } else {
        TileSums sums;
        Panel::MultiplyV(panel, kPageTokens / 2, ahead, &sums);
#pragma GCC unroll 16
        for (int j = 0; j < J; ++j) {
          float* const at = acc + j * head_dim + dim;
          _mm512_storeu_ps(at, _mm512_add_ps(_mm512_loadu_ps(at), sums.Floats(j)));
        }
      }
    }
  }
};

// As BytePanels, which multiplies where there are too few vectors for tiles to gain.
template <class V>
struct TileBytes : BytePanels<V, AmxStages> {
  using Base = BytePanels<V, AmxStages>;
  using Int = typename V::Int;
  static constexpr int kTileMin = 5;

  template <int J>
  static constexpr int kAtOnce = 1;
  template <int J, int, Fetch kFetch, bool kPanelUnsigned>
  static inline void MultiplyBytes(const std::byte* panel, ptrdiff_t stride, int lines, const std::byte* x,
                                   ptrdiff_t x_bytes, const Ahead& ahead, Int (&sum)[1][J][1]) {
    if constexpr (J < kTileMin) {
      Base::template MultiplyBytes<J, 1, kFetch, kPanelUnsigned>(panel, stride, lines, x, x_bytes, ahead, sum);
    } else {
      TileSums sums;
      if constexpr (kPanelUnsigned) {
        TilePanel<TileSU, AmxStages, kFetch>::MultiplyK(panel, lines, x, x_bytes, ahead, &sums, kTileRowBytes);
      } else {
        TilePanel<TileUS, AmxStages, kFetch>::LoadV(x, x_bytes);
        TilePanel<TileUS, AmxStages, kFetch>::MultiplyV(panel, lines, ahead, &sums);
      }
#pragma GCC unroll 16
      for (int j = 0; j < J; ++j) sum[0][j][0] = V::AddInt(sum[0][j][0], sums.Ints(j));
    }
  }
};

}  // namespace
}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_AMX_PANELS_H_
