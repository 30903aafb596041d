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

float Nibble(uint8_t byte, bool high) { return static_cast<float>(high ? byte >> 4 : byte & 15); }

constexpr int kPanelsMax = kInt4GroupDims / kPanelLanes;  // with scales in common
constexpr int kLineSteps = 8;                             // of half bytes

// The lanes of one step in some panels.
struct StepLanes {
  float x[kPanelsMax][kPanelLanes];
};

void LoadPair(const Bf16* from, int panels, int panel_elements, StepLanes* even, StepLanes* odd) {
  for (int p = 0; p < panels; ++p) {
    for (int lane = 0; lane < kPanelLanes; ++lane) {
      even->x[p][lane] = FromBf16(from[p * panel_elements + 2 * lane]);
      odd->x[p][lane] = FromBf16(from[p * panel_elements + 2 * lane + 1]);
    }
  }
}

// Scale, minimum and codes of one step.
void CloseStep(const StepLanes& step, int panels, Bf16* scale, Bf16* minimum, int32_t (*codes)[kPanelLanes]) {
  float low[kPanelLanes], high[kPanelLanes];
  std::copy_n(step.x[0], kPanelLanes, low);
  std::copy_n(step.x[0], kPanelLanes, high);
  for (int p = 1; p < panels; ++p) {
    for (int lane = 0; lane < kPanelLanes; ++lane) {
      low[lane] = std::min(low[lane], step.x[p][lane]);
      high[lane] = std::max(high[lane], step.x[p][lane]);
    }
  }
  for (int half = kPanelLanes / 2; half > 0; half /= 2) {
    for (int lane = 0; lane < half; ++lane) {
      low[lane] = std::min(low[lane], low[lane + half]);
      high[lane] = std::max(high[lane], high[lane + half]);
    }
  }
  *minimum = ToBf16(low[0]);  // exactly: elements are in bf16
  const float offset = FromBf16(*minimum);
  *scale = RoundUpToBf16(high[0] / 15 - offset / 15);  // 15 of them lead to the largest or beyond
  const float divisor = *scale == 0 ? 1 : FromBf16(*scale);
  for (int p = 0; p < panels; ++p) {
    for (int lane = 0; lane < kPanelLanes; ++lane) {
      // Not below 0; above 15 only where the scale was rounded in the last place.
      const float code = (step.x[p][lane] - offset) / divisor;
      codes[p][lane] = RoundToInt(code < 15 ? code : 15);
    }
  }
}

// Panels of bf16, [steps / 2][16][2] each, to panels of half bytes, [steps / 8][16][4] each, with a scale and a minimum
// for each step.
void ClosePanels(const Bf16* from, int panels, int steps, Bf16* scales, Bf16* minima, uint8_t* to) {
  for (int step = 0; step < steps; step += kLineSteps) {
    int32_t codes[kLineSteps][kPanelsMax][kPanelLanes];
    for (int i = 0; i < kLineSteps; i += 2) {
      StepLanes even, odd;
      LoadPair(from + (step + i) * kPanelLanes, panels, steps * kPanelLanes, &even, &odd);
      CloseStep(even, panels, scales + step + i, minima + step + i, codes[i]);
      CloseStep(odd, panels, scales + step + i + 1, minima + step + i + 1, codes[i + 1]);
    }
    for (int p = 0; p < panels; ++p) {
      uint8_t* const line = to + (p * steps + step) * kPanelLanes / 2;
      for (int lane = 0; lane < kPanelLanes; ++lane) {
        for (int i = 0; i < 4; ++i) {
          line[lane * 4 + i] = static_cast<uint8_t>(codes[i][p][lane] | codes[i + 4][p][lane] << 4);
        }
      }
    }
  }
}

// Finds the tokens with a NaN, whose NaNs become 0, and makes infinities the largest number. False: there are no NaNs.
bool TakeNans(int head_dim, Bf16* open, bool (&nan)[kPageTokens]) {
  constexpr int kInfinity = 0x7f80;
  int16_t largest = 0;
  for (int i = 0; i < PageHeadElements(head_dim); ++i) {
    largest = std::max(largest, static_cast<int16_t>(open[i] & 0x7fff));
  }
  if (largest < kInfinity) return false;
  for (int t = 0; t < kPageTokens; ++t) {
    nan[t] = false;
    for (int d = 0; d < head_dim; ++d) {
      for (Bf16* x : {&open[KOffset(head_dim, t, d)], &open[VOffset(head_dim, t, d)]}) {
        const int magnitude = *x & 0x7fff;
        if (magnitude < kInfinity) continue;
        nan[t] |= magnitude > kInfinity;
        *x = magnitude > kInfinity ? 0 : static_cast<Bf16>(*x - 1);
      }
    }
  }
  return true;
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
  bool nan[kPageTokens];
  const bool has_nans = TakeNans(head_dim, whole, nan);
  ClosePanels(whole, kPageKPanels, head_dim, to.k_scales, to.k_minima, to.k);
  for (int dim = 0; dim < head_dim; dim += kInt4GroupDims) {
    const int panels = std::min(kInt4GroupDims, head_dim - dim) / kPanelLanes;
    ClosePanels(whole + PageKElements(head_dim) + dim * kPageTokens, panels, kPageTokens, to.VScale(0, dim),
                to.VMinimum(0, dim), to.v + dim * kPageTokens / 2);
    for (int t = 0; has_nans && t < kPageTokens; ++t) {
      if (nan[t]) *to.VMinimum(t, dim) = ToBf16(std::numeric_limits<float>::quiet_NaN());
    }
  }
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
      whole[KOffset(head_dim, t, d)] = ToBf16(ClampToBf16(k));
      whole[VOffset(head_dim, t, d)] = ToBf16(ClampToBf16(v));
    }
  }
  CopyPieces(shape, kv_head, open, whole, /*back=*/true);
}

}  // namespace fastdecode
