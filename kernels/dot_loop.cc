#include "kernels/dot_loop.h"

#include <cstdint>

#include "numa/check.h"

namespace fastdecode {

namespace {

// 12 sums are enough for two instructions a clock that take 6.
constexpr int kSums = 12;
constexpr int kIterations = 1000;

// All eight tiles: 16 rows of 64 bytes.
struct TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
constexpr TileShapes kWholeTiles;

// Sums in registers 0 to 11, of products of zeros: that may draw less power than others do.
#define FD_DOT_LOOP(name, instruction, r)                                                                         \
  void name() {                                                                                                   \
    asm volatile("vpxor %%xmm15,%%xmm15,%%xmm15" ::: "xmm15");                                                    \
    for (int i = 0; i < kIterations; ++i) {                                                                       \
      asm volatile(".irp n,0,1,2,3,4,5,6,7,8,9,10,11\n" instruction " %%" r "15,%%" r "15,%%" r "\\n\n.endr" ::   \
                       : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", \
                         "xmm11", "xmm15");                                                                       \
    }                                                                                                             \
    asm volatile("vzeroupper" ::: "memory");                                                                      \
  }
FD_DOT_LOOP(FmaYmm, "vfmadd231ps", "ymm")
FD_DOT_LOOP(FmaZmm, "vfmadd231ps", "zmm")
FD_DOT_LOOP(Bf16Zmm, "vdpbf16ps", "zmm")
FD_DOT_LOOP(BytesZmm, "vpdpbusd", "zmm")
#undef FD_DOT_LOOP

// Tiles 0 to 3 are sums, of products of whole tiles of zeros.
constexpr int kTileSums = 4;
#define FD_TILE_LOOP(name, instruction)                                                 \
  void name() {                                                                         \
    asm volatile("ldtilecfg %0\ntilezero %%tmm6\ntilezero %%tmm7" ::"m"(kWholeTiles));  \
    for (int i = 0; i < kIterations; ++i) {                                             \
      asm volatile(".irp n,0,1,2,3\n" instruction " %%tmm7,%%tmm6,%%tmm\\n\n.endr" ::); \
    }                                                                                   \
    asm volatile("tilerelease");                                                        \
  }
FD_TILE_LOOP(Bf16Tile, "tdpbf16ps")
FD_TILE_LOOP(BytesTile, "tdpbssd")
#undef FD_TILE_LOOP

// Of `products` an instruction.
constexpr double Flop(int products, int sums = kSums) { return 2.0 * products * sums * kIterations; }

}  // namespace

DotLoop SelectDotLoop(Isa isa, const AttentionShape& shape, bool of_prompts) {
  FD_CHECK(isa != Isa::kNone && isa <= DetectIsa(), "the ISA is one that this machine has");
  const bool bf16 = shape.kv_type == KvType::kBf16 && shape.type == ElementType::kBf16;
  const bool unpacks = of_prompts && shape.kv_type >= KvType::kInt8 && shape.type == ElementType::kBf16;
  if (isa >= Isa::kAmx && (bf16 || unpacks)) return {"tdpbf16ps", Flop(16 * 16 * 32, kTileSums), &Bf16Tile};
  if (isa >= Isa::kAmx && shape.kv_type >= KvType::kInt8) {
    return {"tdpbssd", Flop(16 * 16 * 64, kTileSums), &BytesTile};
  }
  if (isa >= Isa::kAvx512Bf16 && bf16) return {"vdpbf16ps zmm", Flop(32), &Bf16Zmm};
  if (isa >= Isa::kAvx512Vnni && shape.kv_type >= KvType::kInt8) return {"vpdpbusd zmm", Flop(64), &BytesZmm};
  if (isa == Isa::kAvx2) return {"vfmadd231ps ymm", Flop(8), &FmaYmm};
  return {"vfmadd231ps zmm", Flop(16), &FmaZmm};
}

}  // namespace fastdecode
