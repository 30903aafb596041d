// A home's attention against its definition in double: layers with a window and layers without one, whatever the rows
// come in.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "tests/engine/rpart/test_engine.h"

namespace fastdecode {
namespace {

constexpr uint64_t kHomeBytes = uint64_t{16} << 20;

struct Variant {
  ElementType type;
  KvType kv_type;
  uint32_t sliding_window;
  uint32_t windowed;  // a bit for each of the two layers
  float soft_cap;
  int threads;
};

class HomeReferenceTest : public testing::TestWithParam<Variant> {
 protected:
  static RPartShape shape() {
    RPartShape shape = SmallShape(GetParam().type);
    shape.kv_type = static_cast<uint32_t>(GetParam().kv_type);
    shape.sliding_window = GetParam().sliding_window;
    shape.window_bits[0] = GetParam().windowed;
    shape.soft_cap = GetParam().soft_cap;
    return shape;
  }
};

TEST_P(HomeReferenceTest, MixedStepsMatchTheReference) {
  const std::unique_ptr<Home> home = MakeTestHome(GetParam().threads, kHomeBytes);
  TestEngine engine(home.get(), shape());
  engine.CheckedStep(0, {{1, 0, 1, 1}, {2, 0, 40, 2}, {3, 0, 7, 3}});
  engine.CheckedStep(1, {{4, 0, 64, 4}});
  engine.CheckedStep(0, {{1, 1, 1, 1}, {2, 40, 30, 2}, {3, 7, 8, 3}});  // 70: over a page's end, 15: inside one
  engine.CheckedStep(0, {{3, 15, 20, 3}, {1, 2, 1, 1}});
  for (uint32_t position = 64; position < 512 - 10; position += 62) {
    engine.CheckedStep(1, {{4, position, std::min(62u, 512 - 10 - position), 4}});
  }
  engine.CheckedStep(0, {{4, 502, 8, 4}, {2, 70, 1, 2}});
  engine.CheckedStep(0, {{4, 510, 5, 4}, {2, 71, 9, 2}});  // over a block's end
  for (uint32_t position = 515; position < 520; ++position) {
    engine.CheckedStep(1, {{4, position, 1, 4}, {2, position - 515 + 80, 1, 2}});
  }
}

// Tokens from the block on in which what a row sees begins.
uint64_t TokensSeen(uint32_t position, uint32_t window) {
  const uint32_t first_seen = window > 0 && position >= window ? position - window + 1 : 0;
  return position + 1 - first_seen / kBlockTokens * kBlockTokens;
}

// A prompt of a block and a little more, and its forks: where there is no window, they read the block together.
TEST_P(HomeReferenceTest, ForksMatchTheReference) {
  constexpr uint32_t kPrefix = 560, kSteps = 3;
  const RPartShape shape = this->shape();
  const std::unique_ptr<Home> home = MakeTestHome(GetParam().threads, kHomeBytes);
  TestEngine engine(home.get(), shape);
  for (uint32_t position = 0; position < kPrefix; position += 56) engine.CheckedStep(0, {{1, position, 56, 1}});
  for (uint64_t fork = 2; fork <= 3; ++fork) engine.Fork(1, kPrefix, fork);
  const uint64_t before = engine.Stats().kv_bytes_read;
  uint64_t tokens = 0;
  for (uint32_t position = kPrefix; position < kPrefix + kSteps; ++position) {
    engine.CheckedStep(0, {{3, position, 1, 13}, {1, position, 1, 11}, {2, position, 1, 12}});
    for (uint32_t layer = 0; layer < shape.layers; ++layer) {
      const bool windowed = shape.windowed(layer);
      tokens += 3 * TokensSeen(position, windowed ? shape.sliding_window : 0) - (windowed ? 0 : 2 * kBlockTokens);
    }
  }
  EXPECT_EQ(engine.Stats().kv_bytes_read - before, tokens * PageBytes(shape.attention()) / kPageTokens);
}

// Of few tokens, so that o is larger than what int4 loses.
constexpr uint32_t kInt4Window = 4;

INSTANTIATE_TEST_SUITE_P(OneKind, HomeReferenceTest,
                         testing::Values(Variant{ElementType::kF32, KvType::kF32, 0, 0, 0, 1},
                                         Variant{ElementType::kBf16, KvType::kBf16, 0, 0, 0, 2},
                                         Variant{ElementType::kBf16, KvType::kBf16, 37, 0b11, 0, 3},
                                         Variant{ElementType::kF32, KvType::kF32, 540, 0b11, 2, 2}));
INSTANTIATE_TEST_SUITE_P(TwoKinds, HomeReferenceTest,
                         testing::Values(Variant{ElementType::kF32, KvType::kF32, 37, 0b01, 0.5f, 3},
                                         Variant{ElementType::kBf16, KvType::kBf16, 70, 0b10, 0, 1},
                                         Variant{ElementType::kF32, KvType::kF32, 540, 0b10, 0.5f, 2},
                                         Variant{ElementType::kBf16, KvType::kInt8, 37, 0b01, 0, 2},
                                         Variant{ElementType::kBf16, KvType::kInt4, kInt4Window, 0b10, 0, 2},
                                         Variant{ElementType::kF32, KvType::kInt4, kInt4Window, 0b01, 0.5f, 3}));

}  // namespace
}  // namespace fastdecode
