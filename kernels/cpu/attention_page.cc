#include "kernels/cpu/attention_page.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "kernels/cpu/page_codes.h"
#include "numa/check.h"

namespace fastdecode {
namespace {

template <typename Element, typename Row>
Element Convert(Row value) {
  if constexpr (std::is_same_v<Element, Row>) {
    return value;
  } else {
    float wide;
    if constexpr (std::is_same_v<Row, Bf16>) {
      wide = FromBf16(value);
    } else {
      wide = value;
    }
    if constexpr (std::is_same_v<Element, Bf16>) return ToBf16(ClampToBf16(wide));
    if constexpr (std::is_same_v<Element, Fp16>) return ToFp16(wide);
    if constexpr (std::is_same_v<Element, float>) return wide;
  }
}

// A KV head in quarters: consecutive ones, or those of an open page.
template <typename Element>
struct Quarters {
  Quarters(int head_dim, const AppendArgs& args) : k_elements(PageKElements(head_dim) / 2) {
    for (int i = 0; i < kOpenPieces; ++i) {
      at[i] = args.open_page == nullptr
                  ? reinterpret_cast<Element*>(args.page) + args.kv_head * PageHeadElements(head_dim) + i * k_elements
                  : reinterpret_cast<Element*>(args.open_page->pieces[i] +
                                               static_cast<size_t>(args.kv_head) * args.open_page->head_stride_bytes);
    }
  }
  // Element `offset` of K, or of V.
  Element* K(int offset) const { return at[offset / k_elements] + offset % k_elements; }
  Element* V(int offset) const { return at[2 + offset / k_elements] + offset % k_elements; }
  void Clear() const {
    for (Element* quarter : at) std::memset(static_cast<void*>(quarter), 0, sizeof(Element) * k_elements);
  }

