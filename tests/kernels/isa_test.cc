#include "kernels/isa.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <cstdint>

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
  EXPECT_EQ(DetectIsa() >= Isa::kAvx512Bf16, avx2 && avx512 && vnni && bf16);
  EXPECT_EQ(CpuHasVbmi(), __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vbmi2"));
}

// Whether tiles may be used is asked of Linux, not of the CPU: what DetectIsa says is what an instruction finds.
TEST(IsaTest, AmxIsWhatCanBeExecuted) {
  const auto execute = [] {
    alignas(64) uint8_t config[64] = {1};
    config[16] = 64;  // tile 0: bytes a row
    config[48] = 16;  // and rows
    asm volatile("ldtilecfg %0" ::"m"(config));
    asm volatile("tilezero %tmm0");
    asm volatile("tilerelease");
    _exit(0);
  };
  if (DetectIsa() == Isa::kAmx) {
    EXPECT_EXIT(execute(), testing::ExitedWithCode(0), "");
  } else {
    EXPECT_EXIT(execute(), testing::KilledBySignal(SIGILL), "");
  }
}

}  // namespace
}  // namespace fastdecode
