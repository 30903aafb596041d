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

// What a step is at most: a 15th of the range, rounded up to bf16.
double StepMax(double low, double high) { return (high - low) / 15 * (1 + 1.0 / 128); }

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

// Rows of bf16 may hold infinities. They become the largest number, and stretch the steps of their own dim and token.
TEST_P(Int4PageTest, AnInfinityStaysInItsDimAndToken) {
  HeadOfInt4 head(head_dim());
  head.Append(k_, v_);
  const int k_dim = 1, token = 7, v_dim = head_dim() - 1;
  head.elements[PanelOffset<Bf16>(k_dim, token)] = 0x7f80;
  head.elements[PageKElements(head_dim()) + v_dim / kPanelLanes * kPanelLanes * kPageTokens +
                PanelOffset<Bf16>(token, v_dim % kPanelLanes)] = 0xff80;
  ASSERT_EQ(head.K(token, k_dim), INFINITY);
  ASSERT_EQ(head.V(token, v_dim), -INFINITY);
  const HeadOfInt4 before(head);  // to look at
  const std::vector<RangeOf> k_ranges = KRanges(head), v_ranges = VRanges(head);
  head.Close();
  head.Reopen();
  for (int t = 0; t < kPageTokens; ++t) {
    for (int d = 0; d < head_dim(); ++d) {
      ASSERT_TRUE(std::isfinite(head.K(t, d)) && std::isfinite(head.V(t, d))) << "token " << t << " dim " << d;
      const double k = before.K(t, d), v = before.V(t, d);
      if (d != k_dim) {
        ASSERT_NEAR(head.K(t, d), k, ErrorMax(k_ranges[d], k)) << "token " << t << " dim " << d;
      }
      if (t != token || d / 64 != v_dim / 64) {
        ASSERT_NEAR(head.V(t, d), v, ErrorMax(v_ranges[t * 4 + d / 64], v)) << "token " << t << " dim " << d;
      }
    }
  }
  EXPECT_GT(head.K(token, k_dim), 3e38f);
  EXPECT_LT(head.V(token, v_dim), -3e38f);
}

INSTANTIATE_TEST_SUITE_P(HeadDims, Int4PageTest, testing::Values(16, 48, 80, 128, 256));

}  // namespace
}  // namespace fastdecode
