// The attention kernels read and write what they were given and nothing beside it; and what closing a page of int4
// loses.
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cpu/page_codes.h"
#include "kernels/isa.h"

namespace fastdecode {
namespace {

enum class Flush { kStart, kEnd };  // where the inaccessible page begins: before the first byte, behind the last

// `count` areas of so many bytes, each between pages that nobody may touch, all as far apart.
class GuardedAreas {
 public:
  GuardedAreas(size_t bytes, size_t count, Flush flush)
      : page_(static_cast<size_t>(sysconf(_SC_PAGESIZE))),
        used_((bytes + page_ - 1) / page_ * page_),
        stride_(used_ + page_),
        mapped_(stride_ * count + page_),
        start_(static_cast<std::byte*>(
            mmap(nullptr, mapped_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))),
        first_(start_ + page_ + (flush == Flush::kEnd ? used_ - bytes : 0)) {
    for (size_t i = 0; i < count; ++i) {
      EXPECT_EQ(mprotect(start_ + page_ + i * stride_, used_, PROT_READ | PROT_WRITE), 0);
      std::fill_n(at(i), bytes, std::byte{0xff});  // NaN in all types
    }
  }
  ~GuardedAreas() { munmap(start_, mapped_); }
  GuardedAreas(const GuardedAreas&) = delete;
  GuardedAreas& operator=(const GuardedAreas&) = delete;

  std::byte* at(size_t i = 0) const { return first_ + i * stride_; }
  float* floats() const { return reinterpret_cast<float*>(first_); }
  size_t stride_bytes() const { return stride_; }

