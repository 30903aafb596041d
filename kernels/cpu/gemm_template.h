#ifndef FASTDECODE_KERNELS_CPU_GEMM_TEMPLATE_H_
#define FASTDECODE_KERNELS_CPU_GEMM_TEMPLATE_H_

#include <immintrin.h>

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/ahead.h"
#include "kernels/gemm.h"
#include "kernels/isa.h"

// The loops around one ISA's multiply-add. Included by exactly one kernel file per (ISA, type), each compiled with its
// own flags: everything lies in an anonymous namespace, and nothing of the standard library is called, so that no
// function built for a newer CPU can be merged with a baseline one by the linker.
//
// A panel is read as steps of 256 bytes: 64 columns of one k (f32) or of two adjacent k (bf16). A step of x is 4 bytes:
// one f32 or two bf16. `Ops` supplies:
//   Vec, kLanes                            vector of f32 sums, columns of the panel that it holds
//   kParts                                 multiply-adds of one step: 1, or 2 if bf16 pairs are widened to f32
//   kMaxTileRows, kVecs(rows)              rows of a tile; vectors of a row that it keeps in registers
//   Zero(), Load(p), Store(p, v), LoadSome(p, n), StoreSome(p, n, v)
//   Weights(p, part)                       weights of kLanes columns
//   Inputs(p)                              x of one part of a step in every lane
//   MultiplyAdd(weights, inputs, sum)
//   WidenInputs(x, steps, out)             only if kParts = 2
namespace fastdecode {
namespace {

constexpr int64_t kStepBytes = 256;

// Steps of one k block, 32 KiB of a panel: the second and later row tiles find it in L1 and L2. The sums go through y
// between blocks, which leaves the chain of operations as it is. Measured on Zen 4, bf16, 8 rows: 128 steps reach 0.77
// of the read bandwidth, 64 and 256 steps 0.78 and 0.56; 16 rows 213 GFLOP/s, 202 and 183.
constexpr int64_t kBlockSteps = 128;

// How far ahead in the panels' ascending addresses: a block, or as Prefetch says.
template <class Prefetch>
constexpr int64_t kAheadBytes = Prefetch::kBytes != 0 ? Prefetch::kBytes : kBlockSteps* kStepBytes;

// One block of k for a few rows and some columns of one panel.
struct Tile {
  const std::byte* x;  // first row's first step of the block
  int64_t x_stride_bytes;
  const std::byte* panel;  // first step of the block, first column
  int64_t steps;
  const std::byte* prefetch;  // distances ahead count from this line; then kStepBytes on at each step
  float* y;
  int64_t y_stride;
  int64_t columns;  // to load and store, may exceed the tile's
  bool first;       // of the blocks: sums start at zero
};

// How many of a step's four lines are prefetched, and how (ahead.h).
template <int kLines, class PrefetchKind>
struct Lines {
  static constexpr int kCount = kLines;
  using Prefetch = PrefetchKind;
};

template <class Ops, int kRows, int kVecs, class Fetched>
void RunTile(const Tile& tile) {
  using Prefetch = typename Fetched::Prefetch;
  typename Ops::Vec sums[kRows][kVecs];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      const int64_t left = tile.columns - v * Ops::kLanes;
      const float* y = tile.y + r * tile.y_stride + v * Ops::kLanes;
      if (tile.first || left <= 0) {
        sums[r][v] = Ops::Zero();
      } else {
        sums[r][v] = left >= Ops::kLanes ? Ops::Load(y) : Ops::LoadSome(y, left);
      }
    }
  }
  const std::byte* x = tile.x;
  const std::byte* panel = tile.panel;
  const std::byte* prefetch = tile.prefetch;
  const Prefetch ahead({.bytes = kAheadBytes<Prefetch>}, panel);
  for (int64_t step = 0; step < tile.steps; ++step) {
#pragma GCC unroll 4
    for (int line = 0; line < Fetched::kCount; ++line) ahead.Line(prefetch + line * 64);
#pragma GCC unroll 2
    for (int part = 0; part < Ops::kParts; ++part) {
      typename Ops::Factor weights[kVecs];
#pragma GCC unroll 8
      for (int v = 0; v < kVecs; ++v) weights[v] = Ops::Weights(panel + v * Ops::kLanes * 4, part);
#pragma GCC unroll 8
      for (int r = 0; r < kRows; ++r) {
        const typename Ops::Factor inputs = Ops::Inputs(x + r * tile.x_stride_bytes + part * 4);
#pragma GCC unroll 8
        for (int v = 0; v < kVecs; ++v) sums[r][v] = Ops::MultiplyAdd(weights[v], inputs, sums[r][v]);
      }
    }
    x += 4 * Ops::kParts;
    panel += kStepBytes;
    prefetch += kStepBytes;
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVecs; ++v) {
      const int64_t left = tile.columns - v * Ops::kLanes;
      float* y = tile.y + r * tile.y_stride + v * Ops::kLanes;
      if (left >= Ops::kLanes) {
        Ops::Store(y, sums[r][v]);
      } else if (left > 0) {
        Ops::StoreSome(y, left, sums[r][v]);
      }
    }
  }
}

