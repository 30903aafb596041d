#include "kernels/cpu/amx_blocks.h"
#include "kernels/cpu/amx_panels.h"
#include "kernels/cpu/appended_page.h"
#include "kernels/cpu/attention_template.h"
#include "kernels/cpu/avx512vnni_vector.h"
#include "kernels/cpu/fma_dots.h"
#include "kernels/cpu/int4_kv.h"
#include "kernels/cpu/int8_kv.h"
#include "kernels/cpu/panel_kv.h"
#include "kernels/cpu/unpacked_pages.h"

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
  static AttentionKernels Kernels(const char* name, const AttendCost& cost) {
    AttentionKernels kernels = Tiled::Kernels(name, cost);
    kernels.attend = &Attend;
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
    AttentionKernels kernels = WithTiles::Kernels(name, {BlockOf(head_dim) != nullptr ? 96 : 32, 1, true});
    kernels.attend = &Attend;
    kernels.many_prompt_rows = BlockOf(head_dim) != nullptr;
    return kernels;
  }

  static void Attend(const AttentionShape& shape, const AttendArgs& args) {
    if (!TakesBlocks(shape, args)) return WithTiles::Attend(shape, args);
    const int head_bytes = PageHeadElements(shape.head_dim) * static_cast<int>(sizeof(Bf16));
    AttendRows(shape, args, {0, args.rows}, {head_bytes / kTileRowBytes, args.page_stride_bytes});
  }

  // Whether there are rows enough for AttendRows to pay.
  static bool TakesBlocks(const AttentionShape& shape, const AttendArgs& args) {
    return args.rows * shape.group >= kRowHeadsMin && args.heads == 1 && BlockOf(shape.head_dim) != nullptr;
  }

  // Some of a call's rows; those that begin with the first one also set all queries. REQUIRES: one head, of a size for
  // which kernels take many_prompt_rows.
  struct Rows {
    int first, end;
  };
  static void AttendRows(const AttentionShape& shape, const AttendArgs& args, const Rows& rows,
                         const Upcoming::Pages& next) {
    BlockOf(shape.head_dim)(shape, args, rows, next);
  }

 private:
  static constexpr int kRowHeadsMin = 12;  // as make use of a tile of 16
  using AttendRowsFn = void (*)(const AttentionShape& shape, const AttendArgs& args, const Rows& rows,
                                const Upcoming::Pages& next);

  // Null, if there is none for such heads.
  static AttendRowsFn BlockOf(int head_dim) {
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
  static void AttendBlock(const AttentionShape& shape, const AttendArgs& args, const Rows& rows,
                          const Upcoming::Pages& next) {
    using Two = TileBlock<Bf16Rows, kSteps, 2>;
    using One = TileBlock<Bf16Rows, kSteps, 1>;
    TileConfig config;
    for (int tile = 0; tile < 8; ++tile) config.Set(tile, kAmxRows, kTileRowBytes);
    const TileScope tiles(config);
    const int begin = rows.first * shape.group, end = rows.end * shape.group;
    int pages = 0;  // that all passes go through, but for a window
    for (int first = begin; first < end; first += 2 * kAmxRows) {
      const int last = first + 2 * kAmxRows < end ? first + 2 * kAmxRows - 1 : end - 1;
      const int seen = args.first_row_position + last / shape.group + 1 - args.first_position;
      if (seen > 0) pages += ((seen < args.tokens ? seen : args.tokens) + kPageTokens - 1) / kPageTokens;
    }
    Upcoming upcoming(args, next, shape.group * kSteps, pages * Two::kBringsOfAPage);
    if (begin == 0 && !args.same_queries) Two::SetQueries(shape, args);
    for (int first = begin; first < end; first += 2 * kAmxRows) {
      if (end - first > kAmxRows) {
        Two::Attend(shape, args, first, end, &upcoming);
      } else {
        One::Attend(shape, args, first, end, &upcoming);
      }
    }
  }
};

// Rows of prompts and pages of int8 or int4, rows in bf16: a block's pages of a KV head become pages of bf16 in the
// scratch, which are attended to instead. Many rows share the work.
template <class Unpack>
struct PromptTiles {
  static void Attend(const AttentionShape& shape, const AttendArgs& args) {
    AttentionShape unpacked = shape;
    unpacked.kv_type = KvType::kBf16;
    unpacked.kv_heads = 1;
    const int n = args.rows * shape.group;
    const ptrdiff_t row_bytes = shape.group * shape.head_dim * ptrdiff_t{sizeof(Bf16)};
    uint32_t page_ids[kBlockPages];
    for (int page = 0; page < kBlockPages; ++page) page_ids[page] = static_cast<uint32_t>(page);
    const auto at_head = [&](const Partial& all, int head) {
      if (all.acc == nullptr) return all;
      return Partial{all.max + head * n, all.sum + head * n, all.acc + head * n * shape.head_dim};
    };
    for (int head = 0; head < args.heads; ++head) {
      AttendArgs one = args;
      one.layer_base = args.scratch + UnpackedPagesAt(shape);
      one.page_stride_bytes = static_cast<size_t>(UnpackedBytes(shape));
      one.page_ids = page_ids;
      one.open_pages = nullptr;
      one.next_append = nullptr;  // it is for pages of the KV type
      one.first_head = 0;
      one.heads = 1;
      one.q = args.q + head * row_bytes;
      one.same_queries = args.same_queries && args.heads == 1;
      if (head + 1 < args.heads) one.next = nullptr, one.next_pages = one.next_rows = 0;
      one.out = at_head(args.out, head);
      one.into = at_head(args.into, head);
      if (args.o != nullptr) one.o = args.o + head * row_bytes;
      AttendHead(shape, args, args.first_head + head, unpacked, one);
    }
  }

