// Starts without some of the workers, which come later, or must not be used. The workers are played by hand.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/homes/homes.h"
#include "engine/homes/retry_schedule.h"
#include "rdma/shm/handshake.h"
#include "rdma/shm/unix_socket.h"
#include "rdma/tcp/frames.h"
#include "rdma/tcp/tcp_socket.h"
#include "tests/engine/homes/homes_fixture.h"
#include "tests/rdma/socket_folder.h"
#include "tests/rdma/tcp/secret_file.h"

namespace fastdecode {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Pair;
using Kind = PipelineCommand::Kind;

class LateHomesTest : public HomesTest {
 protected:
  // One worker that is there, and `late`, which nobody listens at unless a test does.
  HomesOptions Degraded(int homes_min = 1) {
    HomesOptions options = Options({there_.get()});
    options.endpoints.push_back(late_);
    options.homes_min = homes_min;
    options.recover_ms = 1500;
    options.logger = &logger_;
    return options;
  }
  // The homes of Degraded(), before there is a worker at late_.
  std::unique_ptr<Homes> StartWithoutLate(uint64_t id = 0) {
    std::unique_ptr<Homes> homes = Connect(
        Degraded(), [this, id] { links_.push_back(Accept(AwaitProposal(there_.get()).get(), 1, /*pages=*/2, id)); });
    if (homes != nullptr) Start(homes.get());
    return homes;
  }
  void Start(Homes* homes) {
    const auto command = [this](const PipelineCommand& command) {
      std::lock_guard lock(mutex_);
      commands_.emplace_back(command.kind, command.home);
    };
    homes->Start(command, [](int) { return 0; });
  }

  std::vector<std::pair<Kind, int>> commands() {
    std::lock_guard lock(mutex_);
    return commands_;
  }
  size_t CountLogged(const std::string& part) {
    std::lock_guard lock(mutex_);
    size_t lines = 0;
    for (const std::string& line : log_) lines += line.find(part) != std::string::npos;
    return lines;
  }

