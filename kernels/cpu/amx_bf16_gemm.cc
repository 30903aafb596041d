#include <immintrin.h>

#include "kernels/cpu/ahead.h"
#include "kernels/cpu/amx_tiles.h"
#include "kernels/cpu/gemm_kernels.h"

// bf16 by AMX. 32 k of a panel are four right tiles, of 16 columns each, as they lie: 16 rows of a pair of k, 256 bytes
// apart. Rows of x are a left tile. A y element is one chain: for every 32 k in ascending order it adds the sum of two
// chains of FMAs, over the even and the odd k; denormals are zeros.
namespace fastdecode {
namespace {

constexpr int kColumnTiles = 4;
constexpr int kTileColumns = kPanelColumns / kColumnTiles;
constexpr int kInputs = 4, kWeights = 5;  // tiles; the sums' are 0 to 3
constexpr int64_t kPairBytes = 256;       // of a panel: 64 columns of two k
constexpr int64_t kStepBytes = kAmxRows * kPairBytes;
constexpr int64_t kTileBytes = kAmxRows * kTileRowBytes;
static_assert(kAmxRows * 2 == kPanelDepth && kTileRowBytes == kPanelDepth * 2);

// Steps of one k block, 128 KiB of a panel: where rows need several tiles, the second and later ones find it in L2. The
// sums go through y between blocks, which leaves the chain as it is. One tile of rows takes a panel in one go.
constexpr int64_t kBlockSteps = 32;

// Software prefetch, in the panels' ascending addresses. One tile of rows waits for memory alone: every line, in two
// stages (AmxStages in ahead.h). Several fetch the block after theirs into L2, a share of it each.
constexpr int64_t kFarBytes = AmxStages::kBytes, kNearBytes = kFarBytes / 2;

// One block of k for the rows of a tile and one panel.
struct Tile {
  const std::byte* x;  // first row's first step of the block
  int64_t x_stride_bytes;
  const std::byte* panel;  // first step of the block
  int64_t steps;
  const std::byte* prefetch;  // into L2 for each column tile, so many lines from here on
  int prefetch_lines;
  bool alone;   // its panel is not in L2, and it prefetches into L1, too
  float* sums;  // [rows][64]: to go on from, unless it is the first block; and where they go
  int64_t sums_stride_bytes;
  bool first;
};

template <int kColumn>
inline void BeginColumns(const Tile& tile) {
  if (tile.first) {
    ZeroTile<kColumn>();
  } else {
    LoadTile<kColumn>(tile.sums + kColumn * kTileColumns, tile.sums_stride_bytes);
  }
}

[[gnu::always_inline]] inline void PrefetchLines(const Tile& tile, const std::byte* far, const std::byte* weights) {
  if (tile.alone) {
#pragma GCC unroll 16
    for (int i = 0; i < kAmxRows; ++i) {
      PrefetchIntoL2(far + i * 64);
      PrefetchIntoL1(weights + kNearBytes + i * 64);
    }
  } else {
    for (int i = 0; i < tile.prefetch_lines; ++i) {
      PrefetchIntoL2(far + i * 64);
    }
  }
}

template <int kColumn>
inline void MultiplyColumns(const Tile& tile, const std::byte* weights, const std::byte* prefetch) {
  PrefetchLines(tile, prefetch + kColumn * 64 * tile.prefetch_lines, weights + kColumn * kTileBytes);
  LoadTile<kWeights>(weights + kColumn * kTileRowBytes, kPairBytes);
  TileBf16::Multiply<kColumn, kInputs, kWeights>();
}

template <int kColumn>
inline void EndColumns(const Tile& tile) {
  StoreTile<kColumn>(tile.sums + kColumn * kTileColumns, tile.sums_stride_bytes);
}

void RunTile(const Tile& tile) {
  BeginColumns<0>(tile);
  BeginColumns<1>(tile);
  BeginColumns<2>(tile);
  BeginColumns<3>(tile);
  const std::byte* x = tile.x;
  const std::byte* weights = tile.panel;
  const std::byte* prefetch = tile.prefetch;
  for (int64_t step = 0; step < tile.steps; ++step) {
    LoadTile<kInputs>(x, tile.x_stride_bytes);
    MultiplyColumns<0>(tile, weights, prefetch);
    MultiplyColumns<1>(tile, weights, prefetch);
    MultiplyColumns<2>(tile, weights, prefetch);
    MultiplyColumns<3>(tile, weights, prefetch);
    x += kTileRowBytes;
    weights += kStepBytes;
    prefetch += tile.prefetch_lines * kColumnTiles * 64;
  }
  EndColumns<0>(tile);
  EndColumns<1>(tile);
  EndColumns<2>(tile);
  EndColumns<3>(tile);
}

// Rows and columns of y, which may be fewer than a tile's, from and to a place that has room for a whole one.
struct PartialSums {
  alignas(64) float rows[kAmxRows][kPanelColumns];

