#include <algorithm>
#include <cstring>

#include "kernels/cpu/page_codes.h"

// Closing and reopening pages of int4: attention_page.h says what they hold.
namespace fastdecode {
namespace {

// A KV head of a closed page.
class ClosedHead {
 public:
  ClosedHead(int head_dim, const uint8_t* at) : head_dim_(head_dim), at_(at) {}

  float K(int token, int dim) const {
    const uint8_t* const byte =
        at_ + token / kPanelLanes * kPanelLanes * head_dim_ / 2 + NibbleOffset(dim, token % kPanelLanes);
    const int16_t* const scales = reinterpret_cast<const int16_t*>(at_ + Int4KScales(head_dim_));
    return scales[dim] * Units(0).k_scale *
           (static_cast<float>(scales[head_dim_ + dim]) + Nibble(*byte, HighNibble(dim)));
  }
  float V(int token, int dim) const {
    const uint8_t* const byte = at_ + Int4V(head_dim_) + dim / kPanelLanes * kPanelLanes * kPageTokens / 2 +
                                NibbleOffset(token, dim % kPanelLanes);
    const int group = dim / kInt4GroupDims * kInt4GroupBytes;
    const float scale = at_[Int4VScales(head_dim_) + group + token] * Units(group).v_scale;
    const float minimum = FromBf16(reinterpret_cast<const Bf16*>(at_ + Int4VMinima(head_dim_) + group)[token]);
    return minimum + scale * Nibble(*byte, HighNibble(token));
  }

 private:
  static float Nibble(uint8_t byte, bool high) { return static_cast<float>(high ? byte >> 4 : byte & 15); }
  const Int4Units& Units(int group_bytes) const {
    return *reinterpret_cast<const Int4Units*>(at_ + Int4VUnits(head_dim_) + group_bytes);
  }

  const int head_dim_;
  const uint8_t* const at_;
};

constexpr int kMaxHeadDim = 256;

// All rows of a KV head of a full open page, if they lie one behind the other, as those of a chunk do, or else in
// `copy`.
const std::byte* RowsOf(const AttentionShape& shape, int kv_head, const OpenPage& open, std::byte* copy) {
  const size_t bytes = OpenPieceBytes(shape);
  bool in_one = true;
  for (size_t i = 1; i < kOpenPieces; ++i) in_one &= open.pieces[i] == open.pieces[i - 1] + bytes;
  if (in_one) return OpenTokenAt(shape.head_dim, open, kv_head, 0);
  for (int i = 0; i < kOpenPieces; ++i) {
    std::memcpy(copy + static_cast<size_t>(i) * bytes, OpenTokenAt(shape.head_dim, open, kv_head, i * kOpenPieceTokens),
                bytes);
  }
  return copy;
}

}  // namespace

void ClosePage(const AttentionShape& shape, int kv_head, const OpenPage& open, std::byte* page) {
  alignas(64) std::byte copy[kPageTokens * OpenTokenBytes(kMaxHeadDim)];
  Avx2CloseHead(shape.head_dim, RowsOf(shape, kv_head, open, copy),
                reinterpret_cast<uint8_t*>(page) + kv_head * Int4HeadBytes(shape.head_dim));
}

void ReopenPage(const AttentionShape& shape, int kv_head, const std::byte* page, int tokens, const OpenPage& open) {
  const int head_dim = shape.head_dim;
  const ClosedHead from(head_dim, reinterpret_cast<const uint8_t*>(page) + kv_head * Int4HeadBytes(head_dim));
  for (int t = 0; t < tokens; ++t) {
    Bf16* const row = reinterpret_cast<Bf16*>(OpenTokenAt(head_dim, open, kv_head, t));
    for (int d = 0; d < head_dim; ++d) {
      row[d] = ToBf16(ClampToBf16(from.K(t, d)));
      row[head_dim + d] = ToBf16(ClampToBf16(from.V(t, d)));
    }
  }
}

}  // namespace fastdecode
