#include "kernels/cpu/attention_page.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "numa/check.h"

namespace fastdecode {
namespace {

// Where element (step, lane) lies in a panel.
template <typename Element>
inline int PanelOffset(int step, int lane) {
  if constexpr (std::is_same_v<Element, Bf16>) return (step / 2) * 2 * kPanelLanes + lane * 2 + step % 2;
  return step * kPanelLanes + lane;
}

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
    constexpr float kBf16Max = 0x1.fep127f;
    if constexpr (std::is_same_v<Element, Bf16>)
      return ToBf16(wide > kBf16Max ? kBf16Max : wide < -kBf16Max ? -kBf16Max : wide);
    if constexpr (std::is_same_v<Element, Fp16>) return ToFp16(wide);
    if constexpr (std::is_same_v<Element, float>) return wide;
  }
}

template <typename Element, typename Row>
void Append(const AttentionShape& shape, const AppendArgs& args) {
  FD_CHECK(args.first_slot >= 0 && args.tokens > 0 && args.first_slot + args.tokens <= kPageTokens,
           "an append stays inside one page");
  FD_CHECK(args.kv_head >= 0 && args.kv_head < shape.kv_heads, "an append names a KV head of the shape");
  const int head_dim = shape.head_dim;
  const size_t head_elements = PageHeadElements(head_dim);
  Element* k_panels = reinterpret_cast<Element*>(args.page) + args.kv_head * head_elements;
  Element* v_panels = k_panels + PageKElements(head_dim);
  if (args.first_slot == 0 && args.tokens < kPageTokens) {
    std::memset(static_cast<void*>(k_panels), 0, head_elements * sizeof(Element));
  }

  for (int i = 0; i < args.tokens; ++i) {
    const Row* k = reinterpret_cast<const Row*>(args.k + i * args.row_stride_bytes);
    const Row* v = reinterpret_cast<const Row*>(args.v + i * args.row_stride_bytes);
    const int slot = args.first_slot + i;
    Element* k_panel = k_panels + slot / kPanelLanes * kPanelLanes * head_dim;
    for (int d = 0; d < head_dim; ++d) {
      k_panel[PanelOffset<Element>(d, slot % kPanelLanes)] = Convert<Element, Row>(k[d]);
    }
    for (int d = 0; d < head_dim; d += kPanelLanes) {
      Element* v_panel = v_panels + d * kPageTokens;
      for (int lane = 0; lane < kPanelLanes; ++lane) {
        v_panel[PanelOffset<Element>(slot, lane)] = Convert<Element, Row>(v[d + lane]);
      }
    }
  }
}

template <typename Element>
void AppendRows(const AttentionShape& shape, const AppendArgs& args) {
  return shape.type == ElementType::kF32 ? Append<Element, float>(shape, args) : Append<Element, Bf16>(shape, args);
}

}  // namespace

size_t PageBytes(const AttentionShape& shape) {
  return shape.kv_heads * PageHeadElements(shape.head_dim) * KvElementBytes(shape.kv_type);
}

// Queries and sums of all row-heads of a call, scores and probabilities of a tile's for one page.
size_t AttendScratchBytes(const AttentionShape& shape) {
  const size_t row_heads =
      static_cast<size_t>(std::max(kMaxAttendRows, kMaxRowsOfHeads * shape.kv_heads)) * shape.group;
  return (row_heads * (shape.head_dim + kPanelLanes) + 2 * kMaxTileRows * kPageTokens) * sizeof(float);
}

void AppendToPage(const AttentionShape& shape, const AppendArgs& args) {
  switch (shape.kv_type) {
    case KvType::kF32:
      return AppendRows<float>(shape, args);
    case KvType::kBf16:
      return AppendRows<Bf16>(shape, args);
    case KvType::kFp16:
      return AppendRows<Fp16>(shape, args);
  }
}

}  // namespace fastdecode
