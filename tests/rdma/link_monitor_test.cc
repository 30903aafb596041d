// Links whose destruction takes long, beside others that want to be looked at.
#include "rdma/link_monitor.h"

#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <semaphore>
#include <string>
#include <thread>
#include <utility>

#include "numa/clock.h"

namespace fastdecode {
namespace {

constexpr uint64_t kGenerousNs = 20'000'000'000;

// News of its peer is what a test says; its destruction takes as long as a test likes.
class NewsLink final : public LinkEnd {
 public:
  explicit NewsLink(std::function<void()> at_end = [] {}) : at_end_(std::move(at_end)) {}
  ~NewsLink() override {
    at_end_();
    close(news_fd_);
  }

  void TellNews() {
    const uint64_t one = 1;
    EXPECT_EQ(write(news_fd_, &one, sizeof(one)), static_cast<ssize_t>(sizeof(one)));
  }
  int looked_at() const { return looked_at_; }

  bool lost() const override { return lost_; }
  std::string lost_cause() const override { return lost_ ? "a test" : ""; }
  void MarkLost(const char*) override { lost_ = true; }
  uint64_t epoch() const override { return 1; }
  const LinkSize& size() const override { return size_; }
  std::string peer_name() const override { return "a test"; }
  std::string Describe() const override { return "news"; }
  int liveness_fd() const override { return news_fd_; }
  void CheckPeer() override {
    uint64_t news = 0;
    if (read(news_fd_, &news, sizeof(news)) == static_cast<ssize_t>(sizeof(news))) ++looked_at_;
  }

 private:
  const std::function<void()> at_end_;
  const int news_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  std::atomic<bool> lost_ = false;
  std::atomic<int> looked_at_ = 0;
  const LinkSize size_;
};

bool Soon(const std::function<bool()>& what) {
  for (const uint64_t start_ns = NowNs(); !what(); std::this_thread::yield()) {
    if (NowNs() - start_ns > kGenerousNs) return false;
  }
  return true;
}

TEST(LinkMonitorTest, OthersAreLookedAtWhileALinkIsBeingDestroyed) {
  LinkMonitor monitor;
  NewsLink living;
  monitor.Add(&living);
  std::atomic<bool> destroying = false;
  std::binary_semaphore go_on(0);
  monitor.Quarantine(std::make_unique<NewsLink>([&] {
                       destroying = true;
                       go_on.acquire();
                     }),
                     "overdue");
  ASSERT_TRUE(Soon([&] { return destroying.load(); }));
  EXPECT_EQ(monitor.links_in_quarantine(), 1u);
  living.TellNews();
  EXPECT_TRUE(Soon([&] { return living.looked_at() == 1; }));
  go_on.release();
  EXPECT_TRUE(Soon([&] { return monitor.links_in_quarantine() == 0; }));
  monitor.Remove(&living);
}

TEST(LinkMonitorTest, TheMonitorsEndIsTheEndOfAllInQuarantine) {
  std::atomic<int> ended = 0;
  {
    LinkMonitor monitor;
    for (int i = 0; i < 20; ++i) monitor.Quarantine(std::make_unique<NewsLink>([&] { ++ended; }), "the end");
  }
  EXPECT_EQ(ended, 20);
}

}  // namespace
}  // namespace fastdecode