// All columns of the panel for kRows rows, in as many passes as the registers need. The lines to prefetch are shared
// out over the passes.
template <class Ops, int kRows, class Fetched>
void RunRows(Tile tile) {
  constexpr int kVecs = Ops::kVecs(kRows);
  constexpr int kTileColumns = kVecs * Ops::kLanes;
  constexpr int kPasses = kPanelColumns / kTileColumns;
  constexpr int kLines = (Fetched::kCount + kPasses - 1) / kPasses;
  for (int pass = 0; pass < kPasses && tile.columns > 0; ++pass) {
    if (pass * kLines < Fetched::kCount) {
      RunTile<Ops, kRows, kVecs, Lines<kLines, typename Fetched::Prefetch>>(tile);
    } else {
      RunTile<Ops, kRows, kVecs, Lines<0, HeadAhead>>(tile);
    }
    tile.panel += kTileColumns * 4;
    tile.prefetch += kLines * 64;
    tile.y += kTileColumns;
    tile.columns -= kTileColumns;
  }
}

template <class Ops, class Fetched, int kRows = 1>
void DispatchRows(int rows, const Tile& tile) {
  if constexpr (kRows < Ops::kMaxTileRows) {
    if (rows != kRows) return DispatchRows<Ops, Fetched, kRows + 1>(rows, tile);
  }
  RunRows<Ops, kRows, Fetched>(tile);
}

// What each row tile prefetches. On Zen 4 one ascending pass over the block is faster with every fourth line only (the
// hardware fetches the rest: 0.85 against 0.78 of the read bandwidth at 6 rows), and where several passes share a
// block, they share all of the lines (0.77 against 0.48 at 8 rows). On Zen 5 one pass is faster with all of them from 3
// rows on (0.98 against 0.86 at 6 rows; 0.96 against 1.05 at one), and several passes of one tile in stages (0.88
// against 0.80 at 8 rows), but not two tiles, the second of which finds the block in the caches (0.55 against 0.85 at
// 16 rows).
enum class Wanted { kNone, kOneLine, kTwoLines, kAllLines, kAllInStages };
template <class Ops>
Wanted WantedLines(int rows, int tiles) {
  if (tiles > 1) return tiles <= 3 ? Wanted::kTwoLines : Wanted::kOneLine;
  const bool one_pass = Ops::kVecs(rows) * Ops::kLanes == kPanelColumns;
  if (!CpuIsZen5OrLater()) return one_pass ? Wanted::kOneLine : Wanted::kAllLines;
  if (!one_pass) return Wanted::kAllInStages;
  return rows <= 2 ? Wanted::kOneLine : Wanted::kAllLines;
}

template <class Ops>
void RunWanting(Wanted wanted, int rows, const Tile& tile) {
  switch (wanted) {
    case Wanted::kNone:
      return DispatchRows<Ops, Lines<0, HeadAhead>>(rows, tile);
    case Wanted::kOneLine:
      return DispatchRows<Ops, Lines<1, HeadAhead>>(rows, tile);
    case Wanted::kTwoLines:
      return DispatchRows<Ops, Lines<2, HeadAhead>>(rows, tile);
    case Wanted::kAllLines:
      return DispatchRows<Ops, Lines<4, HeadAhead>>(rows, tile);
    case Wanted::kAllInStages:
      return DispatchRows<Ops, Lines<4, Zen5Stages>>(rows, tile);
  }
}

template <class Ops>
void Gemm(const GemmArgs& args) {
  constexpr bool kBf16 = Ops::kType == ElementType::kBf16;
  const int64_t steps = kBf16 ? (args.k + kPanelDepth - 1) / kPanelDepth * (kPanelDepth / 2) : args.k;
  const int64_t x_stride_bytes = args.x_stride * (kBf16 ? 2 : 4);
  const std::byte* x = static_cast<const std::byte*>(args.x);
  const int tiles = (args.rows + Ops::kMaxTileRows - 1) / Ops::kMaxTileRows;
  const Wanted wanted = WantedLines<Ops>(args.rows, tiles);
  const int lines = wanted == Wanted::kOneLine ? 1 : wanted == Wanted::kTwoLines ? 2 : 4;
  for (int64_t column = 0; column < args.columns; column += kPanelColumns) {
    const std::byte* panel = args.panels + column / kPanelColumns * steps * kStepBytes;
    int64_t step = 0;
    do {  // once even for k = 0, which writes zeros
      const int64_t block_steps = steps - step < kBlockSteps ? steps - step : kBlockSteps;
      const std::byte* block = panel + step * kStepBytes;
      for (int t = 0; t < tiles; ++t) {
        const int row = static_cast<int>(static_cast<int64_t>(args.rows) * t / tiles);
        const int tile_rows = static_cast<int>(static_cast<int64_t>(args.rows) * (t + 1) / tiles) - row;
        Tile tile = {.x = x + row * x_stride_bytes + step * 4,
                     .x_stride_bytes = x_stride_bytes,
                     .panel = block,
                     .steps = block_steps,
                     .prefetch = block + t * lines * 64,
                     .y = args.y + row * args.y_stride + column,
                     .y_stride = args.y_stride,
                     .columns = args.columns - column,
                     .first = step == 0};
        [[maybe_unused]] alignas(64) float widened[Ops::kParts == 2 ? Ops::kMaxTileRows : 1][2 * kBlockSteps];
        if constexpr (Ops::kParts == 2) {
          for (int r = 0; r < tile_rows; ++r) Ops::WidenInputs(tile.x + r * x_stride_bytes, block_steps, widened[r]);
          tile.x = reinterpret_cast<const std::byte*>(widened);
          tile.x_stride_bytes = sizeof(widened[0]);
        }
        RunWanting<Ops>((t + 1) * lines <= 4 ? wanted : Wanted::kNone, tile_rows, tile);
      }
      step += block_steps;
    } while (step < steps);
  }
}

}  // namespace
}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_GEMM_TEMPLATE_H_
