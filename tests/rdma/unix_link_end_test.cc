// How a link that came through a worker's door ends, and what is left of it.

#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <utility>

#include "rdma/link_monitor.h"
#include "tests/rdma/unix_bootstrap_fixture.h"

namespace fastdecode {
namespace {

class UnixLinkEndTest : public UnixBootstrapTest {};

bool WaitUntilLost(const LinkEnd& link) {
  const uint64_t deadline_ns = NowNs() + kGenerousNs;
  while (!link.lost() && NowNs() < deadline_ns) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return link.lost();
}

TEST_F(UnixLinkEndTest, AnEndThatGivesUpTellsTheOtherWhy) {
  LinkMonitor monitor;
  auto connected = Connect();
  ASSERT_TRUE(connected.ok()) << connected.status();
  monitor.Add(connected->link.get());
  monitor.Add(home_.get());
  connected->link->MarkLost("home overdue at step 5");
  ASSERT_TRUE(WaitUntilLost(*home_));
  EXPECT_EQ(home_->lost_cause(),
            "engine process (pid " + std::to_string(getpid()) + ") gave the link up: home overdue at step 5");
  EXPECT_EQ(connected->link->lost_cause(), "home overdue at step 5");
  monitor.Remove(connected->link.get());
  monitor.Remove(home_.get());
}

TEST_F(UnixLinkEndTest, AnEndThatIsDestroyedLosesTheOther) {
  LinkMonitor monitor;
  auto connected = Connect();
  ASSERT_TRUE(connected.ok()) << connected.status();
  monitor.Add(connected->link.get());
  home_.reset();
  ASSERT_TRUE(WaitUntilLost(*connected->link));
  EXPECT_NE(connected->link->lost_cause().find("gave the link up: the home closed the link"), std::string::npos)
      << connected->link->lost_cause();
  monitor.Remove(connected->link.get());
}

TEST_F(UnixLinkEndTest, APacketThatIsNoneOfTheProtocolLosesTheLink) {
  const Arena region = Region();
  RawClient client(path_);
  const ProposalPacket packet = Packet();
  client.Send(&packet, sizeof(packet), region.fd());
  const auto pending = listener_->AcceptProposal(kGenerousNs);
  ASSERT_TRUE(pending.ok()) << pending.status();
  Accept(pending->get());
  EXPECT_FALSE(home_->lost());
  home_->CheckPeer();
  EXPECT_FALSE(home_->lost()) << "no news";
  client.Send("hello", 5);
  home_->CheckPeer();
  EXPECT_NE(home_->lost_cause().find("sent a packet that is none of the protocol"), std::string::npos);
}

TEST_F(UnixLinkEndTest, QuarantineEndsWhenThePeerHasClosed) {
  LinkMonitor monitor;
  auto connected = Connect();
  ASSERT_TRUE(connected.ok()) << connected.status();
  monitor.Add(connected->link.get());
  monitor.Quarantine(std::move(connected->link), "overdue");
  EXPECT_EQ(monitor.links_in_quarantine(), 1u);
  home_->ReplyArea(0)[0] = std::byte{1};  // a late write hits memory that is still there
  home_.reset();
  const uint64_t deadline_ns = NowNs() + kGenerousNs;
  while (monitor.links_in_quarantine() != 0 && NowNs() < deadline_ns) sched_yield();
  EXPECT_EQ(monitor.links_in_quarantine(), 0u);
}

// A child that was forked off, and keeps all descriptors open, keeps no link in quarantine.
TEST_F(UnixLinkEndTest, AForkedChildHoldsNothingUp) {
  LinkMonitor monitor;
  auto connected = Connect();
  ASSERT_TRUE(connected.ok()) << connected.status();
  monitor.Quarantine(std::move(connected->link), "overdue");
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    for (;;) pause();
  }
  home_.reset();
  const uint64_t deadline_ns = NowNs() + kGenerousNs;
  while (monitor.links_in_quarantine() != 0 && NowNs() < deadline_ns) sched_yield();
  EXPECT_EQ(monitor.links_in_quarantine(), 0u);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

size_t OpenDescriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

size_t Mappings() {
  std::ifstream maps("/proc/self/maps");
  size_t count = 0;
  for (std::string line; std::getline(maps, line);) count += line.find("fastdecode-arena") != std::string::npos;
  return count;
}

TEST_F(UnixLinkEndTest, NothingIsLeftOfManyLinks) {
  const size_t descriptors = OpenDescriptors();
  for (int i = 0; i < 12; ++i) {
    {
      const auto connected =
          i % 3 == 0 ? Connect(Proposal(), [](PendingLink* pending) { pending->Refuse("no"); }) : Connect();
      EXPECT_EQ(connected.ok(), i % 3 != 0);
    }
    home_.reset();
  }
  EXPECT_EQ(OpenDescriptors(), descriptors);
  EXPECT_EQ(Mappings(), 0u);
}

}  // namespace
}  // namespace fastdecode
