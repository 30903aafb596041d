#ifndef FASTDECODE_TESTS_RDMA_VERBS_FAKE_PEER_CHANNEL_H_
#define FASTDECODE_TESTS_RDMA_VERBS_FAKE_PEER_CHANNEL_H_

#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "rdma/peer_channel.h"

namespace fastdecode {

// One direction of a connection within this process.
struct FakeWire {
  FakeWire() : fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE)) {}
  ~FakeWire() { close(fd); }

  void Put(PeerNews item) {
    const std::lock_guard<std::mutex> lock(mutex);
    news.push_back(std::move(item));
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(fd, &one, sizeof(one));
  }
  PeerNews Get() {
    const std::lock_guard<std::mutex> lock(mutex);
    if (news.empty()) return {};
    PeerNews item = news.front();
    if (item.kind != PeerNews::Kind::kHeartbeat) return item;  // farewells and the end stay
    news.pop_front();
    uint64_t one;
    [[maybe_unused]] const ssize_t bytes = read(fd, &one, sizeof(one));
    return item;
  }

  const int fd;
  std::atomic<bool> ready{true};  // whoever puts news in
  std::mutex mutex;
  std::deque<PeerNews> news;
};

// One end of it. Two of them, made of the same two wires, are a connection.
class FakePeerChannel final : public PeerChannel {
 public:
  FakePeerChannel(std::string name, std::shared_ptr<FakeWire> in, std::shared_ptr<FakeWire> out)
      : name_(std::move(name)), in_(std::move(in)), out_(std::move(out)) {}
  ~FakePeerChannel() override { out_->Put({PeerNews::Kind::kClosed, 0, ""}); }

  int fd() const override { return in_->fd; }
  bool ready() const override { return in_->ready.load(); }
  PeerNews Poll() override { return in_->Get(); }
  void SendHeartbeat(uint64_t progress) override { out_->Put({PeerNews::Kind::kHeartbeat, progress, ""}); }
  void SendFarewell(const std::string& text) override { out_->Put({PeerNews::Kind::kFarewell, 0, text}); }
  std::string name() const override { return name_; }

 private:
  const std::string name_;  // of the peer
  const std::shared_ptr<FakeWire> in_;
  const std::shared_ptr<FakeWire> out_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_RDMA_VERBS_FAKE_PEER_CHANNEL_H_