  static __mmask16 Mask(int64_t columns) {
    return static_cast<__mmask16>(columns >= 16 ? 0xffff : columns <= 0 ? 0 : (1 << columns) - 1);
  }
  void Load(const float* y, int64_t y_stride, int count, int64_t columns) {
    for (int r = 0; r < count; ++r, y += y_stride) {
#pragma GCC unroll 4
      for (int c = 0; c < kPanelColumns; c += 16) {
        _mm512_store_ps(rows[r] + c, _mm512_maskz_loadu_ps(Mask(columns - c), y + c));
      }
    }
  }
  void Store(float* y, int64_t y_stride, int count, int64_t columns) const {
    for (int r = 0; r < count; ++r, y += y_stride) {
#pragma GCC unroll 4
      for (int c = 0; c < kPanelColumns; c += 16) {
        _mm512_mask_storeu_ps(y + c, Mask(columns - c), _mm512_load_ps(rows[r] + c));
      }
    }
  }
};

// Some rows of a call: `size` of a tile's. The last tile of a call has as many as a tile, others may have one fewer,
// and read a row of the next.
struct RowTile {
  int row, size;
};
RowTile RowTileAt(int rows, int tiles, int t) {
  const int row = static_cast<int>(int64_t{rows} * t / tiles);
  return {row, static_cast<int>(int64_t{rows} * (t + 1) / tiles) - row};
}

TileConfig GemmTiles(int rows) {
  TileConfig config;
  for (int i = 0; i < kColumnTiles; ++i) config.Set(i, rows, kTileRowBytes);
  config.Set(kInputs, rows, kTileRowBytes);
  config.Set(kWeights, kAmxRows, kTileRowBytes);
  return config;
}

}  // namespace

void AmxBf16Gemm(const GemmArgs& args) {
  if (args.rows == 0) return;
  const int64_t steps = (args.k + kPanelDepth - 1) / kPanelDepth;
  const int64_t x_stride_bytes = args.x_stride * 2;
  const std::byte* const x = static_cast<const std::byte*>(args.x);
  const int tiles = (args.rows + kAmxRows - 1) / kAmxRows;
  const int tile_rows = (args.rows + tiles - 1) / tiles;
  const int lines = (kAmxRows + tiles - 1) / tiles;
  const int64_t block_steps_max = tiles == 1 ? steps : kBlockSteps;
  PartialSums partial;
  const TileScope scope(GemmTiles(tile_rows));
  for (int64_t column = 0; column < args.columns; column += kPanelColumns) {
    const std::byte* const panel = args.panels + column / kPanelColumns * steps * kStepBytes;
    const int64_t columns = args.columns - column;
    int64_t step = 0;
    do {  // once even for k = 0, which writes zeros
      const int64_t block_steps = steps - step < block_steps_max ? steps - step : block_steps_max;
      const std::byte* const block = panel + step * kStepBytes;
      for (int t = 0; t < tiles; ++t) {
        const RowTile rows = RowTileAt(args.rows, tiles, t);
        float* const y = args.y + rows.row * args.y_stride + column;
        const bool whole = rows.size == tile_rows && columns >= kPanelColumns;
        if (!whole && step > 0) partial.Load(y, args.y_stride, rows.size, columns);
        RunTile({.x = x + rows.row * x_stride_bytes + step * kTileRowBytes,
                 .x_stride_bytes = x_stride_bytes,
                 .panel = block,
                 .steps = block_steps,
                 .prefetch = tiles == 1 ? block + kFarBytes
                                        : block + block_steps * (kStepBytes + t * lines * kColumnTiles * 64),
                 .prefetch_lines = lines,
                 .alone = tiles == 1,
                 .sums = whole ? y : partial.rows[0],
                 .sums_stride_bytes = (whole ? args.y_stride : kPanelColumns) * static_cast<int64_t>(sizeof(float)),
                 .first = step == 0});
        if (!whole) partial.Store(y, args.y_stride, rows.size, columns);
      }
      step += block_steps;
    } while (step < steps);
  }
}

}  // namespace fastdecode