 private:
  // The `packed` call's head, to which `args` is the call for what is unpacked. Its rows see the same pages closed, but
  // for those that have one of the block's pages open: these are attended to page by page, while it takes the place of
  // the closed one.
  static void AttendHead(const AttentionShape& shape, const AttendArgs& packed, int head,
                         const AttentionShape& unpacked, const AttendArgs& args) {
    const Upcoming::Pages next = {Unpack::HeadBytes(shape.head_dim) / kTileRowBytes, packed.page_stride_bytes};
    // All blocks alike, as queries stay: open pages are in the last ones.
    const bool in_pages = Unpack::kOpens && args.first_row_position % kPageTokens + args.rows > kPageTokens;
    const bool in_rows = in_pages || Bf16Tiles::TakesBlocks(unpacked, args);
    std::byte* const unpacked_pages = args.scratch + UnpackedPagesAt(shape);
    const SeenTokens seen(shape, packed);
    const int seen_end = (seen.end + kPageTokens - 1) / kPageTokens;
    const int first_page = args.first_position / kPageTokens;
    int page = seen.first_page;
    for (Bf16Tiles::Rows rows = {0, 0}; rows.first < args.rows; rows.first = rows.end) {
      rows.end = args.rows;
      const int position = args.first_row_position + rows.first, own_page = position / kPageTokens - first_page;
      const bool opens = packed.open_pages != nullptr && own_page < kBlockPages;
      if (opens) {
        const int end = rows.first + kPageTokens - position % kPageTokens;
        if (end < rows.end) rows.end = end;
      }
      for (const int closed_end = opens ? own_page : seen_end; page < closed_end; ++page) {
        const std::byte* const page_at = packed.layer_base + packed.page_ids[page] * packed.page_stride_bytes;
        Unpack::Head(shape.head_dim, page_at + head * Unpack::HeadBytes(shape.head_dim),
                     unpacked_pages + page * UnpackedBytes(shape));
      }
      if (opens && own_page >= 0) {
        const int of_rows = position / kPageTokens - args.first_row_position / kPageTokens;
        const int tokens = packed.tokens - own_page * kPageTokens;
        PackOpenHead(shape.head_dim, tokens < kPageTokens ? tokens : kPageTokens, packed.open_pages[of_rows], head,
                     unpacked_pages + own_page * UnpackedBytes(shape));
      }
      if (!in_rows) return Bf16Tiles::Attend(unpacked, args);
      AttendArgs these = args;
      if (rows.end < args.rows) these.next_pages = these.next_rows = 0;
      Bf16Tiles::AttendRows(unpacked, these, rows, next);
    }
  }

  // With zeros behind the tokens: a tile multiplies all of V.
  static void PackOpenHead(int head_dim, int tokens, const OpenPage& from, int head, std::byte* to) {
    const ptrdiff_t head_bytes = PageHeadElements(head_dim) * ptrdiff_t{sizeof(Bf16)};
    if (tokens < kPageTokens) __builtin_memset(to, 0, static_cast<size_t>(head_bytes));
    Avx2PackOpenHead(head_dim, tokens, from, head, to);
  }
  static ptrdiff_t UnpackedBytes(const AttentionShape& shape) {
    return PageHeadElements(shape.head_dim) * ptrdiff_t{sizeof(Bf16)};
  }
};

// What tiles do not gain from, prefetched as these CPUs like it.
template <typename Element>
using Floats = PanelKv<Avx512Vector, FmaDots<Avx512Vector, Element, AmxStages>>;
using Int4 = Int4Kv<Few, BytePanels<Few, AmxInt4Stages>>;

// Partials are folded and finished as those of other rows: where denormals are flushed, as they are in a team's
// threads, with the bits of Bf16Rows.
template <class Unpack>
AttentionKernels WithPrompts(AttentionKernels kernels, bool bf16_rows, int head_dim, const AttendCost& cost) {
  if (!bf16_rows) return kernels;
  const AttentionKernels unpacked = Bf16Tiles::Kernels("", head_dim);
  kernels.prompts = {&PromptTiles<Unpack>::Attend, unpacked.p_rounding, cost};
  kernels.many_prompt_rows = unpacked.many_prompt_rows;
  return kernels;
}

}  // namespace

AttentionKernels AmxAttention(KvType type, bool bf16_rows, int head_dim) {
  switch (type) {
    case KvType::kF32:
      return Attention<Avx512Vector, Floats<float>>::Kernels("amx-f32");
    case KvType::kBf16:
      if (!bf16_rows) return Attention<Avx512Vector, Floats<Bf16>>::Kernels("amx-bf16-f32");
      return Bf16Tiles::Kernels("amx-bf16", head_dim);
    case KvType::kFp16:
      return Attention<Avx512Vector, Floats<Fp16>>::Kernels("amx-fp16");
    case KvType::kInt8: {  // costs: of 10 ns
      const AttentionKernels kernels = WithTiles<Attention<Tiles, AmxInt8Kv>, 4>::Kernels("amx-int8", {32, 2, true});
      return WithPrompts<UnpackInt8>(kernels, bf16_rows, head_dim, {80, 1, true});
    }
    case KvType::kInt4: {
      const AttentionKernels kernels = Attention<Few, Int4, OpenPages<Few>>::Kernels("amx-int4", {48, 6, false});
      return WithPrompts<UnpackInt4>(kernels, bf16_rows, head_dim, {60, 1, true});
    }
  }
  return {};
}

}  // namespace fastdecode
