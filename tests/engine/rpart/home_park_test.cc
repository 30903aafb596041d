// That a home does sleep, which no answer of it shows.
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "engine/rpart/home.h"
#include "engine/rpart/rpart_shape.h"
#include "numa/clock.h"
#include "tests/engine/rpart/test_engine.h"

namespace fastdecode {
namespace {

constexpr uint64_t kGenerousNs = 60'000'000'000;

// Whether every thread of this process but the caller's is asleep, as Linux sees it: who spins is not.
bool AllOthersSleep() {
  for (const std::filesystem::directory_entry& task : std::filesystem::directory_iterator("/proc/self/task")) {
    if (task.path().filename() == std::to_string(gettid())) continue;
    std::string line;
    std::getline(std::ifstream(task.path() / "stat"), line);  // "123 (name) S ..."
    const size_t name_end = line.rfind(')');
    if (name_end != std::string::npos && line.substr(name_end + 1, 2) != " S") return false;
  }
  return true;
}

// Leader and helpers; also if a hop had to wait for its roster.
TEST(HomeParkTest, AllSleepOnceThePeerSaysThatNothingIsInFlight) {
  const RPartShape shape = SmallShape(ElementType::kF32);
  HomeOptions options;
  options.cores = {-1, -1};
  options.kv_bytes = 4 << 20;
  options.poll = PollMode::kSpin;
  for (const bool hop_first : {false, true}) {
    SCOPED_TRACE(hop_first);
    const absl::StatusOr<std::unique_ptr<Home>> home = Home::Create(options);
    ASSERT_TRUE(home.ok()) << home.status();
    TestEngine engine(home->get(), shape);
    if (hop_first) {
      HopHeader hop = engine.WriteRows(0, {{1, 0, 1, 1}}, 0);
      hop.step = 1;
      hop.roster_version = 1;
      engine.link().PostHop(hop);
      std::this_thread::sleep_for(std::chrono::milliseconds(5));  // most likely seen by now
      engine.SendRoster(0, {{1, 0, 1, 1}}, 1);
      ReplyHeader reply;
      ASSERT_TRUE(engine.AwaitReply(&reply)) << engine.link().lost_cause();
    } else {
      engine.CheckedStep(0, {{1, 0, 1, 1}});
    }
    const IdleMessage idle;
    engine.Send(&idle, sizeof(idle));
    const uint64_t deadline_ns = NowNs() + kGenerousNs;
    while (!AllOthersSleep()) {
      ASSERT_LT(NowNs(), deadline_ns) << "some go on polling";
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

}  // namespace
}  // namespace fastdecode
