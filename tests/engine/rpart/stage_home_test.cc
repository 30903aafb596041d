// A home that has no threads of its own gives the bits of one that has.
#include "engine/rpart/stage_home.h"

#include <gtest/gtest.h>

#include <optional>
#include <vector>

#include "tests/engine/rpart/stage_rig.h"

namespace fastdecode {
namespace {

struct Variant {
  ElementType type;
  KvType kv_type;
  uint32_t window;  // of the second layer; 0: none
  int team;
  std::vector<int> threads;
};

class StageHomeTest : public testing::TestWithParam<Variant> {
 protected:
  static RPartShape Shape() {
    RPartShape shape = SmallShape(GetParam().type);
    shape.kv_type = static_cast<uint32_t>(GetParam().kv_type);
    if (GetParam().window > 0) {
      shape.sliding_window = GetParam().window;
      shape.SetWindowed(1);
    }
    return shape;
  }
};

TEST_P(StageHomeTest, GivesTheBitsOfAHomeWithATeam) {
  StageRig rig(Shape(), GetParam().team, GetParam().threads);
  rig.Step(0, {{1, 0, 1, 1}, {2, 0, 40, 2}, {3, 0, 7, 3}});
  rig.Step(1, {{4, 0, 64, 4}});
  rig.Step(0, {{1, 1, 1, 1}, {2, 40, 30, 2}, {3, 7, 1, 3}});
  for (uint32_t position = 64; position < 640; position += 64) rig.Step(1, {{4, position, 64, 4}});
  for (uint32_t i = 0; i < 40; ++i) {  // over a page's end
    rig.Step(i % 2, {{4, 640 + i, 1, 4}, {2, 70 + i, 1, 2}});
  }
  rig.Step(0, {{1, 2, 33, 1}, {4, 680, 1, 4}});
  EXPECT_EQ(rig.Stats()->sequences, 4u);
}

TEST_P(StageHomeTest, ForksTruncationsAndReleasesAreThoseOfAHome) {
  StageRig rig(Shape(), GetParam().team, GetParam().threads);
  for (uint32_t position = 0; position < 576; position += 64) rig.Step(0, {{1, position, 64, 1}});
  ForkMessage fork;
  fork.sequence = 1;
  fork.tokens = 570;
  fork.new_sequence = 2;
  rig.Send(fork);
  rig.other().Fork(1, 570, 2);
  rig.Step(0, {{1, 576, 1, 1}, {2, 570, 1, 5}});  // a block in common
  rig.Send(AboutSequence(ControlKind::kTruncate, 1, 100));
  rig.other().Truncate(1, 100);
  rig.Step(1, {{1, 100, 20, 6}, {2, 571, 2, 5}});
  rig.Send(AboutSequence(ControlKind::kRelease, 2, 0));
  rig.other().Release(2);
  rig.Step(0, {{1, 120, 1, 6}});
  rig.Send(AboutSequence(ControlKind::kRelease, 1, 0));
  const std::optional<StatsMessage> stats = rig.Stats();
  ASSERT_TRUE(stats.has_value());
  EXPECT_EQ(stats->sequences, 0u);
  EXPECT_EQ(stats->pages_free, stats->pages_total);
}

INSTANTIATE_TEST_SUITE_P(Types, StageHomeTest,
                         testing::Values(Variant{ElementType::kF32, KvType::kF32, 0, 1, {0}},
                                         Variant{ElementType::kBf16, KvType::kBf16, 0, 3, {0, 1, 2}},
                                         Variant{ElementType::kBf16, KvType::kBf16, 100, 4, {1, 3}},
                                         Variant{ElementType::kF32, KvType::kInt8, 100, 2, {1}},
                                         Variant{ElementType::kBf16, KvType::kInt4, 0, 3, {2, 0}},
                                         Variant{ElementType::kF32, KvType::kFp16, 0, 2, {0, 1}}));

TEST(StageHomeEndsTest, AttachedAnewItHoldsNothing) {
  const RPartShape shape = SmallShape(ElementType::kF32);
  StageRig rig(shape, 2, {0, 1});
  rig.Step(0, {{1, 0, 40, 1}});
  rig.link().MarkLost("the test wants it so");
  const IdleMessage idle;
  EXPECT_FALSE(rig.link().TrySendControl(&idle, sizeof(idle)));
  size_t bytes = 0;
  std::vector<std::byte> buffer(kControlMessageBytesMax);
  EXPECT_EQ(rig.link().PollControl(buffer.data(), &bytes), LinkPoll::kLost);
  EXPECT_EQ(rig.link().lost_cause(), "the test wants it so");
  rig.Detach();
  rig.Attach(2);
  EXPECT_EQ(rig.Stats()->sequences, 0u);
  rig.other().Release(1);
  rig.Step(0, {{1, 0, 30, 7}});
}

TEST(StageHomeEndsTest, AMessageThatMakesNoSenseLosesTheLink) {
  StageRig rig(SmallShape(ElementType::kF32), 1, {0});
  const auto truncate = AboutSequence(ControlKind::kTruncate, 17, 1);
  EXPECT_FALSE(rig.link().TrySendControl(&truncate, sizeof(truncate)));
  EXPECT_TRUE(rig.link().lost());
  rig.Detach();
}

}  // namespace
}  // namespace fastdecode
