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

// The parts of a KV head of a closed page.
struct Parts {
  Parts(int head_dim, const uint8_t* at)
      : k(at),
        k_scales(reinterpret_cast<const Bf16*>(at + Int4KScales(head_dim))),
        k_minima(k_scales + head_dim),
        v_scales(reinterpret_cast<const Bf16*>(at + Int4VScales(head_dim))),
        v(at + Int4V(head_dim)),
        head_dim_(head_dim) {}

  // The byte with a token's element.
  const uint8_t* KAt(int token, int dim) const {
    return k + token / kPanelLanes * kPanelLanes * head_dim_ / 2 + NibbleOffset(dim, token % kPanelLanes);
  }
  const uint8_t* VAt(int token, int dim) const {
    return v + dim / kPanelLanes * kPanelLanes * kPageTokens / 2 + NibbleOffset(token, dim % kPanelLanes);
  }
  const Bf16* VScale(int token, int dim) const { return v_scales + dim / kInt4GroupDims * 2 * kPageTokens + token; }
  const Bf16* VMinimum(int token, int dim) const { return VScale(token, dim) + kPageTokens; }

  const uint8_t* k;
  const Bf16 *k_scales, *k_minima;  // [head_dim]
  const Bf16* v_scales;             // [groups] of scales [32] and minima [32]
  const uint8_t* v;

 private:
  int head_dim_;
};

float Nibble(uint8_t byte, bool high) { return static_cast<float>(high ? byte >> 4 : byte & 15); }

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
  const Parts from(head_dim, reinterpret_cast<const uint8_t*>(page) + kv_head * Int4HeadBytes(head_dim));
  Bf16 whole[PageHeadElements(kMaxHeadDim)];
  for (int t = 0; t < kPageTokens; ++t) {
    for (int d = 0; d < head_dim; ++d) {
      const float k = FromBf16(from.k_minima[d]) + FromBf16(from.k_scales[d]) * Nibble(*from.KAt(t, d), HighNibble(d));
      const float v =
          FromBf16(*from.VMinimum(t, d)) + FromBf16(*from.VScale(t, d)) * Nibble(*from.VAt(t, d), HighNibble(t));
      whole[KOffset(head_dim, t, d)] = ToBf16(ClampToBf16(k));
      whole[VOffset(head_dim, t, d)] = ToBf16(ClampToBf16(v));
    }
  }
  CopyPieces(shape, kv_head, open, whole, /*back=*/true);
}

}  // namespace fastdecode
