#include <algorithm>
#include <cstring>

#include "kernels/cpu/page_codes.h"

// Closing and reopening pages of int4: attention_page.h says what they hold.
namespace fastdecode {
namespace {

// Where a token's element `dim` lies in a KV head of an open page.
int KOffset(int head_dim, int token, int dim) {
  return token / kPanelLanes * kPanelLanes * head_dim + PanelOffset<Bf16>(dim, token % kPanelLanes);
}
int VOffset(int head_dim, int token, int dim) {
  return PageKElements(head_dim) + dim / kPanelLanes * kPanelLanes * kPageTokens +
         PanelOffset<Bf16>(token, dim % kPanelLanes);
}

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

// One KV head of an open page to `whole`, or back.
void CopyPieces(const AttentionShape& shape, int kv_head, const OpenPage& open, Bf16* whole, bool back) {
  const size_t bytes = OpenPieceBytes(shape);
  for (std::byte* piece : open.pieces) {
    std::byte* const at = piece + static_cast<size_t>(kv_head) * open.head_stride_bytes;
    std::memcpy(back ? static_cast<void*>(at) : whole, back ? static_cast<const void*>(whole) : at, bytes);
    whole += bytes / sizeof(Bf16);
  }
}

// Where an open page's KV head lies, if in one piece, as that of a chunk does; else null.
const Bf16* InOnePiece(const AttentionShape& shape, int kv_head, const OpenPage& open) {
  for (int i = 1; i < kOpenPieces; ++i) {
    if (open.pieces[i] != open.pieces[i - 1] + OpenPieceBytes(shape)) return nullptr;
  }
  return reinterpret_cast<const Bf16*>(open.pieces[0] + static_cast<size_t>(kv_head) * open.head_stride_bytes);
}

}  // namespace

void ClosePage(const AttentionShape& shape, int kv_head, const OpenPage& open, std::byte* page) {
  const int head_dim = shape.head_dim;
  Bf16 copy[PageHeadElements(kMaxHeadDim)];
  const Bf16* from = InOnePiece(shape, kv_head, open);
  if (from == nullptr) {
    CopyPieces(shape, kv_head, open, copy, /*back=*/false);
    from = copy;
  }
  Avx2CloseHead(head_dim, from, reinterpret_cast<uint8_t*>(page) + kv_head * Int4HeadBytes(head_dim));
}

void ReopenPage(const AttentionShape& shape, int kv_head, const std::byte* page, const OpenPage& open) {
  const int head_dim = shape.head_dim;
  const ClosedHead from(head_dim, reinterpret_cast<const uint8_t*>(page) + kv_head * Int4HeadBytes(head_dim));
  Bf16 whole[PageHeadElements(kMaxHeadDim)];
  for (int t = 0; t < kPageTokens; ++t) {
    for (int d = 0; d < head_dim; ++d) {
      whole[KOffset(head_dim, t, d)] = ToBf16(ClampToBf16(from.K(t, d)));
      whole[VOffset(head_dim, t, d)] = ToBf16(ClampToBf16(from.V(t, d)));
    }
  }
  CopyPieces(shape, kv_head, open, whole, /*back=*/true);
}

}  // namespace fastdecode
