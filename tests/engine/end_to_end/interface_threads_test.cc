// Engines and workers where the kernel has no thread left, at every thread that they start.
#include <gtest/gtest.h>

#include <string>

#include "tests/engine/end_to_end/interface_fixture.h"
#include "tests/thread_limit.h"

namespace fastdecode {
namespace {

// Makes it with one thread more each time, until there are enough. Returns how often it was refused.
template <class Make>
int CountRefusals(const Make& make) {
  for (int threads = 0; threads < 100; ++threads) {
    const ThreadLimit limit(threads);
    try {
      make();
      if (!limit.reached()) return threads;
    } catch (const Error& error) {
      ExpectError(error, FD_RESOURCE_EXHAUSTED, "thread");
    }
  }
  ADD_FAILURE() << "100 threads do not do";
  return 0;
}

TEST_F(InterfaceTest, EngineThatGetsNoThreadIsRefused) {
  const OptionList options = Options() + OptionList{{"s-threads", "3"}, {"r-threads", "3"}};
  // Two helpers each, a leader, the pipeline, the desk, and what watches homes.
  EXPECT_GT(CountRefusals([&] { MakeEngine(options); }), 8);
  EXPECT_EQ(RunAll(*MakeEngine(options), {GreedyRequest({1, 2, 3}, 4)}, false)[0].tokens.size(), 4u);
}

TEST_F(InterfaceTest, WorkerThatGetsNoThreadIsRefused) {
  EngineOptions options;
  options.Set("listen", "unix:" + dir_.File("worker"));
  options.Set("kv-gib", "0.01");
  options.Set("r-threads", "3");
  EXPECT_GT(CountRefusals([&] { WorkerServer worker(options); }), 2);
}

}  // namespace
}  // namespace fastdecode