  int k_elements;  // of a quarter
  Element* at[kOpenPieces];
};

template <typename Element, typename Row>
void AppendPanels(const AttentionShape& shape, const AppendArgs& args) {
  const int head_dim = shape.head_dim;
  const Quarters<Element> quarters(head_dim, args);
  if (args.first_slot == 0 && args.tokens < kPageTokens) quarters.Clear();

  for (int i = 0; i < args.tokens; ++i) {
    const Row* k = reinterpret_cast<const Row*>(args.k + i * args.row_stride_bytes);
    const Row* v = reinterpret_cast<const Row*>(args.v + i * args.row_stride_bytes);
    const int slot = args.first_slot + i;
    Element* k_panel = quarters.K(slot / kPanelLanes * kPanelLanes * head_dim);
    for (int d = 0; d < head_dim; ++d) {
      k_panel[PanelOffset<Element>(d, slot % kPanelLanes)] = Convert<Element, Row>(k[d]);
    }
    for (int d = 0; d < head_dim; d += kPanelLanes) {
      const int step = PanelOffset<Element>(slot, 0);  // whose lanes lie in one quarter
      Element* v_step = quarters.V(d * kPageTokens + step);
      for (int lane = 0; lane < kPanelLanes; ++lane) {
        v_step[PanelOffset<Element>(slot, lane) - step] = Convert<Element, Row>(v[d + lane]);
      }
    }
  }
}

// One token's k or v in 8 bits, as attention_page.h says it.
struct Int8Row {
  int8_t codes[256];
  float scale;  // a bf16
  bool has_nan;
};

template <typename Row>
Int8Row RoundToInt8(const Row* row, int head_dim) {
  float x[256];
  Int8Row to;
  to.has_nan = false;
  for (int d = 0; d < head_dim; ++d) {
    const float wide = Convert<float>(row[d]);
    to.has_nan |= wide != wide;
    x[d] = wide == wide ? ClampToBf16(wide) : 0;
  }
  to.scale = FromBf16(RoundUpToBf16(LargestMagnitude(x, head_dim) / 127));
  const float divisor = to.scale == 0 ? 1 : to.scale;
  for (int d = 0; d < head_dim; ++d) to.codes[d] = static_cast<int8_t>(RoundToInt(x[d] / divisor));
  return to;
}

template <typename Row>
void AppendInt8(const AttentionShape& shape, const AppendArgs& args) {
  const int head_dim = shape.head_dim;
  uint8_t* const page_head = reinterpret_cast<uint8_t*>(args.page) + args.kv_head * Int8HeadBytes(head_dim);
  if (args.first_slot == 0 && args.tokens < kPageTokens) std::memset(page_head, 0, Int8HeadBytes(head_dim));
  Bf16* const k_scales = reinterpret_cast<Bf16*>(page_head + Int8KScales(head_dim));
  Bf16* const v_scales = reinterpret_cast<Bf16*>(page_head + Int8VScales(head_dim));
  for (int i = 0; i < args.tokens; ++i) {
    const int slot = args.first_slot + i;
    const Int8Row k = RoundToInt8(reinterpret_cast<const Row*>(args.k + i * args.row_stride_bytes), head_dim);
    const Int8Row v = RoundToInt8(reinterpret_cast<const Row*>(args.v + i * args.row_stride_bytes), head_dim);
    k_scales[slot] = ToBf16(k.has_nan || v.has_nan ? __builtin_nanf("") : k.scale);
    v_scales[slot] = ToBf16(v.scale);
    uint8_t* const k_panel = page_head + slot / kPanelLanes * kPanelLanes * head_dim;
    for (int d = 0; d < head_dim; ++d) {
      k_panel[QuadOffset(d, slot % kPanelLanes)] = static_cast<uint8_t>(k.codes[d] + 128);
    }
    uint8_t* const v_panels = page_head + Int8V(head_dim);
    for (int d = 0; d < head_dim; d += kPanelLanes) {
      for (int lane = 0; lane < kPanelLanes; ++lane) {
        v_panels[d * kPageTokens + QuadOffset(slot, lane)] = static_cast<uint8_t>(v.codes[d + lane]);
      }
    }
  }
}

template <typename Row>
void AppendRows(const AttentionShape& shape, const AppendArgs& args) {
  switch (shape.kv_type) {
    case KvType::kF32:
      return AppendPanels<float, Row>(shape, args);
    case KvType::kBf16:
      return AppendPanels<Bf16, Row>(shape, args);
    case KvType::kFp16:
      return AppendPanels<Fp16, Row>(shape, args);
    case KvType::kInt8:
      return AppendInt8<Row>(shape, args);
    case KvType::kInt4:
      return AppendPanels<Bf16, Row>(shape, args);  // to an open page
  }
}

size_t HeadBytes(const AttentionShape& shape) {
  switch (shape.kv_type) {
    case KvType::kF32:
      return PageHeadElements(shape.head_dim) * sizeof(float);
    case KvType::kBf16:
    case KvType::kFp16:
      return PageHeadElements(shape.head_dim) * sizeof(Bf16);
    case KvType::kInt8:
      return Int8HeadBytes(shape.head_dim);
    case KvType::kInt4:
      return Int4HeadBytes(shape.head_dim);
  }
  return 0;
}

}  // namespace

size_t PageBytes(const AttentionShape& shape) { return shape.kv_heads * HeadBytes(shape); }

size_t OpenPieceBytes(const AttentionShape& shape) {
  return OpenPieces(shape) > 0 ? PageHeadElements(shape.head_dim) * sizeof(Bf16) / kOpenPieces : 0;
}

// Queries and sums of all row-heads of a call, scores and probabilities of a tile's for one page, an open page's head.
size_t AttendScratchBytes(const AttentionShape& shape) {
  const size_t row_heads =
      static_cast<size_t>(std::max(kMaxAttendRows, kMaxRowsOfHeads * shape.kv_heads)) * shape.group;
  return (row_heads * (shape.head_dim + kPanelLanes) + 2 * kMaxTileRows * kPageTokens) * sizeof(float) +
         kOpenPieces * OpenPieceBytes(shape);
}

void AppendToPage(const AttentionShape& shape, const AppendArgs& args) {
  FD_CHECK(args.first_slot >= 0 && args.tokens > 0 && args.first_slot + args.tokens <= kPageTokens,
           "an append stays inside one page");
  FD_CHECK(args.kv_head >= 0 && args.kv_head < shape.kv_heads, "an append names a KV head of the shape");
  return shape.type == ElementType::kF32 ? AppendRows<float>(shape, args) : AppendRows<Bf16>(shape, args);
}

}  // namespace fastdecode
