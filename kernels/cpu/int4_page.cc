#include <algorithm>
#include <cstring>
#include <limits>

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
template <typename Byte, typename Scale>
struct Parts {
  Parts(int head_dim, Byte* at)
      : k(at),
        k_scales(reinterpret_cast<Scale*>(at + Int4KScales(head_dim))),
        k_minima(k_scales + head_dim),
        v_scales(reinterpret_cast<Scale*>(at + Int4VScales(head_dim))),
        v(at + Int4V(head_dim)),
        head_dim_(head_dim) {}

  // The byte with a token's element.
  Byte* KAt(int token, int dim) const {
    return k + token / kPanelLanes * kPanelLanes * head_dim_ / 2 + NibbleOffset(dim, token % kPanelLanes);
  }
  Byte* VAt(int token, int dim) const {
    return v + dim / kPanelLanes * kPanelLanes * kPageTokens / 2 + NibbleOffset(token, dim % kPanelLanes);
  }
  Scale* VScale(int token, int dim) const { return v_scales + dim / kInt4GroupDims * 2 * kPageTokens + token; }
  Scale* VMinimum(int token, int dim) const { return VScale(token, dim) + kPageTokens; }

  Byte* k;
  Scale *k_scales, *k_minima;  // [head_dim]
  Scale* v_scales;             // [groups] of scales [32] and minima [32]
  Byte* v;

 private:
  int head_dim_;
};

// The low half is written first.
void PutNibble(uint8_t* at, bool high, float code) {
  const int nibble = RoundToInt(std::min(std::max(code, 0.0f), 15.0f));
  *at = static_cast<uint8_t>(high ? *at | nibble << 4 : nibble);
}
float Nibble(uint8_t byte, bool high) { return static_cast<float>(high ? byte >> 4 : byte & 15); }

struct Range {
  float low = kBf16Max, high = -kBf16Max;
  bool nan = false;
  void Add(float x) {
    nan |= x != x;
    low = std::min(low, x);  // stays where x is NaN
    high = std::max(high, x);
  }
  // 15 of them lead from the minimum to the largest or beyond.
  void Steps(Bf16* minimum, Bf16* scale) const {
    *minimum = RoundDownToBf16(low);
    *scale = RoundUpToBf16(high / 15 - FromBf16(*minimum) / 15);
  }
};

float Divisor(Bf16 scale) { return scale == 0 ? 1 : FromBf16(scale); }

void CloseK(int head_dim, const Bf16* open, const Parts<uint8_t, Bf16>& to, bool (&nan)[kPageTokens]) {
  for (int d = 0; d < head_dim; ++d) {
    float x[kPageTokens];
    Range range;
    for (int t = 0; t < kPageTokens; ++t) {
      const float value = FromBf16(open[KOffset(head_dim, t, d)]);
      nan[t] |= value != value;
      x[t] = value != value ? 0 : value;
      range.Add(x[t]);
    }
    range.Steps(&to.k_minima[d], &to.k_scales[d]);
    const float low = FromBf16(to.k_minima[d]), divisor = Divisor(to.k_scales[d]);
    for (int t = 0; t < kPageTokens; ++t) PutNibble(to.KAt(t, d), HighNibble(d), (x[t] - low) / divisor);
  }
}

void CloseV(int head_dim, const Bf16* open, const Parts<uint8_t, Bf16>& to, const bool (&nan)[kPageTokens]) {
  for (int t = 0; t < kPageTokens; ++t) {
    for (int group = 0; group < head_dim; group += kInt4GroupDims) {
      const int end = std::min(group + kInt4GroupDims, head_dim);
      Range range;
      for (int d = group; d < end; ++d) range.Add(FromBf16(open[VOffset(head_dim, t, d)]));
      Bf16& minimum = *to.VMinimum(t, group);
      Bf16& scale = *to.VScale(t, group);
      range.Steps(&minimum, &scale);
      const float low = FromBf16(minimum), divisor = Divisor(scale);
      for (int d = group; d < end; ++d) {
        const float x = FromBf16(open[VOffset(head_dim, t, d)]);
        PutNibble(to.VAt(t, d), HighNibble(t), (x - low) / divisor);
      }
      if (nan[t] || range.nan) minimum = ToBf16(std::numeric_limits<float>::quiet_NaN());
    }
  }
}

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

}  // namespace

void ClosePage(const AttentionShape& shape, int kv_head, const OpenPage& open, std::byte* page) {
  const int head_dim = shape.head_dim;
  Bf16 whole[PageHeadElements(kMaxHeadDim)];
  CopyPieces(shape, kv_head, open, whole, /*back=*/false);
  const Parts<uint8_t, Bf16> to(head_dim, reinterpret_cast<uint8_t*>(page) + kv_head * Int4HeadBytes(head_dim));
  bool nan[kPageTokens] = {};  // in k
  CloseK(head_dim, whole, to, nan);
  CloseV(head_dim, whole, to, nan);
}

void ReopenPage(const AttentionShape& shape, int kv_head, const std::byte* page, const OpenPage& open) {
  const int head_dim = shape.head_dim;
  const Parts<const uint8_t, const Bf16> from(
      head_dim, reinterpret_cast<const uint8_t*>(page) + kv_head * Int4HeadBytes(head_dim));
  Bf16 whole[PageHeadElements(kMaxHeadDim)];
  for (int t = 0; t < kPageTokens; ++t) {
    for (int d = 0; d < head_dim; ++d) {
      const float k = FromBf16(from.k_minima[d]) + FromBf16(from.k_scales[d]) * Nibble(*from.KAt(t, d), HighNibble(d));
      const float v =
          FromBf16(*from.VMinimum(t, d)) + FromBf16(*from.VScale(t, d)) * Nibble(*from.VAt(t, d), HighNibble(t));
      whole[KOffset(head_dim, t, d)] = ToBf16(k);
      whole[VOffset(head_dim, t, d)] = ToBf16(v);
    }
  }
  CopyPieces(shape, kv_head, open, whole, /*back=*/true);
}

}  // namespace fastdecode
