#include "kernels/isa.h"

#include <gtest/gtest.h>

namespace fastdecode {
namespace {

TEST(IsaTest, NamesAreReadBack) {
  for (Isa isa : kIsas) {
    Isa parsed = Isa::kNone;
    EXPECT_TRUE(ParseIsa(IsaName(isa), &parsed));
    EXPECT_EQ(parsed, isa);
  }
  Isa untouched = Isa::kAvx2;
  EXPECT_FALSE(ParseIsa("none", &untouched));
  EXPECT_FALSE(ParseIsa("AVX2", &untouched));
  EXPECT_EQ(untouched, Isa::kAvx2);
}

TEST(IsaTest, DetectionAgreesWithTheCompilers) {
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
  const bool vnni = __builtin_cpu_supports("avx512vnni"), bf16 = __builtin_cpu_supports("avx512bf16");
  EXPECT_EQ(DetectIsa() >= Isa::kAvx2, avx2);
  EXPECT_EQ(DetectIsa() >= Isa::kAvx512, avx2 && avx512);
  EXPECT_EQ(DetectIsa() >= Isa::kAvx512Vnni, avx2 && avx512 && vnni);
  EXPECT_EQ(DetectIsa() == Isa::kAvx512Bf16, avx2 && avx512 && vnni && bf16);
}

}  // namespace
}  // namespace fastdecode
