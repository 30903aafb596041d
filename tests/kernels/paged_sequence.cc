#include "tests/kernels/paged_sequence.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

namespace fastdecode {
namespace {

std::vector<double> RandomValues(size_t n, std::mt19937_64& random) {
  std::normal_distribution<double> normal;
  std::vector<double> values(n);
  for (double& value : values) value = normal(random);
  return values;
}

std::vector<std::byte> EncodeAs(ElementType type, std::vector<double>& values) {
  std::vector<std::byte> bytes(values.size() * ElementBytes(type));
  for (size_t i = 0; i < values.size(); ++i) {
    if (type == ElementType::kF32) {
      const float f = static_cast<float>(values[i]);
      std::memcpy(&bytes[i * sizeof(f)], &f, sizeof(f));
      values[i] = f;
    } else {
      const Bf16 b = ToBf16(static_cast<float>(values[i]));
      std::memcpy(&bytes[i * sizeof(b)], &b, sizeof(b));
      values[i] = FromBf16(b);
    }
  }
  return bytes;
}

// To nearest even, with `bits` significant ones and exponents from min_exponent (of the smallest normal number) on: the
// formats' definition, by scaling to integers.
double RoundTo(double value, int bits, int min_exponent) {
  if (value == 0) return value;
  int exponent;
  std::frexp(value, &exponent);  // value = [0.5, 1) * 2^exponent
  const int last_bit = std::max(exponent - 1, min_exponent) - (bits - 1);
  return std::ldexp(std::nearbyint(std::ldexp(value, -last_bit)), last_bit);
}

double RoundToKv(KvType type, double value) {
  switch (type) {
    case KvType::kF32:
      return RoundTo(value, 24, -126);
    case KvType::kBf16:
      return RoundTo(value, 8, -126);
    case KvType::kFp16:
      return std::clamp(RoundTo(value, 11, -14), -65504.0, 65504.0);
    case KvType::kInt8:
      break;
  }
  return NAN;
}

// The smallest number of 8 significant bits that is not below x >= 0.
float RoundUpTo8Bits(float x) {
  int exponent;
  const double fraction = std::frexp(x, &exponent);
  return static_cast<float>(std::ldexp(std::ceil(std::ldexp(fraction, 8)), exponent - 8));
}

float LargestMagnitude(const double* values, size_t count) {
  double largest = 0;
  for (size_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(values[i]));
  return static_cast<float>(largest);
}

// k and v in int8: head by head, round(x / scale) * scale. Returns the scales.
std::vector<double> RoundToInt8(std::vector<double>& values, size_t head_dim) {
  std::vector<double> scales;
  for (size_t i = 0; i < values.size(); i += head_dim) {
    const float scale = RoundUpTo8Bits(LargestMagnitude(&values[i], head_dim) / 127);
    for (size_t d = i; d < i + head_dim && scale > 0; ++d) {
      values[d] = std::nearbyint(static_cast<float>(values[d]) / scale) * double{scale};
    }
    scales.push_back(scale);
  }
  return scales;
}

// q as the kernels for int8 multiply it: 127ths of its largest element.
void RoundTo127ths(std::vector<double>& values, size_t head_dim) {
  for (size_t i = 0; i < values.size(); i += head_dim) {
    const float largest = LargestMagnitude(&values[i], head_dim), to_code = 127 / std::max(largest, 1e-30f);
    for (size_t d = i; d < i + head_dim; ++d) {
      values[d] = std::nearbyint(static_cast<float>(values[d]) * to_code) * (largest / 127.0);
    }
  }
}

bool SameBits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

std::string Describe(const AttentionCase& c) {
  return std::string("rows ") + ElementName(c.type) + " KV " + KvTypeName(c.kv_type) + " head_dim " +
         std::to_string(c.head_dim) + " group " + std::to_string(c.group) + " kv_heads " + std::to_string(c.kv_heads) +
         " context " + std::to_string(c.context) + " rows " + std::to_string(c.rows) + " window " +
         std::to_string(c.window) + " soft_cap " + std::to_string(c.soft_cap);
}

bool AttentionResult::operator==(const AttentionResult& other) const {
  return SameBits(max, other.max) && SameBits(sum, other.sum) && SameBits(acc, other.acc) && o == other.o;
}

PagedSequence::PagedSequence(const AttentionCase& c, uint64_t seed) {
  const float scale = c.scale != 0 ? c.scale : 1 / std::sqrt(static_cast<float>(c.head_dim));
  shape = {c.type, c.kv_type, c.kv_heads, c.group, c.head_dim, scale, c.soft_cap, c.window};
  in.kv_heads = c.kv_heads;
  in.group = c.group;
  in.head_dim = c.head_dim;
  in.scale = scale;
  in.soft_cap = c.soft_cap;
  in.sliding_window = c.window;
  in.context = c.context;
  in.rows = std::min(c.rows, c.context);
  in.first_row_position = in.context - in.rows;
  std::mt19937_64 random(seed);
  in.q = RandomValues(size_t(in.rows) * c.kv_heads * c.group * c.head_dim, random);
  in.k = RandomValues(size_t(c.context) * c.kv_heads * c.head_dim, random);
  in.v = RandomValues(size_t(c.context) * c.kv_heads * c.head_dim, random);
  Encode();
  page_stride_bytes = PageBytes(shape) + 64;
  ClearPages(seed);
}

void PagedSequence::Encode() {
  q_ = EncodeAs(shape.type, in.q);
  k_ = EncodeAs(shape.type, in.k);
  v_ = EncodeAs(shape.type, in.v);
  held = in;
  if (shape.kv_type == KvType::kInt8) {
    const size_t head_dim = static_cast<size_t>(in.head_dim);
    RoundToInt8(held.k, head_dim);
    v_scales_ = RoundToInt8(held.v, head_dim);
    RoundTo127ths(held.q, head_dim);
    return;
  }
  for (auto* values : {&held.k, &held.v}) {
    for (double& value : *values) value = RoundToKv(shape.kv_type, value);
  }
}

void PagedSequence::ClearPages(uint64_t seed) {
  const int page_count = (in.context + kPageTokens - 1) / kPageTokens;
  page_ids.resize(page_count + 2);
  std::iota(page_ids.begin(), page_ids.end(), 0u);
  std::mt19937_64 random(seed);
  std::shuffle(page_ids.begin(), page_ids.end(), random);
  pages.assign(page_ids.size() * page_stride_bytes, std::byte{0xff});  // NaN in both types
}

const std::byte* PagedSequence::Element(const std::vector<std::byte>& bytes, size_t index) const {
  return bytes.data() + index * ElementBytes(shape.type);
}

void PagedSequence::Append(const AttentionKernels& kernels, int first, int count) {
  const size_t row_elements = size_t(in.kv_heads) * in.head_dim;
  while (count > 0) {
    const int slot = first % kPageTokens;
    const int tokens = std::min(count, kPageTokens - slot);
    for (int head = 0; head < in.kv_heads; ++head) {
      const size_t index = first * row_elements + size_t(head) * in.head_dim;
      kernels.append(shape, {&pages[page_ids[first / kPageTokens] * page_stride_bytes], head, slot, tokens,
                             Element(k_, index), Element(v_, index), row_elements * ElementBytes(shape.type)});
    }
    first += tokens;
    count -= tokens;
  }
}

AttentionResult PagedSequence::Attend(const AttentionKernels& kernels, int kv_head, int first_row, int rows,
                                      int context) const {
  return AttendHeads(kernels, kv_head, 1, first_row, rows, context);
}

AttentionResult PagedSequence::AttendHeads(const AttentionKernels& kernels, int first_head, int heads, int first_row,
                                           int rows, int context) const {
  const int n = heads * rows * in.group;
  const size_t q_row_elements = size_t(in.kv_heads) * in.group * in.head_dim;
  const size_t q_row_bytes = q_row_elements * ElementBytes(shape.type);
  const size_t o_row_bytes = size_t(heads) * in.group * in.head_dim * ElementBytes(shape.type);
  AttentionResult folded, block;
  for (AttentionResult* result : {&folded, &block}) {  // stale contents must not matter to attend
    result->max.assign(n, NAN);
    result->sum.assign(n, NAN);
    result->acc.assign(size_t(n) * in.head_dim, NAN);
  }
  std::vector<std::byte> scratch(AttendScratchBytes(shape) + 64, std::byte{0xff});
  std::byte* aligned = scratch.data() + (64 - reinterpret_cast<uintptr_t>(scratch.data()) % 64) % 64;
  const Partial into = {folded.max.data(), folded.sum.data(), folded.acc.data()};
  const Partial from = {block.max.data(), block.sum.data(), block.acc.data()};

  for (int first = 0; first < context; first += kBlockTokens) {
    AttendArgs args = {};
    args.layer_base = pages.data();
    args.page_stride_bytes = page_stride_bytes;
    args.page_ids = &page_ids[first / kPageTokens];
    args.first_head = first_head;
    args.heads = heads;
    args.first_position = first;
    args.tokens = std::min(kBlockTokens, context - first);
    args.q = Element(q_, first_row * q_row_elements + size_t(first_head) * in.group * in.head_dim);
    args.q_row_stride_bytes = q_row_bytes;
    args.rows = rows;
    args.first_row_position = in.first_row_position + first_row;
    const uint32_t next_page = (first + kBlockTokens) / kPageTokens;
    args.next =
        next_page < page_ids.size() ? &pages[page_ids[next_page] * page_stride_bytes] : nullptr;  // only to prefetch
    args.out = first == 0 ? into : from;
    args.scratch = aligned;
    kernels.attend(shape, args);
    if (first > 0) kernels.fold(shape, into, from, n);
  }
  folded.o.resize(rows * o_row_bytes);
  kernels.finish(shape, into, heads, rows, folded.o.data(), o_row_bytes);
  return folded;
}

// With u = 2^-24, S = the largest sum of |q_d k_d| * scale over the visible tokens, and A = the attention over |v|:
// * A score is a chain of head_dim / 2 FMAs, one sum, and a q or score that was rounded twice: off by
//   (head_dim / 2 + 4) u S. Its difference from the base adds 2 u S (|score| <= S). A soft cap has slope <= 1 and adds
//   (3 u + Exp2's half) * cap.
// * Exp2 is off by 1.8e-7, relatively; each of the rescalings by the pages and blocks before it once more, and u S.
// * acc and sum are chains: 16 + 1 per page, one FMA per page and two roundings per block, relative to A.
// * p may be rounded once more, by p_rounding.
// p's relative error e moves o = sum(p v) / sum(p) by at most 2 e A. int8 rounds p times v's scale to 255ths of the
// largest in its page: WeightRounding.
std::vector<double> PagedSequence::ErrorBound(double p_rounding) const {
  ReferenceAttentionInput magnitude = held;
  for (double& v : magnitude.v) v = std::fabs(v);
  std::vector<double> bound = ReferenceAttention(magnitude);

  const double u = std::ldexp(1.0, -24), exp2_error = 1.8e-7;
  const int heads = in.kv_heads * in.group;
  const int steps = (in.context + kPageTokens - 1) / kPageTokens + (in.context + kBlockTokens - 1) / kBlockTokens;
  for (int r = 0; r < in.rows; ++r) {
    for (int h = 0; h < heads; ++h) {
      double magnitude_max = 0;
      for (int t = 0; t < in.context; ++t) {
        if (!ReferenceSees(in, in.first_row_position + r, t)) continue;
        double sum = 0;
        for (int d = 0; d < in.head_dim; ++d) {
          sum += std::fabs(held.q[(size_t(r) * heads + h) * in.head_dim + d] *
                           held.k[(size_t(t) * in.kv_heads + h / in.group) * in.head_dim + d]);
        }
        magnitude_max = std::max(magnitude_max, sum * in.scale);
      }
      const double score_error = (in.head_dim / 2 + 6) * u * magnitude_max + in.soft_cap * (3 * u + exp2_error / 2);
      const double p_error = score_error + exp2_error + p_rounding + steps * (exp2_error + u * magnitude_max + 2 * u);
      for (int d = 0; d < in.head_dim; ++d) {
        double& b = bound[(size_t(r) * heads + h) * in.head_dim + d];
        b = (2 * p_error + (20 + 2 * steps) * u) * b + 1e-30;
      }
    }
  }
  if (shape.kv_type == KvType::kInt8) AddWeightRounding(bound);
  return bound;
}

// With w = p * scale, p summing to 1: w is off by half a 255th of the page's largest, and multiplies the codes |v /
// scale|. (A little more: p itself is off by the errors of before.)
void PagedSequence::AddWeightRounding(std::vector<double>& bound) const {
  const int heads = in.kv_heads * in.group;
  for (int r = 0; r < in.rows; ++r) {
    for (int h = 0; h < heads; ++h) {
      const std::vector<double> p = ReferenceProbabilities(held, r, h);
      for (int page = 0; page < in.context; page += kPageTokens) {
        const int end = std::min(page + kPageTokens, in.context);
        const auto scale = [&](int t) { return v_scales_[size_t(t) * in.kv_heads + h / in.group]; };
        double largest = 0;
        for (int t = page; t < end; ++t) largest = std::max(largest, p[t] * scale(t));
        for (int t = page; t < end; ++t) {
          if (p[t] == 0 || scale(t) == 0) continue;
          const double* v = &held.v[(size_t(t) * in.kv_heads + h / in.group) * in.head_dim];
          for (int d = 0; d < in.head_dim; ++d) {
            bound[(size_t(r) * heads + h) * in.head_dim + d] += 1.001 * largest / 510 * std::fabs(v[d]) / scale(t);
          }
        }
      }
    }
  }
}

}  // namespace fastdecode
