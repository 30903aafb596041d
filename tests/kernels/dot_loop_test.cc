#include "kernels/dot_loop.h"

#include <gtest/gtest.h>

#include <string>

namespace fastdecode {
namespace {

// A wider or younger instruction does not do less at once.
TEST(DotLoop, EveryIsaRunsItsOwn) {
  for (const KvType kv_type : kKvTypes) {
    double flop_before = 0;
    for (const Isa isa : kIsas) {
      if (isa > DetectIsa()) continue;
      AttentionShape shape;
      shape.type = kv_type == KvType::kF32 ? ElementType::kF32 : ElementType::kBf16;
      shape.kv_type = kv_type;
      const DotLoop loop = SelectDotLoop(isa, shape);
      SCOPED_TRACE(std::string(IsaName(isa)) + " " + loop.instruction);
      loop.run();
      EXPECT_GE(loop.flop, flop_before);
      flop_before = loop.flop;
    }
    EXPECT_TRUE(flop_before > 0 || DetectIsa() == Isa::kNone);
  }
}

}  // namespace
}  // namespace fastdecode
