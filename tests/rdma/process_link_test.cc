// A link between two processes, and what is left when one of them is killed. Deadlines here are generous: only a hang
// reaches them.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "numa/clock.h"
#include "numa/spin.h"
#include "rdma/file_descriptor.h"
#include "rdma/link_monitor.h"
#include "rdma/shm/unix_bootstrap.h"
#include "tests/rdma/socket_folder.h"

extern char** environ;

namespace fastdecode {
namespace {

constexpr uint64_t kGenerousNs = 60'000'000'000;
constexpr uint64_t kBudgetNs = 2'000'000'000;  // for what is done as often as time allows
constexpr size_t kPayloadBytes = 4096;

// tests/rdma/process_peer.cc, killed at the end if it still lives; its child ends with it.
class PeerProcess {
 public:
  PeerProcess(const std::string& role, const std::string& path) {
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) std::abort();
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    std::string program = FASTDECODE_RDMA_PROCESS_PEER, role_text = role, path_text = path;
    char* argv[] = {program.data(), role_text.data(), path_text.data(), nullptr};
    if (posix_spawn(&pid_, program.c_str(), &actions, nullptr, argv, environ) != 0) pid_ = -1;
    posix_spawn_file_actions_destroy(&actions);
    close(in[0]);
    close(out[1]);
    stdin_ = FileDescriptor(in[1]);
    char text[16] = {};
    ready_ = pid_ > 0 && read(out[0], text, sizeof(text) - 1) > 0 && std::strcmp(text, "ready\n") == 0;
    close(out[0]);
  }
  ~PeerProcess() { Kill(); }

  void Kill() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }

  bool ready() const { return ready_; }
  pid_t pid() const { return pid_; }

 private:
  pid_t pid_ = -1;
  bool ready_ = false;
  FileDescriptor stdin_;  // its child waits for the end of it
};

LinkProposal Proposal(uint64_t epoch) {
  LinkProposal proposal;
  proposal.size = {.slots = 2,
                   .hop_payload_bytes_max = kPayloadBytes,
                   .reply_payload_bytes_max = kPayloadBytes,
                   .control_ring_bytes = 1 << 20};
  proposal.epoch = epoch;
  return proposal;
}

LinkPoll WaitForReply(EngineLink* engine, ReplyHeader* reply) {
  const uint64_t deadline_ns = NowNs() + kGenerousNs;
  PollBackoff backoff(PollMode::kYield);
  LinkPoll outcome;
  while ((outcome = engine->PollReply(reply)) == LinkPoll::kEmpty && NowNs() < deadline_ns) backoff.Idle();
  return outcome;
}

bool WaitUntilLost(const LinkEnd& link) {
  const uint64_t deadline_ns = NowNs() + kGenerousNs;
  while (!link.lost() && NowNs() < deadline_ns) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return link.lost();
}

// One hop with random rows there and back.
void RoundTrip(EngineLink* engine, int slot, uint64_t step, std::mt19937_64* random) {
  std::vector<unsigned char> rows(1 + (*random)() % kPayloadBytes);
  for (unsigned char& byte : rows) byte = static_cast<unsigned char>((*random)());
  std::memcpy(engine->SendArea(slot), rows.data(), rows.size());
  HopHeader hop;
  hop.step = step;
  hop.rows = 1;
  hop.payload_bytes = static_cast<uint32_t>(rows.size());
  hop.micro_batch = static_cast<uint8_t>(slot);
  engine->PostHop(hop);
  engine->RingHome();
  ReplyHeader reply;
  ASSERT_EQ(WaitForReply(engine, &reply), LinkPoll::kMessage) << step << " " << engine->lost_cause();
  ASSERT_EQ(reply.step, step);
  ASSERT_EQ(reply.payload_bytes, rows.size());
  const auto* const got = reinterpret_cast<const unsigned char*>(engine->ReceiveArea(slot));
  size_t wrong = 0;
  for (size_t i = 0; i < rows.size(); ++i) wrong += got[i] != static_cast<unsigned char>(~rows[i]);
  ASSERT_EQ(wrong, 0u);
}

class ProcessLinkTest : public testing::Test {
 protected:
  const SocketFolder folder_;
  const std::string path_ = folder_.File("worker");
  LinkMonitor monitor_;
};

// With and without a child of the peer's that keeps its socket open.
class KilledPeerTest : public ProcessLinkTest, public testing::WithParamInterface<const char*> {
 protected:
  std::string Role(const char* role) const { return std::string(GetParam()) + role; }
};
INSTANTIATE_TEST_SUITE_P(Children, KilledPeerTest, testing::Values("", "forking-"),
                         [](const auto& info) { return *info.param == 0 ? "None" : "Forked"; });

