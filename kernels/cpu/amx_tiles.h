#ifndef FASTDECODE_KERNELS_CPU_AMX_TILES_H_
#define FASTDECODE_KERNELS_CPU_AMX_TILES_H_

#include <cstddef>
#include <cstdint>

namespace fastdecode {
namespace {  // Each ISA-specific translation unit has its own copy: see attention_template.h.

// AMX: eight registers, the tiles, of up to 16 rows of up to 64 bytes. A product is of a left tile [rows][steps] and a
// right one [steps][lanes], where a step is 4 bytes: two bf16 or four int8. What a tile's shape is, is said once for
// many instructions (TileScope). GCC 12's intrinsics do not say which memory they read, so that the compiler may leave
// out or move what wrote it, and take no template's numbers: hence these.
inline constexpr int kAmxRows = 16;
inline constexpr int kTileRowBytes = 64;
inline constexpr int kTileStepBytes = 4;

struct TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void Set(int tile, int tile_rows, int tile_row_bytes) {
    rows[tile] = static_cast<uint8_t>(tile_rows);
    row_bytes[tile] = static_cast<uint16_t>(tile_row_bytes);
  }
};
static_assert(sizeof(TileConfig) == 64, "as the CPU reads it");

// The thread's tiles have these shapes while it lives. Released tiles are nothing to save when threads change.
class TileScope {
 public:
  explicit TileScope(const TileConfig& config) { asm volatile("ldtilecfg %0" ::"m"(config)); }
  ~TileScope() { asm volatile("tilerelease"); }
  TileScope(const TileScope&) = delete;
  TileScope& operator=(const TileScope&) = delete;
};

template <int kTile>
inline void ZeroTile() {
  asm volatile("tilezero %%tmm%c0" ::"i"(kTile));
}
template <int kTile>
inline void LoadTile(const void* rows, ptrdiff_t stride_bytes) {
  asm volatile("tileloadd (%1,%2,1), %%tmm%c0" ::"i"(kTile), "r"(rows), "r"(stride_bytes) : "memory");
}
// Past the first-level cache, whose lines stay.
template <int kTile>
inline void StreamTile(const void* rows, ptrdiff_t stride_bytes) {
  asm volatile("tileloaddt1 (%1,%2,1), %%tmm%c0" ::"i"(kTile), "r"(rows), "r"(stride_bytes) : "memory");
}
template <int kTile>
inline void StoreTile(void* rows, ptrdiff_t stride_bytes) {
  asm volatile("tilestored %%tmm%c0, (%1,%2,1)" ::"i"(kTile), "r"(rows), "r"(stride_bytes) : "memory");
}

// sum += left * right, of bf16 or bytes; the first letter is the left's: U(nsigned), S(igned).
struct TileBf16 {
  template <int kSum, int kLeft, int kRight>
  static inline void Multiply() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kLeft), "i"(kRight));
  }
};
struct TileSU {
  template <int kSum, int kLeft, int kRight>
  static inline void Multiply() {
    asm volatile("tdpbsud %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kLeft), "i"(kRight));
  }
};
struct TileUS {
  template <int kSum, int kLeft, int kRight>
  static inline void Multiply() {
    asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" ::"i"(kSum), "i"(kLeft), "i"(kRight));
  }
};

}  // namespace
}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_AMX_TILES_H_
