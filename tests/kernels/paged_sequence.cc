#include "tests/kernels/paged_sequence.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "tests/kernels/runnable_kernels.h"

namespace fastdecode {
namespace {

constexpr float kLog2E = 1.44269504088896341f;

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

// What a page of int8 holds for x.
double Int8Value(double x, float scale) {
  if (scale == 0) return 0;
  return double{scale} * std::clamp(std::nearbyintf(static_cast<float>(x) / scale), -127.0f, 127.0f);
}

// What a closed page of int4 makes of its numbers is part of the format, down to how those about halfway are rounded,
// in floats: as kernels/cpu/attention_page.h and page_codes.h say it.
struct Int4Scales {
  Int4Scales(std::vector<float> scales, float most) {
    for (float& scale : scales) scale = scale < 0x1p-100f ? 0 : scale;
    const float largest = *std::max_element(scales.begin(), scales.end());
    if (largest >= 0x1p-80f) unit = largest / most;
    for (const float scale : scales) {
      integers.push_back(unit == 0 ? 0 : std::min(std::ceil(std::fma(scale, most / largest, -0x1p-20f)), most));
    }
  }
  float Scale(size_t i) const { return integers[i] * unit; }
  float Inverse(size_t i) const { return integers[i] == 0 ? 0 : 1 / Scale(i); }

