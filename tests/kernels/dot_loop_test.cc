#include "kernels/dot_loop.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

namespace fastdecode {
namespace {

// Products of one instruction, by the manuals: lanes times the pairs or quads that each adds up.
struct Expected {
  Isa isa;
  KvType kv_type;
  const char* instruction;
  double products;
  bool of_prompts = false;
};
constexpr Expected kExpected[] = {
    {Isa::kAvx2, KvType::kF32, "vfmadd231ps ymm", 8},
    {Isa::kAvx2, KvType::kBf16, "vfmadd231ps ymm", 8},
    {Isa::kAvx512, KvType::kF32, "vfmadd231ps zmm", 16},
    {Isa::kAvx512, KvType::kFp16, "vfmadd231ps zmm", 16},
    {Isa::kAvx512Vnni, KvType::kBf16, "vfmadd231ps zmm", 16},
    {Isa::kAvx512Vnni, KvType::kInt8, "vpdpbusd zmm", 16 * 4},
    {Isa::kAvx512Bf16, KvType::kBf16, "vdpbf16ps zmm", 16 * 2},
    {Isa::kAvx512Bf16, KvType::kInt4, "vpdpbusd zmm", 16 * 4},
    {Isa::kAmx, KvType::kBf16, "tdpbf16ps", 16 * 16 * 32},
    {Isa::kAmx, KvType::kInt8, "tdpbssd", 16 * 16 * 64},
    {Isa::kAmx, KvType::kInt8, "tdpbf16ps", 16 * 16 * 32, true},
    {Isa::kAmx, KvType::kInt4, "tdpbf16ps", 16 * 16 * 32, true},
    {Isa::kAvx512Vnni, KvType::kInt8, "vpdpbusd zmm", 16 * 4, true},
    {Isa::kAmx, KvType::kF32, "vfmadd231ps zmm", 16},
};

TEST(DotLoopTest, CountsWhatItsInstructionMultiplies) {
  for (const Expected& expected : kExpected) {
    if (expected.isa > DetectIsa()) {
      std::printf("not here: %s\n", IsaName(expected.isa));
      continue;
    }
    AttentionShape shape;
    shape.type = expected.kv_type == KvType::kF32 ? ElementType::kF32 : ElementType::kBf16;
    shape.kv_type = expected.kv_type;
    const DotLoop loop = SelectDotLoop(expected.isa, shape, expected.of_prompts);
    SCOPED_TRACE(std::string(IsaName(expected.isa)) + " " + KvTypeName(expected.kv_type));
    EXPECT_STREQ(loop.instruction, expected.instruction);
    const bool tiles = expected.products >= 16 * 16;
    EXPECT_EQ(loop.flop, 2 * expected.products * (tiles ? 4000 : 12000));
    loop.run();
  }
}

}  // namespace
}  // namespace fastdecode