 private:
  const size_t page_, used_, stride_, mapped_;
  std::byte* const start_;
  std::byte* const first_;
};

AttentionShape ShapeOf(ElementType type, KvType kv_type, int kv_heads, int group, int head_dim) {
  return {type, kv_type, kv_heads, group, head_dim, 1 / std::sqrt(static_cast<float>(head_dim)), 0, 0};
}

void FillRandom(ElementType type, std::byte* to, size_t elements, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (size_t i = 0; i < elements; ++i) {
    const float x = static_cast<float>(random() % 2048) / 1024 - 1;
    const Bf16 rounded = ToBf16(x);
    std::memcpy(to + i * ElementBytes(type), type == ElementType::kF32 ? static_cast<const void*>(&x) : &rounded,
                ElementBytes(type));
  }
}

struct Call {
  int tokens, rows, first_head, heads;
};

// Appends, closes, attends, folds and finishes, with everything in guarded areas. Returns o.
std::vector<std::byte> Attend(const AttentionKernels& kernels, const AttentionShape& shape, const Call& call,
                              Flush flush) {
  const size_t element = ElementBytes(shape.type),
               pages = static_cast<size_t>(call.tokens + kPageTokens - 1) / kPageTokens;
  const size_t kv_row = static_cast<size_t>(shape.kv_heads) * shape.head_dim * element;
  const size_t row_heads = static_cast<size_t>(call.heads) * call.rows * shape.group;
  const size_t q_row = static_cast<size_t>(call.heads) * shape.group * shape.head_dim * element;
  const bool int4 = shape.kv_type == KvType::kInt4;
  GuardedAreas kv(PageBytes(shape), pages, flush);
  GuardedAreas pieces(std::max<size_t>(1, shape.kv_heads * OpenPieceBytes(shape)), kOpenPieces, flush);
  OpenPage open = {{pieces.at(0), pieces.at(1), pieces.at(2), pieces.at(3)}, OpenPieceBytes(shape)};
  for (size_t page = 0; page < pages; ++page) {
    const int tokens = std::min<int>(kPageTokens, call.tokens - static_cast<int>(page) * kPageTokens);
    GuardedAreas k(tokens * kv_row, 1, flush), v(tokens * kv_row, 1, flush);
    FillRandom(shape.type, k.at(), tokens * kv_row / element, 2 * page);
    FillRandom(shape.type, v.at(), tokens * kv_row / element, 2 * page + 1);
    for (int head = 0; head < shape.kv_heads; ++head) {
      const size_t offset = static_cast<size_t>(head) * shape.head_dim * element;
      kernels.append(shape,
                     {kv.at(page), int4 ? &open : nullptr, head, 0, tokens, k.at() + offset, v.at() + offset, kv_row});
      if (int4 && tokens == kPageTokens) ClosePage(shape, head, open, kv.at(page));
    }
  }

  GuardedAreas q(q_row * call.rows, 1, flush), o(q_row * call.rows, 1, flush);
  FillRandom(shape.type, q.at(), q_row * call.rows / element, 99);
  GuardedAreas max(row_heads * sizeof(float), 2, flush), sum(row_heads * sizeof(float), 2, flush);
  GuardedAreas acc(row_heads * shape.head_dim * sizeof(float), 2, flush);
  GuardedAreas scratch(AttendScratchBytes(shape), 1, flush);
  GuardedAreas ids(pages * sizeof(uint32_t), 1, flush);
  for (uint32_t page = 0; page < pages; ++page) std::memcpy(ids.at() + page * sizeof(page), &page, sizeof(page));
  const auto partial = [&](size_t i) {
    return Partial{reinterpret_cast<float*>(max.at(i)), reinterpret_cast<float*>(sum.at(i)),
                   reinterpret_cast<float*>(acc.at(i))};
  };

  AttendArgs args = {};
  args.layer_base = kv.at(0);
  args.page_stride_bytes = kv.stride_bytes();
  args.page_ids = reinterpret_cast<const uint32_t*>(ids.at());
  args.open_page = int4 ? &open : nullptr;
  args.first_head = call.first_head;
  args.heads = call.heads;
  args.tokens = call.tokens;
  args.q = q.at();
  args.q_row_stride_bytes = q_row;
  args.rows = call.rows;
  args.first_row_position = call.tokens - call.rows;
  args.next = kv.at(0);
  args.scratch = scratch.at();
  for (size_t i = 0; i < 2; ++i) {
    args.out = partial(i);
    kernels.attend(shape, args);
  }
  kernels.fold(shape, partial(0), partial(1), static_cast<int>(row_heads));
  kernels.finish(shape, partial(0), call.heads, call.rows, o.at(), q_row);
  return {o.at(), o.at() + q_row * call.rows};
}

class AttentionBoundsTest : public testing::TestWithParam<KvType> {};

TEST_P(AttentionBoundsTest, NothingBesideWhatWasGivenIsTouched) {
  for (const int head_dim : {16, 48, 128, 256}) {
    for (const ElementType type : {ElementType::kF32, ElementType::kBf16}) {
      const AttentionShape shape = ShapeOf(type, GetParam(), 3, type == ElementType::kF32 ? 1 : 5, head_dim);
      for (const Isa isa : kIsas) {
        if (isa > DetectIsa()) continue;
        const AttentionKernels kernels = SelectAttention(isa, shape);
        for (const Call& call :
             {Call{1, 1, 0, 3}, Call{38, 6, 1, 2}, Call{64, 8, 0, 3}, Call{109, 13, 2, 1}, Call{512, 1, 2, 1}}) {
          SCOPED_TRACE(std::string(kernels.name) + ", head_dim " + std::to_string(head_dim) + ", tokens " +
                       std::to_string(call.tokens));
          const std::vector<std::byte> at_start = Attend(kernels, shape, call, Flush::kStart);
          EXPECT_TRUE(Attend(kernels, shape, call, Flush::kEnd) == at_start);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, AttentionBoundsTest, testing::ValuesIn(kKvTypes),
                         [](const auto& info) { return std::string(KvTypeName(info.param)); });

// One KV head of an open page, as a whole, and a page that it is closed into.
struct HeadOfInt4 {
  explicit HeadOfInt4(int head_dim)
      : shape(ShapeOf(ElementType::kF32, KvType::kInt4, 1, 1, head_dim)),
        elements(4 * OpenPieceBytes(shape) / sizeof(Bf16)),
        page(PageBytes(shape)) {
    for (size_t i = 0; i < kOpenPieces; ++i) {
      open.pieces[i] = reinterpret_cast<std::byte*>(elements.data()) + i * OpenPieceBytes(shape);
    }
    open.head_stride_bytes = 0;
  }
  void Append(const std::vector<float>& k, const std::vector<float>& v) {
    AppendToPage(shape, {nullptr, &open, 0, 0, kPageTokens, reinterpret_cast<const std::byte*>(k.data()),
                         reinterpret_cast<const std::byte*>(v.data()), shape.head_dim * sizeof(float)});
  }
  void Close() { ClosePage(shape, 0, open, page.data()); }
  void Reopen() { ReopenPage(shape, 0, page.data(), open); }
  float K(int token, int dim) const {
    return FromBf16(
        elements[token / kPanelLanes * kPanelLanes * shape.head_dim + PanelOffset<Bf16>(dim, token % kPanelLanes)]);
  }
  float V(int token, int dim) const {
    return FromBf16(elements[PageKElements(shape.head_dim) + dim / kPanelLanes * kPanelLanes * kPageTokens +
                             PanelOffset<Bf16>(token, dim % kPanelLanes)]);
  }

  AttentionShape shape;
  OpenPage open;
  std::vector<Bf16> elements;
  std::vector<std::byte> page;
};

// What a step is at most: the minimum is rounded down by 2^-7 of it, and a 15th of what is left is rounded up so.
double StepMax(double low, double high) { return (high - low + std::fabs(low) / 128) / 15 * (1 + 1.0 / 128); }

struct RangeOf {
  double low = INFINITY, high = -INFINITY;
  void Add(double x) {
    low = std::min(low, x);
    high = std::max(high, x);
  }
};

// Half a step, and the rounding to bf16 when it is opened.
double ErrorMax(const RangeOf& range, double x) {
  const double half = StepMax(range.low, range.high) / 2;
  return half * 1.0001 + (std::fabs(x) + half) / 256;
}

class Int4PageTest : public testing::TestWithParam<int> {
 protected:
  // Dims of all magnitudes, some with one sign.
  void SetUp() override {
    std::mt19937_64 random(3);
    std::normal_distribution<float> normal;
    for (int t = 0; t < kPageTokens; ++t) {
      for (int d = 0; d < head_dim(); ++d) {
        const float magnitude = d % 5 == 0 ? 100.0f : d % 5 == 1 ? 1e-3f : 1.0f;
        k_.push_back(normal(random) * magnitude + (d % 3 == 0 ? 4 * magnitude : 0));
        v_.push_back(normal(random) + (t % 7 == 0 ? 3.0f : 0.0f));
      }
    }
  }
  static int head_dim() { return GetParam(); }
  // Of K's dims and V's groups.
  static std::vector<RangeOf> KRanges(const HeadOfInt4& head) {
    std::vector<RangeOf> ranges(head_dim());
    for (int t = 0; t < kPageTokens; ++t) {
      for (int d = 0; d < head_dim(); ++d) ranges[d].Add(head.K(t, d));
    }
    return ranges;
  }
  static std::vector<RangeOf> VRanges(const HeadOfInt4& head) {
    std::vector<RangeOf> ranges(kPageTokens * 4);
    for (int t = 0; t < kPageTokens; ++t) {
      for (int d = 0; d < head_dim(); ++d) ranges[t * 4 + d / 64].Add(head.V(t, d));
    }
    return ranges;
  }

  std::vector<float> k_, v_;
};

TEST_P(Int4PageTest, ReopenedElementsAreWithinHalfAStep) {
  HeadOfInt4 head(head_dim());
  head.Append(k_, v_);
  const HeadOfInt4 before(head);  // to look at
  const std::vector<RangeOf> k_ranges = KRanges(head), v_ranges = VRanges(head);
  head.Close();
  head.Reopen();
  for (int t = 0; t < kPageTokens; ++t) {
    for (int d = 0; d < head_dim(); ++d) {
      const double k = before.K(t, d), v = before.V(t, d);
      ASSERT_NEAR(head.K(t, d), k, ErrorMax(k_ranges[d], k)) << "token " << t << " dim " << d;
      ASSERT_NEAR(head.V(t, d), v, ErrorMax(v_ranges[t * 4 + d / 64], v)) << "token " << t << " dim " << d;
    }
  }
}

// The codes are the same again. But the largest element may have been rounded up when it was opened, and the scale then
// rounds up to the next bf16: a 128th, which the largest code has 15 times. So a page that is cut back into again and
// again drifts by an eighth of a step each time, for some times.
TEST_P(Int4PageTest, ClosingAgainLosesAnEighthOfAStepAtMost) {
  HeadOfInt4 head(head_dim());
  head.Append(k_, v_);
  head.Close();
  head.Reopen();
  for (int round = 0; round < 8; ++round) {
    const HeadOfInt4 before(head);  // to look at
    const std::vector<RangeOf> k_ranges = KRanges(head), v_ranges = VRanges(head);
    head.Close();
    head.Reopen();
    const auto change_max = [](const RangeOf& range, double x) {
      return StepMax(range.low, range.high) * 15 / 128 + std::fabs(x) / 128;
    };
    for (int t = 0; t < kPageTokens; ++t) {
      for (int d = 0; d < head_dim(); ++d) {
        const double k = before.K(t, d), v = before.V(t, d);
        ASSERT_NEAR(head.K(t, d), k, change_max(k_ranges[d], k)) << "token " << t << " dim " << d;
        ASSERT_NEAR(head.V(t, d), v, change_max(v_ranges[t * 4 + d / 64], v)) << "token " << t << " dim " << d;
      }
    }
  }
}

TEST_P(Int4PageTest, ATokenWithANaNHasItInItsVAlone) {
  v_[5 * head_dim() + 3] = NAN;
  k_[20 * head_dim() + head_dim() - 1] = NAN;
  HeadOfInt4 head(head_dim());
  head.Append(k_, v_);
  for (int round = 0; round < 2; ++round) {
    head.Close();
    head.Reopen();
    for (int t = 0; t < kPageTokens; ++t) {
      bool nan = false;
      for (int d = 0; d < head_dim(); ++d) {
        EXPECT_TRUE(std::isfinite(head.K(t, d)));
        nan |= std::isnan(head.V(t, d));
        EXPECT_TRUE(t == 5 || t == 20 || std::isfinite(head.V(t, d))) << "token " << t << " dim " << d;
      }
      EXPECT_EQ(nan, t == 5 || t == 20) << "token " << t;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(HeadDims, Int4PageTest, testing::Values(16, 48, 80, 128, 256));

}  // namespace
}  // namespace fastdecode
