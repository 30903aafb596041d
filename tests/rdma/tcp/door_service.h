#ifndef FASTDECODE_TESTS_RDMA_TCP_DOOR_SERVICE_H_
#define FASTDECODE_TESTS_RDMA_TCP_DOOR_SERVICE_H_

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "numa/clock.h"
#include "rdma/tcp/tcp_connect.h"
#include "rdma/tcp/tcp_door.h"
#include "rdma/tcp/tcp_socket.h"
#include "tests/rdma/tcp/secret_file.h"

namespace fastdecode {

inline constexpr uint64_t kGenerousNs = 60'000'000'000;
inline constexpr char kTestSecret[] = "what both of them know";

// The same object each time: some tests make thousands of connections.
inline std::shared_ptr<const Secret> TestSecret() {
  static const std::shared_ptr<const Secret> secret = MakeSecret(kTestSecret);
  return secret;
}

inline LinkOffer TestOffer() {
  LinkOffer offer;
  offer.proposal.size = {
      .slots = 2, .hop_payload_bytes_max = 100, .reply_payload_bytes_max = 100, .control_ring_bytes = 4096};
  offer.proposal.epoch = 77;
  offer.proposal.peer = {.engine_id = 0x1234567890, .role = 0};
  offer.proposal.home_index = 1;
  offer.proposal.shape = "shape";
  offer.parameters = std::string("engine\0parameters", 17);
  return offer;
}
inline std::function<absl::StatusOr<LinkOffer>()> Offering(const LinkOffer& offer) {
  return [offer]() -> absl::StatusOr<LinkOffer> { return offer; };
}

// The timeouts are out of the way, unless a test is about them.
inline TcpDoorOptions TestDoorOptions() {
  TcpDoorOptions options;
  options.host = "127.0.0.1";
  options.secret = TestSecret();
  options.handshake_timeout_ns = kGenerousNs;
  options.ready_timeout_ns = kGenerousNs;
  return options;
}

inline std::string TestErrorText(const absl::Status& status) { return std::string(status.message()); }

// A worker's control thread, as small as it can be: takes every link that comes to its door and stays until its engine
// leaves, and keeps what there is to log.
class DoorService {
 public:
  explicit DoorService(const TcpDoorOptions& options) {
    auto door = TcpDoor::Listen(options);
    EXPECT_TRUE(door.ok()) << door.status();
    door_ = *std::move(door);
    thread_ = std::thread([this] { Run(); });
  }
  ~DoorService() {
    stopping_.store(true);
    thread_.join();
  }

  uint16_t port() const { return door_->port(); }
  // Links whose both ends were ready; those that have ended, or never began to.
  int ready() const { return ready_.load(); }
  int ended() const { return ended_.load(); }
  uint64_t turned_away() const { return turned_away_.load(); }

  // Waits for a condition on the above, or on log(); false if it does not come true.
  bool Await(const std::function<bool()>& condition) const {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), condition);
  }
  // Waits for a line with `text`, or with `or_text`.
  bool AwaitLog(const std::string& text, const std::string& or_text = "\n") const {
    return Await([&] {
      return std::any_of(log_.begin(), log_.end(), [&](const std::string& line) {
        return line.find(text) != std::string::npos || line.find(or_text) != std::string::npos;
      });
    });
  }
  std::string log() const {
    const std::lock_guard lock(mutex_);
    std::string all;
    for (const std::string& line : log_) all += line + "\n";
    return all;
  }

 private:
  void Run() {
    constexpr uint64_t kTurnNs = 1'000'000;
    while (!stopping_.load()) {
      auto pending = door_->AcceptConnection(kTurnNs);
      if (pending.ok()) {
        Decide(pending->get());
      } else if (!absl::IsDeadlineExceeded(pending.status())) {
        Log(TestErrorText(pending.status()), [this] { turned_away_.store(door_->turned_away()); });
      }
      PollChannels();
    }
  }

  void Decide(PendingConnection* pending) {
    if (pending->proposal().shape == "another") return pending->Refuse("model shape: 22 layers, not 16");
    auto channel = pending->Accept({.homes = 3, .answer = "described"}, "worker's " + pending->parameters());
    if (channel.ok()) {
      channels_.push_back({*std::move(channel), false});
    } else {
      Log(TestErrorText(channel.status()), [this] { ended_.fetch_add(1); });
    }
  }

  void PollChannels() {
    for (size_t i = 0; i < channels_.size();) {
      auto& [channel, ready] = channels_[i];
      const PeerNews news = channel->Poll();
      if (channel->ready() && !ready) {
        ready = true;
        Log(channel->name() + " is ready", [this] { ready_.fetch_add(1); });
      }
      if (news.kind != PeerNews::Kind::kFarewell && news.kind != PeerNews::Kind::kClosed) {
        ++i;
        continue;
      }
      Log(channel->name() + " ended: " + news.text, [this] { ended_.fetch_add(1); });
      channels_.erase(channels_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  void Log(std::string line, const std::function<void()>& count) {
    const std::lock_guard lock(mutex_);
    log_.push_back(std::move(line));
    count();
    changed_.notify_all();
  }

  std::unique_ptr<TcpDoor> door_;
  std::vector<std::pair<std::unique_ptr<ControlChannel>, bool>> channels_;  // and whether it was ready before
  std::atomic<bool> stopping_{false};
  std::atomic<int> ready_{0};
  std::atomic<int> ended_{0};
  std::atomic<uint64_t> turned_away_{0};
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  std::vector<std::string> log_;
  std::thread thread_;
};

// One whole link made and left again.
inline absl::Status ConnectAndLeave(uint16_t port, std::shared_ptr<const Secret> secret = TestSecret(),
                                    const LinkOffer& offer = TestOffer()) {
  const uint64_t deadline_ns = NowNs() + kGenerousNs;
  auto connection = ConnectTcpDoor("127.0.0.1", port, std::move(secret), Offering(offer), deadline_ns);
  if (!connection.ok()) return connection.status();
  connection->channel->SendReady();
  return connection->channel->AwaitReady(deadline_ns);
}

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_RDMA_TCP_DOOR_SERVICE_H_
