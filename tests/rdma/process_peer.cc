// The other process of process_link_test. Says "ready" on stdout once it can be talked to.
//   worker PATH    one home that inverts every byte of a hop, echoes control messages, and parks when it finds nothing
//   engine PATH    connects, posts one hop and then does nothing
//   forking-worker PATH, forking-engine PATH    the same; has a child, forked once there is a link, that keeps all
//                  descriptors open until standard input ends

#include <unistd.h>

#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "rdma/link_monitor.h"
#include "rdma/shm/unix_bootstrap.h"

namespace fastdecode {
namespace {

constexpr uint64_t kForeverNs = 3'600'000'000'000;

void SayReady() {
  std::puts("ready");
  std::fflush(stdout);
}

void ForkChild() {
  if (fork() != 0) return;
  char byte;
  while (read(STDIN_FILENO, &byte, 1) > 0) continue;
  _exit(0);
}

class InvertingHome {
 public:
  explicit InvertingHome(HomeLink* link) : link_(link), buffer_(kControlMessageBytesMax) {}

  // Until the link is lost.
  void Run() {
    while (!link_->lost()) {
      if (PollOnce()) continue;
      link_->Arm();
      if (PollOnce() || link_->lost()) {
        link_->Disarm();
      } else {
        link_->Sleep(kForeverNs);
      }
    }
  }

 private:
  bool PollOnce() {
    size_t bytes;
    if (link_->PollControl(buffer_.data(), &bytes) == LinkPoll::kMessage) {
      link_->TrySendControl(buffer_.data(), bytes);
      return true;
    }
    HopHeader hop;
    const std::byte* payload;
    if (link_->PollHop(&hop, &payload) != LinkPoll::kMessage) return false;
    ReplyHeader reply;
    reply.step = hop.step;
    reply.layer = hop.layer;
    reply.micro_batch = hop.micro_batch;
    reply.payload_bytes = hop.payload_bytes;
    for (uint32_t i = 0; i < hop.payload_bytes; ++i) link_->ReplyArea(hop.micro_batch)[i] = ~payload[i];
    link_->AddProgress(1);
    link_->PostReply(reply);
    return true;
  }

  HomeLink* link_;
  std::vector<char> buffer_;
};

// One engine after the other, until killed.
int RunWorker(const std::string& path, bool forks) {
  auto listener = UnixListener::Listen(path);
  if (!listener.ok()) {
    std::fprintf(stderr, "%s\n", listener.status().ToString().c_str());
    return 1;
  }
  LinkMonitor monitor;
  SayReady();
  while (true) {
    auto pending = (*listener)->AcceptProposal(kForeverNs);
    if (!pending.ok()) continue;
    auto link = (*pending)->Accept({.homes = 1, .answer = "inverting"}, -1);
    if (!link.ok()) continue;
    if (forks) ForkChild();
    monitor.Add(link->get());
    InvertingHome(link->get()).Run();
    monitor.Remove(link->get());
  }
}

int RunEngine(const std::string& path, bool forks) {
  LinkProposal proposal;
  proposal.size.hop_payload_bytes_max = 64;
  proposal.size.reply_payload_bytes_max = 64;
  proposal.epoch = 1;
  auto connected = ConnectUnix(path, proposal, -1, kForeverNs);
  if (!connected.ok()) {
    std::fprintf(stderr, "%s\n", connected.status().ToString().c_str());
    return 1;
  }
  HopHeader hop;
  hop.rows = 1;
  connected->link->PostHop(hop);
  connected->link->RingHome();
  if (forks) ForkChild();
  SayReady();
  while (true) pause();
}

}  // namespace
}  // namespace fastdecode

int main(int argc, char** argv) {
  const std::string role = argc == 3 ? argv[1] : "";
  const bool forks = role.starts_with("forking-");
  if (role.ends_with("worker")) return fastdecode::RunWorker(argv[2], forks);
  if (role.ends_with("engine")) return fastdecode::RunEngine(argv[2], forks);
  std::fprintf(stderr, "usage: %s [forking-]worker|[forking-]engine PATH\n", argv[0]);
  return 2;
}
