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
using Full = AmxVector<kAmxRows>;
using Int4 = AmxVector<12>;  // rounding queries, and open pages, want two registers for each

// Not measured yet: how many row-heads a tile may have to take less than about 6 cycles a line, and so to prefetch
// sparsely, and from how many on overlapping pays (docs/PERFORMANCE.md), are estimates. Tiles take 1 to 2 cycles a line
// for any number; the rest is softmax, and rounding weights.
struct AmxBf16Kv : PanelKv<Full, TileDots> {};
struct AmxInt8Kv : Int8Kv<Full, TileBytes<Full>> {
  static constexpr int kSparseTileMax = 8;
  static constexpr int kOverlapTileMin = Full::kMaxTile + 1;
};
using AmxInt4Kv = Int4Kv<Int4, TileBytes<Int4>>;

// `Attention` with the tiles set up around each call. kElementBits: of a panel.
template <class Tiled, int kElementBits>
struct WithTiles {
  static AttentionKernels Kernels(const char* name) {
    AttentionKernels kernels = Tiled::Kernels(name);
    kernels.attend = &Attend;
    return kernels;
  }

 private:
  // Panels of bytes and of half bytes have four elements in a step.
  static constexpr int kStepElements = kElementBits == 16 ? 2 : 4;

  static void Attend(const AttentionShape& shape, const AttendArgs& args) {
    const int rows = Tiled::LargestTile(args.rows * shape.group);
    const TileScope tiles(PanelTiles(rows, shape.head_dim / kStepElements, kPageTokens / kStepElements));
    Tiled::Attend(shape, args);
  }
};

}  // namespace

AttentionKernels AmxAttention(KvType type) {
  switch (type) {
    case KvType::kBf16:
      return WithTiles<Attention<Full, AmxBf16Kv>, 16>::Kernels("amx-bf16");
    case KvType::kInt8:
      return WithTiles<Attention<Full, AmxInt8Kv>, 8>::Kernels("amx-int8");
    case KvType::kInt4:
      return WithTiles<Attention<Int4, AmxInt4Kv, OpenPages<Int4>>, 4>::Kernels("amx-int4");
    default:
      return {};
  }
}

}  // namespace fastdecode