  const SocketFolder folder_;
  const std::unique_ptr<UnixListener> there_ = *UnixListener::Listen(folder_.File("there"));
  const Endpoint late_ = {.kind = Endpoint::Kind::kUnix, .path = folder_.File("late")};
  const std::string late_name_ = "unix:" + late_.path;
  std::vector<std::unique_ptr<HomeLink>> links_;
  std::mutex mutex_;
  std::vector<std::pair<Kind, int>> commands_;
  std::vector<std::string> log_;
  Logger logger_{[](void* user, LogLevel, const char* message) {
                   auto* const test = static_cast<LateHomesTest*>(user);
                   std::lock_guard lock(test->mutex_);
                   test->log_.emplace_back(message);
                 },
                 this};
};

TEST_F(LateHomesTest, AWorkerThatIsNotThereHasAPlaceAndComesWithAllItsHomes) {
  const std::unique_ptr<Homes> homes = StartWithoutLate();
  ASSERT_NE(homes, nullptr);
  ASSERT_EQ(homes->count(), 2u);
  const std::string absence = "has not come yet: no worker to be reached at " + late_name_ + ": No such file";
  const Homes::Info info = homes->List()[1];
  EXPECT_EQ(info.name, late_name_);
  EXPECT_FALSE(info.up);
  EXPECT_THAT(info.absence, HasSubstr(absence));
  EXPECT_EQ(CountLogged("home 1 (" + late_name_ + ") " + absence), 1u);
  EXPECT_THAT(homes->Describe(), HasSubstr("home 1: " + late_name_ + ", " + absence));
  EXPECT_THAT(homes->DescribeNoRoom(3 * kPageTokens), HasSubstr("home 1 (" + late_name_ + ") " + absence));
  EXPECT_THAT(homes->DescribeNoRoom(3 * kPageTokens), HasSubstr("--recover-ms 1500: start their workers"));
  EXPECT_EQ(homes->pages_max(), 2u);
  EXPECT_THAT(commands(), ElementsAre(Pair(Kind::kAddHome, 0), Pair(Kind::kExpectHome, 1)));
  const char* const early_name = homes->Look(1).name;

  const std::unique_ptr<UnixListener> worker = *UnixListener::Listen(late_.path);
  for (uint64_t home = 0; home < 3; ++home) links_.push_back(AcceptEngine(worker.get(), /*homes=*/3, 5 + home));
  for (size_t index : {1, 2, 3}) AwaitUp(*homes, index);
  ASSERT_EQ(homes->count(), 4u);
  for (size_t index : {1, 2, 3}) {
    EXPECT_EQ(homes->List()[index].name, late_name_ + ", home " + std::to_string(index - 1));
    EXPECT_EQ(homes->Look(index).pages, 4 + index);
    const auto added = testing::Contains(Pair(Kind::kAddHome, static_cast<int>(index)));
    EXPECT_TRUE(Await([&] { return testing::Value(commands(), added); })) << index;
  }
  EXPECT_TRUE(Await([&] { return CountLogged("home 1 (" + late_name_ + ", home 0) has come") == 1; }));
  EXPECT_EQ(early_name, late_name_) << "it lives as long as the homes";
  EXPECT_EQ(homes->DescribeAbsent(), "");
}

TEST_F(LateHomesTest, TooFewIsAnErrorThatNamesEachThatIsMissing) {
  HomesOptions options = Degraded(/*homes_min=*/2);
  options.endpoints.push_back({.kind = Endpoint::Kind::kUnix, .path = folder_.File("busy")});
  const std::unique_ptr<UnixListener> busy = *UnixListener::Listen(folder_.File("busy"));
  std::thread accepting([&] {
    links_.push_back(AcceptEngine(there_.get()));
    AwaitProposal(busy.get())->Refuse("it already serves another engine");
  });
  const absl::Status status = Homes::Create(options).status();
  accepting.join();
  EXPECT_TRUE(absl::IsUnavailable(status));
  const std::string text(status.message());
  EXPECT_THAT(text, HasSubstr("--homes-min: 2 of --homes must be there, and 1 of 3 is; not there: " + late_name_ +
                              " (no worker to be reached at " + late_name_ + ": No such file"));
  EXPECT_THAT(text, HasSubstr("it already serves another engine"));
}

TEST_F(LateHomesTest, AHomeThatIsRefusedIsMissingAndTheOthersOfItsWorkerAreUsed) {
  const auto accept = [this] {
    links_.push_back(AcceptEngine(there_.get(), /*homes=*/3));
    AwaitProposal(there_.get())->Refuse("no pages left to reserve");
    links_.push_back(AcceptEngine(there_.get(), /*homes=*/3));
  };
  HomesOptions options = Degraded();
  options.endpoints.pop_back();
  const std::unique_ptr<Homes> homes = Connect(options, accept);
  ASSERT_NE(homes, nullptr);
  ASSERT_EQ(homes->count(), 3u);
  EXPECT_TRUE(homes->Look(0).up && homes->Look(2).up);
  EXPECT_THAT(homes->DescribeAbsent(),
              testing::StartsWith("; home 1 (unix:" + there_->path() + ", home 1) has not come"));
  Start(homes.get());
  links_.push_back(AcceptEngine(there_.get(), /*homes=*/3));
  AwaitUp(*homes, 1);
}

TEST_F(LateHomesTest, ASilentWorkerIsAskedOnceWhereEnoughAreThere) {
  const std::unique_ptr<UnixListener> silent = *UnixListener::Listen(late_.path);
  const std::unique_ptr<Homes> homes = Connect(Degraded(), [this] { links_.push_back(AcceptEngine(there_.get())); });
  ASSERT_NE(homes, nullptr);
  EXPECT_THAT(homes->DescribeAbsent(), HasSubstr("did not answer"));
  EXPECT_TRUE(absl::IsUnavailable(silent->AcceptProposal(kTimeoutNs).status())) << "the engine has gone";
  EXPECT_TRUE(absl::IsDeadlineExceeded(silent->AcceptProposal(0).status()));
}

// It may be taking its memory.
TEST_F(LateHomesTest, ASilentWorkerIsAskedAgainWhileItIsNeeded) {
  const std::unique_ptr<UnixListener> slow = *UnixListener::Listen(late_.path);
  const std::unique_ptr<Homes> homes = Connect(Degraded(/*homes_min=*/2), [&] {
    links_.push_back(AcceptEngine(there_.get()));
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    absl::StatusOr<std::unique_ptr<PendingLink>> pending = slow->AcceptProposal(kTimeoutNs);
    while (absl::IsUnavailable(pending.status())) pending = slow->AcceptProposal(kTimeoutNs);
    ASSERT_TRUE(pending.ok()) << pending.status();
    links_.push_back(Accept(pending->get(), 1));
  });
  ASSERT_NE(homes, nullptr);
  EXPECT_TRUE(homes->Look(0).up && homes->Look(1).up);
}

// The worker has let go of the first link for the second one, and would do so at each attempt.
TEST_F(LateHomesTest, ALateHomeOfTwoNamesIsGivenUp) {
  const std::unique_ptr<Homes> homes = StartWithoutLate(/*id=*/7);
  ASSERT_NE(homes, nullptr);
  const std::unique_ptr<UnixListener> other_name = *UnixListener::Listen(late_.path);
  links_.push_back(Accept(AwaitProposal(other_name.get()).get(), /*homes=*/2, 2, /*id=*/7));
  EXPECT_TRUE(Await([&] { return CountLogged("home 1 (" + late_name_ + ") is not used: --homes: ") > 0; }));
  EXPECT_THAT(homes->List()[1].absence,
              HasSubstr("'unix:" + there_->path() + ", home 0' and '" + late_name_ + "' are the same home"));
  EXPECT_THAT(commands(), testing::Contains(Pair(Kind::kForgetHome, 1)));
  EXPECT_TRUE(absl::IsDeadlineExceeded(other_name->AcceptProposal(4 * RetrySchedule::kPauseNs).status()));
  EXPECT_EQ(homes->count(), 2u);
  EXPECT_THAT(homes->DescribeNoRoom(3 * kPageTokens), testing::Not(HasSubstr("--recover-ms"))) << "it ended at once";
}

TEST_F(LateHomesTest, ARefusalIsLoggedWhenItChanges) {
  const std::unique_ptr<Homes> homes = StartWithoutLate();
  ASSERT_NE(homes, nullptr);
  const std::unique_ptr<UnixListener> worker = *UnixListener::Listen(late_.path);
  for (const char* why : {"another model: layers", "another model: layers", "it already serves another engine"}) {
    AwaitProposal(worker.get())->Refuse(why);
  }
  EXPECT_TRUE(Await([&] { return CountLogged("it already serves another engine") == 1; }));
  EXPECT_EQ(CountLogged("another model: layers"), 1u);
}

// ---- Workers of another protocol version

constexpr uint32_t kOtherVersion = kProtocolVersion + 2;

template <class Frame>
std::string OfOtherVersion(Frame frame) {
  frame.prefix.version = kOtherVersion;
  return std::string(reinterpret_cast<const char*>(&frame), sizeof(frame));
}

// Answers who comes to the listening socket `door`, over a unix socket or TCP.
void AnswerInOtherVersion(int door, bool tcp) {
  ASSERT_TRUE(WaitReadable(door, NowNs() + kTimeoutNs));
  const FileDescriptor client(accept4(door, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  ASSERT_TRUE(WaitReadable(client.get(), NowNs() + kTimeoutNs));
  char asked[2048];
  ASSERT_GT(recv(client.get(), asked, sizeof(asked), 0), 0);
  if (tcp) {
    HelloFrame hello;
    hello.prefix.bytes = sizeof(hello);
    const std::string bytes = OfOtherVersion(hello);
    EXPECT_EQ(SendSome(client.get(), bytes.data(), bytes.size()), bytes.size());
  } else {
    AcceptancePacket acceptance;
    acceptance.prefix.kind = PacketKind::kAcceptance;
    acceptance.prefix.bytes = sizeof(acceptance);
    const std::string bytes = OfOtherVersion(acceptance);
    EXPECT_TRUE(SendPacket(client.get(), bytes.data(), bytes.size(), -1).ok());
  }
}

TEST_F(LateHomesTest, WorkersOfAnotherVersionAreNamedAndTheOthersUsed) {
  const FileDescriptor unix_door = *OpenSocket();
  const sockaddr_un address = *SocketAddress(late_.path);
  ASSERT_EQ(bind(unix_door.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  ASSERT_EQ(listen(unix_door.get(), 4), 0);
  const std::vector<FileDescriptor> tcp_doors = *ListenTcp("127.0.0.1", 0);
  HomesOptions options = Degraded();
  options.endpoints.push_back(
      {.kind = Endpoint::Kind::kFabric, .host = "127.0.0.1", .port = LocalPort(tcp_doors[0].get())});
  options.fabric.secret_file = folder_.File("secret");
  WriteSecretFile(options.fabric.secret_file, "a secret of the test's");
  const auto accept = [&] {
    links_.push_back(AcceptEngine(there_.get()));
    AnswerInOtherVersion(unix_door.get(), /*tcp=*/false);
    AnswerInOtherVersion(tcp_doors[0].get(), /*tcp=*/true);
  };
  const std::string mine = std::to_string(kProtocolVersion), other = std::to_string(kOtherVersion);
  const std::string over_unix = "speaks protocol version " + other + ", this engine " + mine;
  const std::string over_tcp = "this engine speaks protocol version " + mine + ", the worker version " + other;
  {
    const std::unique_ptr<Homes> homes = Connect(options, accept);
    ASSERT_NE(homes, nullptr);
    EXPECT_TRUE(homes->Look(0).up);
    EXPECT_THAT(homes->List()[1].absence, HasSubstr(over_unix));
    EXPECT_THAT(homes->List()[2].absence, HasSubstr(over_tcp));
  }
  // Where all must be there, the first that is not is the error.
  for (const std::string& error : {over_unix, over_tcp}) {
    options.homes_min = 0;
    std::thread accepting([&] {
      links_.push_back(AcceptEngine(there_.get()));
      if (error == over_unix) AnswerInOtherVersion(unix_door.get(), /*tcp=*/false);
      AnswerInOtherVersion(tcp_doors[0].get(), /*tcp=*/true);
    });
    const absl::Status status = Homes::Create(options).status();
    accepting.join();
    EXPECT_THAT(std::string(status.message()), HasSubstr(error));
    options.endpoints.erase(options.endpoints.begin() + 1);
  }
}

}  // namespace
}  // namespace fastdecode