  float unit = 0;
  std::vector<float> integers;
};
float StepBetween(float low, float high, float count) { return high * (1 / count) - low * (1 / count); }
float Int4Code(double x, float inverse, float half_above) {
  return std::floor(std::fma(static_cast<float>(x), inverse, half_above)) - 192;
}

// What rows of prompts take a code for: in float, rounded to bf16.
double Unpacked(float code, float scale, float offset) {
  return RoundToKv(KvType::kBf16, std::fma(code, scale, offset));
}

// a * b / 2^15, halves upwards.
int MulWords(int a, int b) { return (a * b + (1 << 14)) >> 15; }

// q as the kernels for int8 multiply it: in 127ths of its largest element.
void RoundTo127ths(double* values, size_t count) {
  const float unit = std::max(LargestMagnitude(values, count), 1e-30f);
  for (double* v = values; v < values + count; ++v) {
    *v = std::nearbyint(static_cast<float>(*v) * (127 / unit)) * (unit / 127.0);
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
         std::to_string(c.window) + " soft_cap " + std::to_string(c.soft_cap) +
         (c.order == PageOrder::kAscending ? " ascending pages" : "");
}

bool AttentionResult::operator==(const AttentionResult& other) const {
  return SameBits(max, other.max) && SameBits(sum, other.sum) && SameBits(acc, other.acc) && o == other.o;
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
    case KvType::kInt4:
      break;
  }
  return NAN;
}

PagedSequence::PagedSequence(const AttentionCase& c, uint64_t seed) : order(c.order) {
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
  page_stride_bytes = PageBytes(shape) + (order == PageOrder::kShuffled ? 64 : 0);
  ClearPages(seed);
}

void PagedSequence::Encode() {
  q_ = EncodeAs(shape.type, in.q);
  k_ = EncodeAs(shape.type, in.k);
  v_ = EncodeAs(shape.type, in.v);
  held = in;
  for_prompts_ = in;
  if (shape.kv_type == KvType::kInt8) return HoldInt8();
  const bool int4 = shape.kv_type == KvType::kInt4;
  for (auto* values : {&held.k, &held.v}) {
    for (double& value : *values) value = RoundToKv(int4 ? KvType::kBf16 : shape.kv_type, value);
  }
  if (int4) HoldInt4();
}

const ReferenceAttentionInput& PagedSequence::HeldFor(const AttentionKernels& kernels) const {
  return AreForPrompts(kernels) ? for_prompts_ : held;
}

// A scale for each token and head, and queries in 127ths.
void PagedSequence::HoldInt8() {
  const size_t head_dim = static_cast<size_t>(in.head_dim);
  v_codes_.clear();
  for (auto* values : {&held.k, &held.v}) {
    for (size_t i = 0; i < values->size(); i += head_dim) {
      const float scale = RoundUpTo8Bits(LargestMagnitude(&(*values)[i], head_dim) / 127);
      for (size_t d = i; d < i + head_dim; ++d) (*values)[d] = Int8Value((*values)[d], scale);
      if (values == &held.v) v_codes_.push_back({0, scale});
    }
  }
  for (size_t i = 0; i < held.q.size(); i += head_dim) RoundTo127ths(&held.q[i], head_dim);
  for (size_t i = 0; i < held.k.size(); ++i) {
    for_prompts_.k[i] = RoundToKv(KvType::kBf16, held.k[i]);
    for_prompts_.v[i] = RoundToKv(KvType::kBf16, held.v[i]);
  }
}

// Full pages: a scale and a minimum for each dim of K, a scale and a minimum for 64 dims of a token of V. A row sees
// its own page, and what is not full, as it was.
void PagedSequence::HoldInt4() {
  const int head_dim = in.head_dim, heads = in.kv_heads, groups = (head_dim + 63) / 64;
  const auto at = [=](int token, int head, int dim) { return (size_t(token) * heads + head) * head_dim + dim; };
  open_k_ = for_prompts_.k = held.k;
  open_v_ = for_prompts_.v = held.v;
  k_codes_.assign(size_t(in.context / kPageTokens) * heads * head_dim, {});
  codes_of_k_.assign(held.k.size(), 0);
  v_codes_.assign(size_t(in.context) * heads * groups, {});
  for (int first = 0; first + kPageTokens <= in.context; first += kPageTokens) {
    for (int head = 0; head < heads; ++head) {
      std::vector<float> lows, scales;
      for (int d = 0; d < head_dim; ++d) {
        float low = INFINITY, high = -INFINITY;
        for (int t = first; t < first + kPageTokens; ++t) {
          low = std::min(low, static_cast<float>(held.k[at(t, head, d)]));
          high = std::max(high, static_cast<float>(held.k[at(t, head, d)]));
        }
        lows.push_back(low);
        scales.push_back(std::max(StepBetween(low, high, 14.98f), std::fabs(low) * (1.0f / 4094)));
      }
      const Int4Scales of_dims(scales, 32767);
      for (int d = 0; d < head_dim; ++d) {
        const float inverse = of_dims.Inverse(d), minimum = std::floor(std::fma(lows[d], inverse, .49f));
        const double scale = double{of_dims.integers[d]} * of_dims.unit;
        k_codes_[(size_t(first) / kPageTokens * heads + head) * head_dim + d] = {minimum * scale, scale, minimum,
                                                                                 of_dims.integers[d]};
        for (int t = first; t < first + kPageTokens; ++t) {
          double& k = held.k[at(t, head, d)];
          const float code = Int4Code(k, inverse, 192.5f - minimum);
          k = scale * (minimum + code);
          codes_of_k_[at(t, head, d)] = code;
          for_prompts_.k[at(t, head, d)] = Unpacked(code, of_dims.Scale(d), minimum * of_dims.Scale(d));
        }
      }
      for (int g = 0; g < groups; ++g) {
        lows.clear();
        scales.clear();
        for (int t = first; t < first + kPageTokens; ++t) {
          const auto begin = held.v.begin() + at(t, head, g * 64);
          const auto end = held.v.begin() + at(t, head, std::min(head_dim, g * 64 + 64));
          lows.push_back(static_cast<float>(*std::min_element(begin, end)));
          scales.push_back(StepBetween(lows.back(), static_cast<float>(*std::max_element(begin, end)), 15));
        }
        const Int4Scales of_tokens(scales, 255);
        for (int i = 0; i < kPageTokens; ++i) {
          const int t = first + i;
          const float inverse = of_tokens.Inverse(i), half_above = std::fma(-lows[i], inverse, 192.5f);
          const double scale = double{of_tokens.integers[i]} * of_tokens.unit;
          v_codes_[(size_t(t) * heads + head) * groups + g] = {lows[i], scale};
          for (int d = g * 64; d < std::min(head_dim, g * 64 + 64); ++d) {
            double& v = held.v[at(t, head, d)];
            const float code = Int4Code(v, inverse, half_above);
            v = lows[i] + scale * code;
            for_prompts_.v[at(t, head, d)] = Unpacked(code, of_tokens.Scale(i), lows[i]);
          }
        }
      }
    }
  }
  held.dot = [this](int row, int head, int token) { return Int4Dot(row, head, token); };
  held.v_at = [this, at](int row, int head, int token) {
    return &(IsOpen(row, token) ? open_v_ : held.v)[at(token, head, 0)];
  };
  for_prompts_.dot = [this, at](int row, int head, int token) {
    const std::vector<double>& k = IsOpen(row, token) ? open_k_ : for_prompts_.k;
    const double* q = &in.q[(size_t(row) * in.kv_heads * in.group + head) * in.head_dim];
    return std::inner_product(q, q + in.head_dim, &k[at(token, head / in.group, 0)], 0.0);
  };
  for_prompts_.v_at = [this, at](int row, int head, int token) {
    return &(IsOpen(row, token) ? open_v_ : for_prompts_.v)[at(token, head, 0)];
  };
}

bool PagedSequence::IsOpen(int row, int token) const {
  if (shape.kv_type != KvType::kInt4) return false;
  const int page = token / kPageTokens;
  return page == (in.first_row_position + row) / kPageTokens || (page + 1) * kPageTokens > in.context;
}

// q in words, times the page's scales in words, in the product with the minima, and rounded to bytes in that with the
// codes: as kernels/cpu/int4_kv.h says it, whose integers these are.
double PagedSequence::Int4Dot(int row, int head, int token) const {
  const int kv_head = head / in.group;
  const double* q = &in.q[(size_t(row) * in.kv_heads * in.group + head) * in.head_dim];
  const size_t first = (size_t(token) * in.kv_heads + kv_head) * in.head_dim;
  double dot = 0;
  if (IsOpen(row, token)) {
    for (int d = 0; d < in.head_dim; ++d) dot += q[d] * open_k_[first + d];
    return dot;
  }
  const CodeRange* codes = &k_codes_[(size_t(token) / kPageTokens * in.kv_heads + kv_head) * in.head_dim];
  const std::array<int, 3> page = {row, head, token / kPageTokens};
  if (rounded_of_ != page) {  // tokens come in order
    rounded_of_ = page;
    const float scale = shape.soft_cap > 0 ? 2 * shape.scale * kLog2E / shape.soft_cap : shape.scale * kLog2E;
    std::vector<float> scaled;
    float largest = 1e-30f;
    for (int d = 0; d < in.head_dim; ++d) {
      scaled.push_back(static_cast<float>(q[d]) * scale);
      largest = std::max(largest, std::fabs(scaled[d]));
    }
    std::vector<int> words;
    int top = 1;
    double unit = 0;  // of q · k in words, by which scores are then divided
    for (int d = 0; d < in.head_dim; ++d) {
      words.push_back(static_cast<int>(std::nearbyint(double{scaled[d]} * (32767 / largest))));
      top = std::max(top, std::abs(MulWords(words[d], static_cast<int>(codes[d].integer))));
      if (codes[d].integer > 0) unit = codes[d].scale / codes[d].integer * (largest / 32767) * 0x1p15 / scale;
    }
    const int to_code = static_cast<int>(std::nearbyint(std::min(32767.0f, 127 * 0x1p15f / static_cast<float>(top))));
    rounded_.clear();
    rounded_rest_ = 0;
    for (int d = 0; d < in.head_dim; ++d) {
      const int word = MulWords(words[d], static_cast<int>(codes[d].integer));
      rounded_.push_back(MulWords(word, to_code) * (0x1p15 / to_code) * unit);
      rounded_rest_ += word * codes[d].minimum * unit;
    }
  }
  return std::inner_product(rounded_.begin(), rounded_.end(), &codes_of_k_[first], rounded_rest_);
}

void PagedSequence::ClearPages(uint64_t seed, uint32_t word) {
  const int page_count = (in.context + kPageTokens - 1) / kPageTokens;
  page_ids.resize(page_count + 2);
  std::iota(page_ids.begin(), page_ids.end(), 0u);
  std::mt19937_64 random(seed);
  if (order == PageOrder::kShuffled) std::shuffle(page_ids.begin(), page_ids.end(), random);
  pages.resize(page_ids.size() * page_stride_bytes);
  open_pages_.resize(page_ids.size() * kOpenPieces * shape.kv_heads * OpenPieceBytes(shape));
  for (std::vector<std::byte>* bytes : {&pages, &open_pages_}) {
    for (size_t i = 0; i < bytes->size(); i += sizeof(word)) std::memcpy(&(*bytes)[i], &word, sizeof(word));
  }
}

const std::byte* PagedSequence::Element(const std::vector<std::byte>& bytes, size_t index) const {
  return bytes.data() + index * ElementBytes(shape.type);
}

// Its pieces lie here and there, those of a head apart from the next one's. Those that no token needs are not there.
OpenPage PagedSequence::OpenPageAt(int page) const {
  const size_t piece_bytes = OpenPieceBytes(shape), pages = page_ids.size();
  OpenPage open = {};
  for (size_t i = 0; i < kOpenPieces; ++i) {
    if (page * kPageTokens + static_cast<int>(i) * kOpenPieceTokens >= in.context) break;
    open.pieces[i] = open_pages_.data() + ((i * 3 + 1) % kOpenPieces * pages + page) * shape.kv_heads * piece_bytes;
  }
  open.head_stride_bytes = piece_bytes;
  return open;
}

void PagedSequence::Append(const AttentionKernels& kernels, int first, int count) {
  const size_t row_elements = size_t(in.kv_heads) * in.head_dim;
  while (count > 0) {
    const int slot = first % kPageTokens;
    const int tokens = std::min(count, kPageTokens - slot);
    for (int head = 0; head < in.kv_heads; ++head) {
      const size_t index = first * row_elements + size_t(head) * in.head_dim;
      std::byte* const page = &pages[page_ids[first / kPageTokens] * page_stride_bytes];
      const bool int4 = shape.kv_type == KvType::kInt4;
      const OpenPage open = OpenPageAt(first / kPageTokens);
      kernels.append(shape, {page, int4 ? &open : nullptr, head, slot, tokens, Element(k_, index), Element(v_, index),
                             row_elements * ElementBytes(shape.type)});
      if (int4 && slot + tokens == kPageTokens) ClosePage(shape, head, open, page);
    }
    first += tokens;
    count -= tokens;
  }
}

void PagedSequence::AppendInRandomPieces(const AttentionKernels& kernels, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (int first = 0; first < in.context;) {
    const int count = std::min<int>(1 + random() % (random() % 2 ? 3 : 70), in.context - first);
    Append(kernels, first, count);
    first += count;
  }
}

void PagedSequence::LetScoresGrow() {
  const size_t token_elements = static_cast<size_t>(in.kv_heads) * in.head_dim;
  for (size_t i = 300 * token_elements; i < in.k.size(); ++i) in.k[i] *= 3.5;
  Encode();
}

AttentionResult PagedSequence::Attend(const AttentionKernels& kernels, int kv_head, int first_row, int rows,
                                      int context, Folding folding) const {
  return AttendHeads(kernels, kv_head, 1, first_row, rows, context, folding);
}

AttentionResult PagedSequence::AttendHeads(const AttentionKernels& kernels, int first_head, int heads, int first_row,
                                           int rows, int context, Folding folding) const {
  if (shape.kv_type != KvType::kInt4 || rows > kMaxAttendRows) {
    return AttendRows(kernels, first_head, heads, first_row, rows, context, folding);
  }
  // The rows of one page at a time.
  const int per_row = in.group * in.head_dim;
  AttentionResult all;
  for (auto* values : {&all.max, &all.sum}) values->resize(heads * rows * in.group);
  all.acc.resize(heads * rows * per_row);
  for (int r = 0; r < rows;) {
    const int slot = (in.first_row_position + first_row + r + kPageTokens) % kPageTokens;
    const int count = std::min(rows - r, kPageTokens - slot);
    const AttentionResult some = AttendRows(kernels, first_head, heads, first_row + r, count, context, folding);
    for (int h = 0; h < heads; ++h) {
      const int from = h * count * in.group, to = (h * rows + r) * in.group;
      std::copy_n(&some.max[from], count * in.group, &all.max[to]);
      std::copy_n(&some.sum[from], count * in.group, &all.sum[to]);
      std::copy_n(&some.acc[from * in.head_dim], count * per_row, &all.acc[to * in.head_dim]);
    }
    all.o.insert(all.o.end(), some.o.begin(), some.o.end());
    r += count;
  }
  return all;
}

AttentionResult PagedSequence::AttendRows(const AttentionKernels& kernels, int first_head, int heads, int first_row,
                                          int rows, int context, Folding folding) const {
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
  const auto aligned = [](std::vector<std::byte>& bytes) {
    return bytes.data() + (64 - reinterpret_cast<uintptr_t>(bytes.data()) % 64) % 64;
  };
  std::vector<std::byte> scratch(AttendScratchBytes(shape) + 64, std::byte{0xff});
  std::vector<std::byte> o(rows * o_row_bytes + 64);
  const Partial into = {folded.max.data(), folded.sum.data(), folded.acc.data()};
  const Partial from = {block.max.data(), block.sum.data(), block.acc.data()};

  for (int first = 0; first < context; first += block_tokens) {
    // Kernels take blocks at multiples of kBlockTokens. Others are moved back to one, and their rows with them: only
    // how far these are away tells what they see.
    const int moved = first % kBlockTokens;
    OpenPage open[kMaxPromptPages + 1];
    NextAppend next_append;
    AttendArgs args = {};
    args.layer_base = pages.data();
    args.page_stride_bytes = page_stride_bytes;
    args.page_ids = &page_ids[first / kPageTokens];
    const int own_page = (in.first_row_position + first_row) / kPageTokens;
    const int last_page = (in.first_row_position + first_row + rows - 1) / kPageTokens;
    for (int page = own_page; shape.kv_type == KvType::kInt4 && page <= last_page; ++page) {
      const bool here = page >= first / kPageTokens && page < (first + block_tokens) / kPageTokens;
      if (!here || page * kPageTokens >= context) continue;
      open[page - own_page] = OpenPageAt(page);
      args.open_pages = open;
    }
    args.first_head = first_head;
    args.heads = heads;
    args.first_position = first - moved;
    args.tokens = std::min(block_tokens, context - first);
    args.q = Element(q_, first_row * q_row_elements + size_t(first_head) * in.group * in.head_dim);
    args.q_row_stride_bytes = q_row_bytes;
    args.rows = rows;
    args.first_row_position = in.first_row_position + first_row - moved;
    args.out = first == 0 ? into : from;
    args.scratch = aligned(scratch);
    if (folding == Folding::kInTheCall) {
      if (first > 0) args.into = into;
      args.same_queries = first > 0 && block_tokens == kBlockTokens;  // at the same positions, too
      if (first + block_tokens >= context) args.o = aligned(o), args.o_row_stride_bytes = o_row_bytes;
      if (const size_t next = (first + block_tokens) / kPageTokens; next < page_ids.size()) {
        args.next = &pages[page_ids[next] * page_stride_bytes];
        args.next_page_ids = &page_ids[next];
        args.next_pages = static_cast<int>(std::min<size_t>(page_ids.size() - next, block_tokens / kPageTokens));
      }
      next_append = {&pages[page_ids.back() * page_stride_bytes], {}, 0, in.kv_heads, (context - 1) % kPageTokens + 1};
      if (shape.kv_type == KvType::kInt4) next_append.page = nullptr, next_append.open = OpenPageAt(own_page);
      args.next_append = &next_append;
    }
    if (args.o != nullptr) {  // once more for the partials, which finishing does not leave
      const AttentionResult before = folded;
      kernels.attend(shape, args);
      std::ranges::copy(before.max, folded.max.begin());
      std::ranges::copy(before.sum, folded.sum.begin());
      std::ranges::copy(before.acc, folded.acc.begin());
      args.o = nullptr;
      args.same_queries = true;
    }
    kernels.attend(shape, args);
    if (first > 0 && folding == Folding::kBehindIt) kernels.fold(shape, into, from, n);
  }
  if (folding == Folding::kBehindIt) kernels.finish(shape, into, heads, rows, aligned(o), o_row_bytes);
  EndStreams();
  folded.o.assign(aligned(o), aligned(o) + rows * o_row_bytes);
  return folded;
}

}  // namespace fastdecode
