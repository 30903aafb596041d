// A home whose peers' links a monitor watches.
#include <gtest/gtest.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "engine/rpart/home.h"
#include "engine/rpart/rpart_shape.h"
#include "numa/clock.h"
#include "rdma/link_monitor.h"
#include "tests/engine/rpart/test_engine.h"
#include "tests/rdma/heap_link.h"

namespace fastdecode {
namespace {

constexpr uint64_t kGenerousNs = 60'000'000'000;

// Of whose process there is news, which nobody reads: the monitor looks at the link again and again.
class PeerInTheNews final : public ShmBacking {
 public:
  explicit PeerInTheNews(std::atomic<int>* looks) : looks_(*looks) {}
  ~PeerInTheNews() override { close(news_fd_); }

  LossRecord* loss() override { return &loss_; }
  void TellPeer(const char* cause) override {}
  std::string peer_name() const override { return "a test"; }
  int liveness_fd() const override { return news_fd_; }
  bool PeerGone(std::string* cause) override {
    ++looks_;
    return false;
  }

 private:
  const int news_fd_ = eventfd(1, EFD_CLOEXEC | EFD_NONBLOCK);
  std::atomic<int>& looks_;
  LossRecord loss_;
};

bool Soon(const std::function<bool()>& what) {
  const uint64_t deadline_ns = NowNs() + kGenerousNs;
  while (!what() && NowNs() < deadline_ns) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return what();
}

TEST(WatchedPeersTest, TheMonitorLetsGoOfALinkBeforeItIsDestroyed) {
  const RPartShape shape = SmallShape(ElementType::kF32);
  const LinkSize size = LinkSizeFor(shape);
  const HeapRegions first(size), second(size);
  std::atomic<int> looks_at_first = 0, looks_at_second = 0;
  LinkMonitor monitor;
  HomeOptions options;
  options.kv_bytes = 4 << 20;
  options.poll = PollMode::kYield;
  options.peers = 2;
  options.monitor = &monitor;
  absl::StatusOr<std::unique_ptr<Home>> made = Home::Create(options);
  ASSERT_TRUE(made.ok()) << made.status();
  Home& home = **made;
  const auto attach = [&](const HeapRegions& memory, uint64_t id, std::atomic<int>* looks) {
    return home.Attach(
        shape, std::make_unique<ShmHomeLink>(size, id, memory.regions(), std::make_unique<PeerInTheNews>(looks)),
        {{id, 0}, "a test", 1});
  };

  ASSERT_TRUE(attach(first, 1, &looks_at_first).ok());
  EXPECT_TRUE(Soon([&] { return looks_at_first > 0; }));
  home.sessions().front()->link().MarkLost("it went while another one came");
  ASSERT_TRUE(Soon([&] { return home.sessions().front()->ended(); }));
  ASSERT_TRUE(attach(second, 2, &looks_at_second).ok());
  ASSERT_EQ(home.sessions().size(), 1u);  // the first one's link is no more
  EXPECT_TRUE(Soon([&] { return looks_at_second > 100; }));
}

}  // namespace
}  // namespace fastdecode
