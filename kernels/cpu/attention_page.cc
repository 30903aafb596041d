#include "kernels/cpu/attention_page.h"

#include <cstring>

#include "numa/check.h"

namespace fastdecode {
namespace {

// Where element (step, lane) lies in a panel.
template <typename Element>
inline int PanelOffset(int step, int lane) {
  if constexpr (sizeof(Element) == 2) return (step / 2) * 2 * kPanelLanes + lane * 2 + step % 2;
  return step * kPanelLanes + lane;
}

template <typename Element>
void Append(const AttentionShape& shape, const AppendArgs& args) {
  FD_CHECK(args.first_slot >= 0 && args.tokens > 0 && args.first_slot + args.tokens <= kPageTokens,
           "an append stays inside one page");
  FD_CHECK(args.kv_head >= 0 && args.kv_head < shape.kv_heads, "an append names a KV head of the shape");
  const int head_dim = shape.head_dim;
  const size_t head_elements = PageHeadElements(head_dim);
  Element* k_panels = reinterpret_cast<Element*>(args.page) + args.kv_head * head_elements;
  Element* v_panels = k_panels + PageKElements(head_dim);
  if (args.first_slot == 0 && args.tokens < kPageTokens) std::memset(k_panels, 0, head_elements * sizeof(Element));

  for (int i = 0; i < args.tokens; ++i) {
    const Element* k = reinterpret_cast<const Element*>(args.k + i * args.row_stride_bytes);
    const Element* v = reinterpret_cast<const Element*>(args.v + i * args.row_stride_bytes);
    const int slot = args.first_slot + i;
    Element* k_panel = k_panels + slot / kPanelLanes * kPanelLanes * head_dim;
    for (int d = 0; d < head_dim; ++d) k_panel[PanelOffset<Element>(d, slot % kPanelLanes)] = k[d];
    for (int d = 0; d < head_dim; d += kPanelLanes) {
      Element* v_panel = v_panels + d * kPageTokens;
      for (int lane = 0; lane < kPanelLanes; ++lane) v_panel[PanelOffset<Element>(slot, lane)] = v[d + lane];
    }
  }
}

}  // namespace

size_t PageBytes(const AttentionShape& shape) {
  return shape.kv_heads * PageHeadElements(shape.head_dim) * ElementBytes(shape.type);
}

// Queries and sums of all row-heads of a call, scores and probabilities of a tile's for one page.
size_t AttendScratchBytes(const AttentionShape& shape) {
  const size_t row_heads = static_cast<size_t>(kMaxAttendRows) * shape.kv_heads * shape.group;
  return (row_heads * (shape.head_dim + kPanelLanes) + 2 * kMaxTileRows * kPageTokens) * sizeof(float);
}

void AppendF32(const AttentionShape& shape, const AppendArgs& args) { Append<float>(shape, args); }
void AppendBf16(const AttentionShape& shape, const AppendArgs& args) { Append<Bf16>(shape, args); }

}  // namespace fastdecode
