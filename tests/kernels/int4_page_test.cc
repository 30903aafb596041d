// What closing a page of int4 loses, and what it does with numbers that are none.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cpu/page_codes.h"

namespace fastdecode {
namespace {

// One KV head of an open page, as a whole, and a page that it is closed into.
struct HeadOfInt4 {
  explicit HeadOfInt4(int head_dim)
      : shape{ElementType::kF32, KvType::kInt4, 1, 1, head_dim, 0.1f, 0, 0},
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
  void Reopen() { ReopenPage(shape, 0, page.data(), kPageTokens, open); }
  Bf16& KElement(int token, int dim) { return elements[static_cast<size_t>(token * 2 * shape.head_dim + dim)]; }
  Bf16& VElement(int token, int dim) { return KElement(token, shape.head_dim + dim); }
  float K(int token, int dim) const {
    return FromBf16(elements[static_cast<size_t>(token * 2 * shape.head_dim + dim)]);
  }
  float V(int token, int dim) const { return K(token, shape.head_dim + dim); }

  AttentionShape shape;
  OpenPage open;
  std::vector<Bf16> elements;
  std::vector<std::byte> page;
};

struct RangeOf {
  double low = INFINITY, high = -INFINITY;
  void Add(double x) {
    low = std::min(low, x);
    high = std::max(high, x);
  }
};

// What the steps of ranges that share a unit are at most: a part of the range, of K also of the least element, rounded
// up to a multiple of the unit, which is the largest step's `most`th.
std::vector<double> StepsMax(const std::vector<RangeOf>& ranges, double count, double least, int most) {
  std::vector<double> steps;
  double largest = 0;
  for (const RangeOf& range : ranges) {
    steps.push_back(std::max((range.high - range.low) / count, std::fabs(range.low) * least));
    largest = std::max(largest, steps.back());
  }
  for (double& step : steps) step += largest / most;
  return steps;
}

// Half a step and a little more, and the rounding to bf16 when it is opened.
double ErrorMax(double step, double x) { return .5101 * step + (std::fabs(x) + step) / 256; }

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
  // Of K's dims, and of V's tokens, group by group.
  static std::vector<RangeOf> KRanges(const HeadOfInt4& head) {
    std::vector<RangeOf> ranges(head_dim());
    for (int t = 0; t < kPageTokens; ++t) {
      for (int d = 0; d < head_dim(); ++d) ranges[d].Add(head.K(t, d));
    }
    return ranges;
  }
  static std::vector<RangeOf> VRanges(const HeadOfInt4& head, int group) {
    std::vector<RangeOf> ranges(kPageTokens);
    for (int t = 0; t < kPageTokens; ++t) {
      for (int d = group * 64; d < std::min(head_dim(), group * 64 + 64); ++d) ranges[t].Add(head.V(t, d));
    }
    return ranges;
  }
  // What closing made of `before` is near it.
  static void ExpectNear(const HeadOfInt4& head, const HeadOfInt4& before) {
    const std::vector<double> k_steps = StepsMax(KRanges(before), 14.98, 1 / 4094.0, 32767);
    std::vector<std::vector<double>> v_steps;
    for (int group = 0; group < (head_dim() + 63) / 64; ++group) {
      v_steps.push_back(StepsMax(VRanges(before, group), 15, 0, 255));
    }
    for (int t = 0; t < kPageTokens; ++t) {
      for (int d = 0; d < head_dim(); ++d) {
        const double k = before.K(t, d), v = before.V(t, d);
        ASSERT_NEAR(head.K(t, d), k, ErrorMax(k_steps[d], k)) << "token " << t << " dim " << d;
        ASSERT_NEAR(head.V(t, d), v, ErrorMax(v_steps[d / 64][t], v)) << "token " << t << " dim " << d;
      }
    }
  }

  std::vector<float> k_, v_;
};

// Again and again, each time of what was opened.
TEST_P(Int4PageTest, ReopenedElementsAreWithinHalfAStep) {
  HeadOfInt4 head(head_dim());
  head.Append(k_, v_);
  for (int round = 0; round < 8; ++round) {
    const HeadOfInt4 before(head);  // to look at
    head.Close();
    head.Reopen();
    ASSERT_NO_FATAL_FAILURE(ExpectNear(head, before)) << "round " << round;
  }
}

// A unit that all share is fine enough for dims that are a hundredth of the largest.
TEST_P(Int4PageTest, DimsKeepTheirOwnSteps) {
  HeadOfInt4 head(head_dim());
  head.Append(k_, v_);
  const HeadOfInt4 before(head);
  const std::vector<RangeOf> ranges = KRanges(before);
  head.Close();
  head.Reopen();
  for (int d = 0; d < head_dim(); ++d) {
    if (d % 5 == 1) continue;  // 1e-5 of the largest, less than the unit
    const double step = (ranges[d].high - ranges[d].low) / 14.98;
    for (int t = 0; t < kPageTokens; ++t) {
      const double k = before.K(t, d);
      ASSERT_NEAR(head.K(t, d), k, ErrorMax(step * 1.05, k)) << "token " << t << " dim " << d;
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

// Rows of bf16 may hold infinities. They become the largest number, and the unit of their page's dims, or of its
// tokens, is then so large that the others stay within their range, or near zero, and no more.
TEST_P(Int4PageTest, AnInfinityLeavesTheOthersInTheirRange) {
  HeadOfInt4 head(head_dim());
  head.Append(k_, v_);
  const int k_dim = 1, token = 7, v_dim = head_dim() - 1;
  head.KElement(token, k_dim) = 0x7f80;
  head.VElement(token, v_dim) = 0xff80;
  ASSERT_EQ(head.K(token, k_dim), INFINITY);
  ASSERT_EQ(head.V(token, v_dim), -INFINITY);
  const HeadOfInt4 before(head);  // to look at
  const std::vector<RangeOf> k_ranges = KRanges(head), v_ranges = VRanges(head, v_dim / 64);
  head.Close();
  head.Reopen();
  for (int t = 0; t < kPageTokens; ++t) {
    for (int d = 0; d < head_dim(); ++d) {
      ASSERT_TRUE(std::isfinite(head.K(t, d)) && std::isfinite(head.V(t, d))) << "token " << t << " dim " << d;
      if (d != k_dim) {
        ASSERT_LE(head.K(t, d), std::max(0.0, k_ranges[d].high)) << "token " << t << " dim " << d;
        ASSERT_GE(head.K(t, d), std::min(0.0, k_ranges[d].low)) << "token " << t << " dim " << d;
      }
      if (t != token && d / 64 == v_dim / 64) {
        ASSERT_LE(head.V(t, d), v_ranges[t].high) << "token " << t << " dim " << d;
        ASSERT_GE(head.V(t, d), v_ranges[t].low) << "token " << t << " dim " << d;
      }
      if (d / 64 != v_dim / 64) {
        ASSERT_NEAR(head.V(t, d), before.V(t, d), .3) << "token " << t << " dim " << d;
      }
    }
  }
  EXPECT_GT(head.K(token, k_dim), 3e38f);
  EXPECT_LT(head.V(token, v_dim), -3e38f);
}

INSTANTIATE_TEST_SUITE_P(HeadDims, Int4PageTest, testing::Values(16, 48, 80, 128, 256));

}  // namespace
}  // namespace fastdecode
