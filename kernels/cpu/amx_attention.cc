#include "kernels/cpu/amx_panels.h"
#include "kernels/cpu/amx_runs.h"
#include "kernels/cpu/attention_template.h"
#include "kernels/cpu/avx512vnni_vector.h"
#include "kernels/cpu/fma_dots.h"
#include "kernels/cpu/int4_kv.h"
#include "kernels/cpu/int8_kv.h"
#include "kernels/cpu/panel_kv.h"

namespace fastdecode {
namespace {

template <int kRowHeads>
struct AmxVector : Avx512VnniVector {
  static constexpr int kMaxTile = kRowHeads;
};
using Tiles = AmxVector<kAmxRows>;
using Few = AmxVector<8>;  // rounding queries to int4's scales, and open pages, want more than one register for each

struct AmxBf16Kv : TileBf16Kv<Tiles> {
  static constexpr int kOverlapTileMin = 9;
};
struct AmxInt8Kv : Int8Kv<Tiles, TileBytes<Tiles>> {
  static constexpr int kOverlapTileMin = Tiles::kMaxTile + 1;
};

// `Attention` with the tiles set up around each call, whose panels have so many elements in a step.
template <class Tiled, int kStepElements>
struct WithTiles {
  static AttentionKernels Kernels(const char* name) {
    AttentionKernels kernels = Tiled::Kernels(name);
    kernels.attend = &Attend;
    return kernels;
  }

  static void Attend(const AttentionShape& shape, const AttendArgs& args) {
    const int rows = Tiled::LargestTile(args.rows * shape.group);
    const TileScope tiles(PanelTiles(rows, shape.head_dim / kStepElements, kPageTokens / kStepElements));
    Tiled::Attend(shape, args);
  }
};

struct Bf16Tiles : WithTiles<Attention<Tiles, AmxBf16Kv>, 2> {
  static AttentionKernels Kernels(const char* name) {
    AttentionKernels kernels = WithTiles::Kernels(name);
    kernels.attend = &Attend;
    return kernels;
  }
  static void Attend(const AttentionShape& shape, const AttendArgs& args) {
    const int row_heads = args.rows * shape.group;
    const bool many = args.heads == 1 && row_heads >= kRunRowHeadsMin && row_heads <= TileRuns<Tiles, 1>::kRowHeadsMax;
    switch (many ? shape.head_dim : 0) {
      case 32:
        return TileRuns<Tiles, 1>::Attend(shape, args);
      case 64:
        return TileRuns<Tiles, 2>::Attend(shape, args);
      case 96:
        return TileRuns<Tiles, 3>::Attend(shape, args);
      case 128:
        return TileRuns<Tiles, 4>::Attend(shape, args);
    }
    WithTiles::Attend(shape, args);
  }

 private:
  static constexpr int kRunRowHeadsMin = 12;  // as make use of a tile of 16
};

// What tiles do not gain from, prefetched as these CPUs like it.
template <typename Element>
using Floats = PanelKv<Avx512Vector, FmaDots<Avx512Vector, Element, AmxStages>>;
using Int4 = Int4Kv<Few, BytePanels<Few, AmxStages>>;

}  // namespace

AttentionKernels AmxAttention(KvType type, bool bf16_rows) {
  switch (type) {
    case KvType::kF32:
      return Attention<Avx512Vector, Floats<float>>::Kernels("amx-f32");
    case KvType::kBf16:
      if (!bf16_rows) return Attention<Avx512Vector, Floats<Bf16>>::Kernels("amx-bf16-f32");
      return Bf16Tiles::Kernels("amx-bf16");
    case KvType::kFp16:
      return Attention<Avx512Vector, Floats<Fp16>>::Kernels("amx-fp16");
    case KvType::kInt8:
      return WithTiles<Attention<Tiles, AmxInt8Kv>, 4>::Kernels("amx-int8");
    case KvType::kInt4:
      return Attention<Few, Int4, OpenPages<Few>>::Kernels("amx-int4");
  }
  return {};
}

}  // namespace fastdecode
