// A case for each ISA, in every program that tests what RunnableKernels gives: skipped, by name, where this machine
// cannot run its kernels.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/cpu/attention_page.h"
#include "tests/kernels/runnable_kernels.h"

namespace fastdecode {
namespace {

class RunnableIsasTest : public testing::TestWithParam<Isa> {};

TEST_P(RunnableIsasTest, ItsKernelsAreAmongThoseThatAreTested) {
  const Isa isa = GetParam();
  if (!IsRunnable(isa)) GTEST_SKIP() << "this CPU lacks " << IsaName(isa);
  for (const KvType kv : kKvTypes) {
    for (const ElementType rows : {ElementType::kF32, ElementType::kBf16}) {
      const AttentionShape shape = {rows, kv, 2, 4, 64, 0.125f, 0, 0};
      const std::vector<AttentionKernels> all = RunnableKernels(shape);
      const auto is_tested = [&](AttendFn attend) {
        return std::ranges::any_of(all, [&](const AttentionKernels& each) { return each.attend == attend; });
      };
      for (const Prefetching prefetching : kPrefetchings) {
        const AttentionKernels kernels = AttentionOf(isa, prefetching, shape);
        EXPECT_TRUE(is_tested(kernels.attend)) << kernels.name;
        EXPECT_TRUE(!kernels.HasPrompts() || is_tested(kernels.prompts.attend)) << kernels.name << ", prompts";
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, RunnableIsasTest, testing::ValuesIn(kIsas),
                         [](const auto& info) { return std::string(IsaName(info.param)); });

}  // namespace
}  // namespace fastdecode