TEST_F(ProcessLinkTest, HopsAndControlCrossAndNoRingIsLost) {
  PeerProcess worker("worker", path_);
  ASSERT_TRUE(worker.ready());
  auto connected = ConnectUnix(path_, Proposal(1), -1, kGenerousNs);
  ASSERT_TRUE(connected.ok()) << connected.status();
  EXPECT_EQ(connected->answer, "inverting");
  EXPECT_EQ(connected->homes, 1u);
  EngineLink* const engine = connected->link.get();
  EXPECT_EQ(engine->peer_name(), "worker process at unix:" + path_ + " (pid " + std::to_string(worker.pid()) + ")");

  // The worker sleeps for an hour whenever it finds nothing: a ring that is lost leaves the hop without its reply. The
  // pauses put the hop anywhere between the worker's poll and its sleep.
  std::mt19937_64 random(1);
  const uint64_t end_ns = NowNs() + kBudgetNs;
  uint64_t step = 0;
  while (step < 1000 && NowNs() < end_ns) {
    ++step;
    for (uint64_t pause = random() % 3000; pause > 0; --pause) CpuRelax();
    RoundTrip(engine, step % 2, step, &random);
    if (HasFatalFailure()) return;
  }
  EXPECT_EQ(engine->Progress(), step);

  std::vector<char> sent(kControlMessageBytesMax, 'c'), buffer(kControlMessageBytesMax);
  size_t bytes = 0;
  ASSERT_TRUE(engine->TrySendControl(sent.data(), sent.size()));
  engine->RingHome();
  const uint64_t deadline_ns = NowNs() + kGenerousNs;
  while (engine->PollControl(buffer.data(), &bytes) == LinkPoll::kEmpty && NowNs() < deadline_ns) sched_yield();
  EXPECT_EQ(bytes, sent.size());
  EXPECT_EQ(buffer, sent);
}

TEST_P(KilledPeerTest, AWorkerIsNoticedAndANewOneTakesItsPlace) {
  PeerProcess worker(Role("worker"), path_);
  ASSERT_TRUE(worker.ready());
  auto connected = ConnectUnix(path_, Proposal(1), -1, kGenerousNs);
  ASSERT_TRUE(connected.ok()) << connected.status();
  monitor_.Add(connected->link.get());
  std::mt19937_64 random(2);
  RoundTrip(connected->link.get(), 0, 1, &random);
  const std::string name = connected->link->peer_name();

  worker.Kill();
  ASSERT_TRUE(WaitUntilLost(*connected->link));
  EXPECT_EQ(connected->link->lost_cause(), name + " went away");
  EXPECT_TRUE(std::filesystem::exists(path_)) << "SIGKILL leaves the socket's file behind";

  PeerProcess next("worker", path_);
  ASSERT_TRUE(next.ready());
  auto again = ConnectUnix(path_, Proposal(2), -1, kGenerousNs);
  ASSERT_TRUE(again.ok()) << again.status();
  RoundTrip(again->link.get(), 0, 1, &random);
  monitor_.Remove(connected->link.get());
}

TEST_F(ProcessLinkTest, AWorkerIsTakenByTheNextEngineWhenTheLinkEnds) {
  PeerProcess worker("worker", path_);
  ASSERT_TRUE(worker.ready());
  std::mt19937_64 random(3);
  for (uint64_t epoch = 1; epoch <= 5; ++epoch) {
    auto connected = ConnectUnix(path_, Proposal(epoch), -1, kGenerousNs);
    ASSERT_TRUE(connected.ok()) << connected.status();
    RoundTrip(connected->link.get(), 1, 1, &random);
    if (HasFatalFailure()) return;
  }
}

TEST_P(KilledPeerTest, AnEngineIsNoticedByAHomeThatSleeps) {
  auto listener = UnixListener::Listen(path_);
  ASSERT_TRUE(listener.ok()) << listener.status();
  // Accepted by a thread: the peer says that it is ready only once it has its link.
  std::unique_ptr<HomeLink> home;
  std::string peer;
  std::thread door([&] {
    auto pending = (*listener)->AcceptProposal(kGenerousNs);
    ASSERT_TRUE(pending.ok()) << pending.status();
    peer = (*pending)->peer_name();
    auto link = (*pending)->Accept({}, -1);
    ASSERT_TRUE(link.ok()) << link.status();
    home = *std::move(link);
  });
  PeerProcess engine(Role("engine"), path_);
  door.join();
  ASSERT_TRUE(engine.ready());
  ASSERT_NE(home, nullptr);
  EXPECT_EQ(peer, "pid " + std::to_string(engine.pid()) + ", uid " + std::to_string(getuid()));
  monitor_.Add(home.get());

  HopHeader hop;
  const std::byte* payload;
  EXPECT_EQ(home->PollHop(&hop, &payload), LinkPoll::kMessage);
  const std::string cause = "engine process (pid " + std::to_string(engine.pid()) + ") went away";
  std::thread killer([&] { engine.Kill(); });
  const uint64_t start_ns = NowNs();
  while (!home->lost() && NowNs() < start_ns + kGenerousNs) {
    home->Arm();
    if (home->PollHop(&hop, &payload) == LinkPoll::kLost) {
      home->Disarm();
      break;
    }
    home->Sleep(kGenerousNs);
  }
  killer.join();
  EXPECT_TRUE(home->lost());
  EXPECT_EQ(home->lost_cause(), cause);
  monitor_.Remove(home.get());
}

TEST_P(KilledPeerTest, AQuarantinedLinkIsKeptUntilItHasGone) {
  PeerProcess worker(Role("worker"), path_);
  ASSERT_TRUE(worker.ready());
  auto connected = ConnectUnix(path_, Proposal(1), -1, kGenerousNs);
  ASSERT_TRUE(connected.ok()) << connected.status();
  std::mt19937_64 random(4);
  RoundTrip(connected->link.get(), 0, 1, &random);  // it has its child
  monitor_.Add(connected->link.get());
  ASSERT_EQ(kill(worker.pid(), SIGSTOP), 0);  // it holds its end and will not let go
  monitor_.Quarantine(std::move(connected->link), "the home was overdue");
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(monitor_.links_in_quarantine(), 1u);
  worker.Kill();
  const uint64_t deadline_ns = NowNs() + kGenerousNs;
  while (monitor_.links_in_quarantine() != 0 && NowNs() < deadline_ns) sched_yield();
  EXPECT_EQ(monitor_.links_in_quarantine(), 0u);
}

}  // namespace
}  // namespace fastdecode
