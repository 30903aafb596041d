#include "numa/log.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace fastdecode {
namespace {

struct Line {
  LogLevel level;
  std::string message;
};

void Collect(void* user, LogLevel level, const char* message) {
  static_cast<std::vector<Line>*>(user)->push_back({level, message});
}

TEST(LogTest, PassesOnWhatIsNotBelowTheLevel) {
  std::vector<Line> lines;
  Logger logger(&Collect, &lines, LogLevel::kWarning);
  logger.Debug("a");
  logger.Info("b");
  logger.Warning("100 %s");
  logger.Error("d");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].level, LogLevel::kWarning);
  EXPECT_EQ(lines[0].message, "100 %s");
  EXPECT_EQ(lines[1].message, "d");
}

TEST(LogTest, ANullSinkDropsAll) {
  Logger logger(nullptr, nullptr, LogLevel::kDebug);
  EXPECT_FALSE(logger.Enabled(LogLevel::kError));
  logger.Error("nobody hears");
}

TEST(LogTest, ThreadsTakeTurns) {
  std::vector<Line> lines;  // unprotected: the logger must serialise
  Logger logger(&Collect, &lines, LogLevel::kInfo);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&logger] {
      for (int k = 0; k < 500; ++k) logger.Info("line");
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(lines.size(), 2000u);
}

TEST(LogTest, StderrNamesTheLevel) {
  testing::internal::CaptureStderr();
  Logger logger(Logger::Stderr(), nullptr);
  logger.Info("plain");
  logger.Warning("mind");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "fastdecode: plain\nfastdecode: warning: mind\n");
}

}  // namespace
}  // namespace fastdecode
