#include "kernels/reference/page_reference.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "kernels/cpu/page_codes.h"

namespace fastdecode {
namespace {

template <typename Row>
float Widen(Row value) {
  if constexpr (std::is_same_v<Row, Bf16>) return FromBf16(value);
  if constexpr (std::is_same_v<Row, float>) return value;
}

template <typename Element, typename Row>
Element Convert(Row value) {
  if constexpr (std::is_same_v<Element, Row>) return value;
  if constexpr (std::is_same_v<Element, float>) return Widen(value);
  if constexpr (std::is_same_v<Element, Bf16>) return ToBf16(ClampToBf16(Widen(value)));
  if constexpr (std::is_same_v<Element, Fp16>) return ToFp16(Widen(value));
}

// Where a token's element `dim` lies in a head of panels.
template <typename Element>
int KOffset(int head_dim, int token, int dim) {
  return token / kPanelLanes * kPanelLanes * head_dim + PanelOffset<Element>(dim, token % kPanelLanes);
}
template <typename Element>
int VOffset(int head_dim, int token, int dim) {
  return PageKElements(head_dim) + dim / kPanelLanes * kPanelLanes * kPageTokens +
         PanelOffset<Element>(token, dim % kPanelLanes);
}

template <typename Row>
const Row* RowAt(const std::byte* rows, const AppendArgs& args, int i) {
  return reinterpret_cast<const Row*>(rows + static_cast<size_t>(i) * args.row_stride_bytes);
}

template <typename Element, typename Row>
void AppendPanels(const AttentionShape& shape, const AppendArgs& args) {
  const int elements = PageHeadElements(shape.head_dim);
  Element* const head = reinterpret_cast<Element*>(args.page) + args.kv_head * elements;
  if (args.first_slot == 0) std::fill_n(head, elements, Element{});
  for (int i = 0; i < args.tokens; ++i) {
    const Row *k = RowAt<Row>(args.k, args, i), *v = RowAt<Row>(args.v, args, i);
    for (int d = 0; d < shape.head_dim; ++d) {
      head[KOffset<Element>(shape.head_dim, args.first_slot + i, d)] = Convert<Element, Row>(k[d]);
      head[VOffset<Element>(shape.head_dim, args.first_slot + i, d)] = Convert<Element, Row>(v[d]);
    }
  }
}

// A token's k in an open page; its v lies behind.
Bf16* OpenRow(const AttentionShape& shape, int kv_head, const OpenPage& open, int token) {
  std::byte* const piece =
      open.pieces[token / kOpenPieceTokens] + static_cast<size_t>(kv_head) * open.head_stride_bytes;
  return reinterpret_cast<Bf16*>(piece) + token % kOpenPieceTokens * 2 * shape.head_dim;
}

template <typename Row>
void AppendOpen(const AttentionShape& shape, const AppendArgs& args) {
  for (int i = 0; i < args.tokens; ++i) {
    Bf16* const to = OpenRow(shape, args.kv_head, *args.open_page, args.first_slot + i);
    const Row *k = RowAt<Row>(args.k, args, i), *v = RowAt<Row>(args.v, args, i);
    for (int d = 0; d < shape.head_dim; ++d) {
      to[d] = Convert<Bf16, Row>(k[d]);
      to[shape.head_dim + d] = Convert<Bf16, Row>(v[d]);
    }
  }
}

// One token's k or v in 8 bits.
struct Int8Row {
  std::vector<int8_t> codes;
  float scale = 0;  // a bf16
  bool has_nan = false;
};

template <typename Row>
Int8Row RoundToInt8(const Row* row, int head_dim) {
  Int8Row to;
  std::vector<float> x;
  for (int d = 0; d < head_dim; ++d) {
    const float wide = Widen(row[d]);
    to.has_nan |= std::isnan(wide);
    x.push_back(std::isnan(wide) ? 0 : ClampToBf16(wide));
  }
  float largest = 0;
  for (const float value : x) largest = std::max(largest, std::fabs(value));
  to.scale = FromBf16(RoundUpToBf16(largest / 127));
  const float divisor = to.scale == 0 ? 1 : to.scale;
  for (const float value : x) to.codes.push_back(static_cast<int8_t>(RoundToInt(value / divisor)));
  return to;
}

template <typename Row>
void AppendInt8(const AttentionShape& shape, const AppendArgs& args) {
  const int head_dim = shape.head_dim;
  uint8_t* const head = reinterpret_cast<uint8_t*>(args.page) + args.kv_head * Int8HeadBytes(head_dim);
  if (args.first_slot == 0) std::memset(head, 0, static_cast<size_t>(Int8HeadBytes(head_dim)));
  for (int i = 0; i < args.tokens; ++i) {
    const int slot = args.first_slot + i;
    const Int8Row k = RoundToInt8(RowAt<Row>(args.k, args, i), head_dim);
    const Int8Row v = RoundToInt8(RowAt<Row>(args.v, args, i), head_dim);
    const bool has_nan = k.has_nan || v.has_nan;
    reinterpret_cast<Bf16*>(head + Int8KScales(head_dim))[slot] = has_nan ? Bf16{0x7fc0} : ToBf16(k.scale);
    reinterpret_cast<Bf16*>(head + Int8VScales(head_dim))[slot] = ToBf16(v.scale);
    for (int d = 0; d < head_dim; ++d) {
      const size_t at = static_cast<size_t>(d);
      head[slot / kPanelLanes * kPanelLanes * head_dim + QuadOffset(d, slot % kPanelLanes)] =
          static_cast<uint8_t>(k.codes[at] + 128);
      head[Int8V(head_dim) + d / kPanelLanes * kPanelLanes * kPageTokens + QuadOffset(slot, d % kPanelLanes)] =
          static_cast<uint8_t>(v.codes[at]);
    }
  }
}

template <typename Row>
void AppendRows(const AttentionShape& shape, const AppendArgs& args) {
  switch (shape.kv_type) {
    case KvType::kF32:
      return AppendPanels<float, Row>(shape, args);
    case KvType::kFp16:
      return AppendPanels<Fp16, Row>(shape, args);
    case KvType::kInt8:
      return AppendInt8<Row>(shape, args);
    case KvType::kBf16:
      return AppendPanels<Bf16, Row>(shape, args);
    case KvType::kInt4:
      return AppendOpen<Row>(shape, args);
  }
}

// The elements that have a scale and a minimum in common.
// -0 is below +0.
bool IsBelow(float a, float b) {
  const auto order = [](float x) {
    const int32_t bits = std::bit_cast<int32_t>(x);
    return bits < 0 ? bits ^ INT32_MAX : bits;
  };
  return order(a) < order(b);
}

float Lowest(const std::vector<float>& x) { return *std::min_element(x.begin(), x.end(), IsBelow); }
float Highest(const std::vector<float>& x) { return *std::max_element(x.begin(), x.end(), IsBelow); }
float ZeroIfLeast(float x) { return x >= kInt4Least ? x : 0; }
float StepBetween(float lowest, float highest, float count) { return highest * (1 / count) - lowest * (1 / count); }

// Scales as integers of a unit, rounded up.
struct Integers {
  float unit = 0;
  std::vector<int> of;
};
Integers RoundUp(const std::vector<float>& scales, int most) {
  const float largest = *std::max_element(scales.begin(), scales.end());
  Integers to;
  to.of.assign(scales.size(), 0);
  if (largest < kInt4LeastScale) return to;
  const float wide = static_cast<float>(most);
  to.unit = largest / wide;
  for (size_t i = 0; i < scales.size(); ++i) {
    to.of[i] = std::min(static_cast<int>(std::ceil(std::fma(scales[i], wide / largest, -kInt4NoUnit))), most);
  }
  return to;
}

float InverseOf(int integer, float unit) { return integer > 0 ? 1 / (static_cast<float>(integer) * unit) : 0; }

int CodeOf(float x, float inverse, float offset) {
  return static_cast<int>(std::floor(std::fma(x, inverse, offset))) - static_cast<int>(std::floor(kInt4CodeZero));
}

float Finite(Bf16 x) {
  const float wide = ClampToBf16(FromBf16(x));
  return std::isnan(wide) ? 0 : wide;
}

void PutNibble(uint8_t* panel, int step, int lane, int code) {
  uint8_t& byte = panel[NibbleOffset(step, lane)];
  byte = HighNibble(step) ? static_cast<uint8_t>((byte & 15) | code << 4) : static_cast<uint8_t>((byte & 0xf0) | code);
}

}  // namespace

void ReferenceAppendToPage(const AttentionShape& shape, const AppendArgs& args) {
  return shape.type == ElementType::kF32 ? AppendRows<float>(shape, args) : AppendRows<Bf16>(shape, args);
}

void ReferenceClosePage(const AttentionShape& shape, int kv_head, const OpenPage& open, std::byte* page) {
  const int head_dim = shape.head_dim;
  uint8_t* const to = reinterpret_cast<uint8_t*>(page) + kv_head * Int4HeadBytes(head_dim);
  const auto k_row = [&](int t) { return OpenRow(shape, kv_head, open, t); };
  const auto v_row = [&](int t) { return OpenRow(shape, kv_head, open, t) + head_dim; };
  bool nan[kPageTokens] = {};
  for (int t = 0; t < kPageTokens; ++t) {
    for (int d = 0; d < head_dim; ++d) {
      nan[t] |= std::isnan(FromBf16(k_row(t)[d]));
      nan[t] |= std::isnan(FromBf16(v_row(t)[d]));
    }
  }
  Int4Units units = {};
  const auto k_at = [&](int t, int d) { return Finite(k_row(t)[d]); };
  const auto v_at = [&](int t, int d) { return Finite(v_row(t)[d]); };

  std::vector<float> lowest, scales;
  for (int d = 0; d < head_dim; ++d) {
    std::vector<float> x;
    for (int t = 0; t < kPageTokens; ++t) x.push_back(k_at(t, d));
    lowest.push_back(Lowest(x));
    const float room = std::fabs(lowest.back()) * kInt4KLeastOfMinimum;
    scales.push_back(ZeroIfLeast(std::max(StepBetween(lowest.back(), Highest(x), kInt4KSteps), room)));
  }
  const Integers k_scales = RoundUp(scales, kInt4KScaleMax);
  units.k_scale = k_scales.unit;
  int16_t* const k_words = reinterpret_cast<int16_t*>(to + Int4KScales(head_dim));
  for (int d = 0; d < head_dim; ++d) {
    const int scale = k_scales.of[static_cast<size_t>(d)];
    const float inverse = InverseOf(scale, k_scales.unit);
    const float minimum = std::floor(std::fma(lowest[static_cast<size_t>(d)], inverse, kInt4KMinimumRounding));
    k_words[d] = static_cast<int16_t>(scale);
    k_words[head_dim + d] = static_cast<int16_t>(minimum);
    for (int t = 0; t < kPageTokens; ++t) {
      PutNibble(to + t / kPanelLanes * kPanelLanes * head_dim / 2, d, t % kPanelLanes,
                CodeOf(k_at(t, d), inverse, kInt4CodeZero - minimum));
    }
  }

  for (int group = 0; group < Int4Groups(head_dim); ++group) {
    const int first = group * kInt4GroupDims, end = std::min(head_dim, first + kInt4GroupDims);
    lowest.clear();
    scales.clear();
    for (int t = 0; t < kPageTokens; ++t) {
      std::vector<float> x;
      for (int d = first; d < end; ++d) x.push_back(v_at(t, d));
      lowest.push_back(Lowest(x));
      scales.push_back(ZeroIfLeast(StepBetween(lowest.back(), Highest(x), 15)));
    }
    const Integers v_scales = RoundUp(scales, kInt4VScaleMax);
    units.v_scale = v_scales.unit;
    uint8_t* const at = to + Int4VScales(head_dim) + group * kInt4GroupBytes;
    std::memcpy(at + kPageTokens, &units, sizeof(units));
    units = {};
    for (int t = 0; t < kPageTokens; ++t) {
      const size_t i = static_cast<size_t>(t);
      at[t] = static_cast<uint8_t>(v_scales.of[i]);
      const float minimum = nan[t] ? std::numeric_limits<float>::quiet_NaN() : lowest[i];
      reinterpret_cast<Bf16*>(at + 2 * kPageTokens)[t] = ToBf16(minimum);
      const float inverse = InverseOf(v_scales.of[i], v_scales.unit);
      const float offset = std::fma(-lowest[i], inverse, kInt4CodeZero);
      for (int d = first; d < end; ++d) {
        PutNibble(to + Int4V(head_dim) + d / kPanelLanes * kPanelLanes * kPageTokens / 2, t, d % kPanelLanes,
                  CodeOf(v_at(t, d), inverse, offset));
      }
    }
  }
}

}  // namespace fastdecode
