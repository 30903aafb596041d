#include "kernels/cpu/amx_blocks.h"
#include "kernels/cpu/amx_panels.h"
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

// Results in bf16 by an instruction of their own, in which denormals are zeros: the other types' are the same on each
// ISA.
struct Bf16Rows : Tiles {
  static void StoreRow(float* p, __m512 x) { Tiles::StoreRow(p, x); }
  static void StoreRow(Bf16* p, __m512 x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(x)));
  }
  static void StreamRow(float* p, __m512 low, __m512 high) { Tiles::StreamRow(p, low, high); }
  static void StreamRow(Bf16* p, __m512 low, __m512 high) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(p), reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
  }
};

struct AmxBf16Kv : TileBf16Kv<Bf16Rows> {
  static constexpr int kOverlapTileMin = 9;
};
struct AmxInt8Kv : Int8Kv<Tiles, TileBytes<Tiles>> {
  static constexpr int kOverlapTileMin = Tiles::kMaxTile + 1;
};

// `Attention` with the tiles set up around each call, whose panels have so many elements in a step.
template <class Tiled, int kStepElements>
struct WithTiles {
  static AttentionKernels Kernels(const char* name, AttendCost cost) {
    AttentionKernels kernels = Tiled::Kernels(name);
    kernels.attend = &Attend;
    kernels.cost = cost;
    return kernels;
  }

  static void Attend(const AttentionShape& shape, const AttendArgs& args) {
    const int rows = Tiled::LargestTile(args.rows * shape.group);
    const TileScope tiles(PanelTiles(rows, shape.head_dim / kStepElements, kPageTokens / kStepElements));
    Tiled::Attend(shape, args);
  }
};

struct Bf16Tiles : WithTiles<Attention<Bf16Rows, AmxBf16Kv>, 2> {
  static AttentionKernels Kernels(const char* name, int head_dim) {
    // 16 KB are read in .9 us, and multiplied by 16 row-heads in .15; page by page in .5.
    AttentionKernels kernels = WithTiles::Kernels(name, {BlockOf(head_dim) != nullptr ? 96 : 32, true});
    kernels.attend = &Attend;
    return kernels;
  }
  static void Attend(const AttentionShape& shape, const AttendArgs& args) {
    const bool many = args.heads == 1 && args.rows * shape.group >= kRowHeadsMin;
    if (const AttendFn attend_block = many ? BlockOf(shape.head_dim) : nullptr; attend_block != nullptr) {
      return attend_block(shape, args);
    }
    WithTiles::Attend(shape, args);
  }

 private:
  static constexpr int kRowHeadsMin = 12;  // as make use of a tile of 16

  // Null, if there is none for such heads.
  static AttendFn BlockOf(int head_dim) {
    switch (head_dim) {
      case 32:
        return &AttendBlock<1>;
      case 64:
        return &AttendBlock<2>;
      case 96:
        return &AttendBlock<3>;
      case 128:
        return &AttendBlock<4>;
      case 256:
        return &AttendBlock<8>;
    }
    return nullptr;
  }

  template <int kSteps>
  static void AttendBlock(const AttentionShape& shape, const AttendArgs& args) {
    using Two = TileBlock<Bf16Rows, kSteps, 2>;
    using One = TileBlock<Bf16Rows, kSteps, 1>;
    TileConfig config;
    for (int tile = 0; tile < 8; ++tile) config.Set(tile, kAmxRows, kTileRowBytes);
    const TileScope tiles(config);
    const int row_heads = args.rows * shape.group;
    const int passes = (row_heads + 2 * kAmxRows - 1) / (2 * kAmxRows);
    const int pages = (args.tokens + kPageTokens - 1) / kPageTokens;
    const int q_lines = shape.group * kSteps;
    Upcoming upcoming(args, Two::kHeadLines, q_lines, passes * pages * Two::kBringsOfAPage);
    if (!args.same_queries) Two::SetQueries(shape, args);
    for (int first = 0; first < row_heads; first += 2 * kAmxRows) {
      if (row_heads - first > kAmxRows) {
        Two::Attend(shape, args, first, &upcoming);
      } else {
        One::Attend(shape, args, first, &upcoming);
      }
    }
  }
};

// What tiles do not gain from, prefetched as these CPUs like it.
template <typename Element>
using Floats = PanelKv<Avx512Vector, FmaDots<Avx512Vector, Element, AmxStages>>;
using Int4 = Int4Kv<Few, BytePanels<Few, AmxStages>>;

AttentionKernels Kernels(KvType type, bool bf16_rows, int head_dim) {
  switch (type) {
    case KvType::kF32:
      return Attention<Avx512Vector, Floats<float>>::Kernels("amx-f32");
    case KvType::kBf16:
      if (!bf16_rows) return Attention<Avx512Vector, Floats<Bf16>>::Kernels("amx-bf16-f32");
      return Bf16Tiles::Kernels("amx-bf16", head_dim);
    case KvType::kFp16:
      return Attention<Avx512Vector, Floats<Fp16>>::Kernels("amx-fp16");
    case KvType::kInt8:
      return WithTiles<Attention<Tiles, AmxInt8Kv>, 4>::Kernels("amx-int8", {16, true});
    case KvType::kInt4:
      return Attention<Few, Int4, OpenPages<Few>>::Kernels("amx-int4");
  }
  return {};
}

}  // namespace

AttentionKernels AmxAttention(KvType type, bool bf16_rows, int head_dim) {
  AttentionKernels kernels = Kernels(type, bf16_rows, head_dim);
  if (type >= KvType::kInt8) kernels.append = &VbmiAppendToPage;
  return kernels;
}

}  // namespace fastdecode
