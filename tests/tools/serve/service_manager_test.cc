// What systemd is told, read from sockets that stand for its own.
#include "tools/serve/service_manager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstring>
#include <filesystem>
#include <string>

namespace fastdecode::serve {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

// A bound datagram socket; `name` as NOTIFY_SOCKET has it.
class Listener {
 public:
  explicit Listener(const std::string& name) : fd_(socket(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0)) {
    sockaddr_un address = {};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, name.data(), name.size());
    if (name[0] == '@') address.sun_path[0] = '\0';
    const size_t bytes = offsetof(sockaddr_un, sun_path) + name.size() + (name[0] == '@' ? 0 : 1);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), static_cast<socklen_t>(bytes)), 0);
  }
  ~Listener() { close(fd_); }

  // The next message; "" where there is none.
  std::string Next() {
    char message[4096];
    const ssize_t bytes = recv(fd_, message, sizeof(message), 0);
    return bytes < 0 ? "" : std::string(message, static_cast<size_t>(bytes));
  }

 private:
  const int fd_;
};

class ServiceManagerTest : public testing::Test {
 protected:
  ServiceManagerTest() {
    char folder[] = "/tmp/service_manager_testXXXXXX";
    folder_ = mkdtemp(folder);
  }
  ~ServiceManagerTest() override { std::filesystem::remove_all(folder_); }

  std::string folder_;
};

TEST_F(ServiceManagerTest, SendsWhatSdNotifyHas) {
  Listener listener(folder_ + "/notify");
  ServiceManager manager((folder_ + "/notify").c_str());
  manager.Ready("serving llama");
  EXPECT_EQ(listener.Next(), "READY=1\nSTATUS=serving llama");
  manager.Status("3 requests");
  EXPECT_EQ(listener.Next(), "STATUS=3 requests");
  manager.Watchdog();
  EXPECT_EQ(listener.Next(), "WATCHDOG=1");
  manager.Stopping("finishing 2 streams");
  EXPECT_EQ(listener.Next(), "STOPPING=1\nSTATUS=finishing 2 streams");
  EXPECT_EQ(listener.Next(), "");
  EXPECT_EQ(manager.problem(), "");
}

TEST_F(ServiceManagerTest, ReloadingHasTheTimeOfTheClockThatSystemdReads) {
  const auto now_us = [] {
    timespec now = {};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<uint64_t>(now.tv_sec) * 1'000'000 + static_cast<uint64_t>(now.tv_nsec) / 1000;
  };
  Listener listener(folder_ + "/notify");
  ServiceManager manager((folder_ + "/notify").c_str());
  const uint64_t before_us = now_us();
  manager.Reloading();
  const std::string message = listener.Next(), begin = "RELOADING=1\nMONOTONIC_USEC=";
  ASSERT_THAT(message, StartsWith(begin));
  const uint64_t said_us = std::stoull(message.substr(begin.size()));
  EXPECT_GE(said_us, before_us);
  EXPECT_LE(said_us, now_us());
}

TEST_F(ServiceManagerTest, KnowsAbstractNames) {
  const std::string name = "@fastdecode-service-manager-test-" + std::to_string(getpid());
  Listener listener(name);
  ServiceManager manager(name.c_str());
  manager.Watchdog();
  EXPECT_EQ(listener.Next(), "WATCHDOG=1");
}

TEST_F(ServiceManagerTest, AStatusIsOneLine) {
  Listener listener(folder_ + "/notify");
  ServiceManager manager((folder_ + "/notify").c_str());
  manager.Status("a\nREADY=1");
  EXPECT_EQ(listener.Next(), "STATUS=a READY=1");
}

TEST_F(ServiceManagerTest, WithoutASocketNothingHappens) {
  for (const char* none : {static_cast<const char*>(nullptr), ""}) {
    ServiceManager manager(none);
    manager.Ready("x");
    manager.Reloading();
    manager.Watchdog();
    manager.Stopping("x");
    EXPECT_EQ(manager.problem(), "");
  }
}

TEST_F(ServiceManagerTest, SaysWhatIsWrongWithAName) {
  for (const std::string& name : {std::string("vsock:2:1234"), std::string("relative/path"), std::string("/"),
                                  "/" + std::string(200, 'x'), "@" + std::string(200, 'x')}) {
    ServiceManager manager(name.c_str());
    EXPECT_THAT(manager.problem(), HasSubstr("NOTIFY_SOCKET: '" + name + "'"));
    manager.Ready("x");
  }
}

TEST_F(ServiceManagerTest, ASocketThatNobodyHasIsNoHarm) {
  ServiceManager manager((folder_ + "/nobody").c_str());
  manager.Ready("x");
  EXPECT_THAT(manager.problem(), HasSubstr("READY=1"));
  EXPECT_THAT(manager.problem(), HasSubstr(std::strerror(ENOENT)));
  Listener listener(folder_ + "/nobody");
  manager.Ready("x");
  EXPECT_EQ(manager.problem(), "");
}

TEST_F(ServiceManagerTest, ASocketThatNobodyReadsStopsNobody) {
  Listener listener(folder_ + "/notify");
  ServiceManager manager((folder_ + "/notify").c_str());
  for (int i = 0; i < 100'000 && manager.problem().empty(); ++i) manager.Watchdog();
  EXPECT_THAT(manager.problem(), HasSubstr("WATCHDOG=1"));
  manager.Ready("x");  // is tried for a while, and comes back
  EXPECT_THAT(manager.problem(), HasSubstr("READY=1"));
}

TEST(WatchdogPeriod, IsHalfOfWhatIsAsked) {
  const std::string mine = std::to_string(getpid()), other = std::to_string(getpid() + 1);
  EXPECT_EQ(WatchdogPeriodNs("30000000", nullptr), 15'000'000'000u);
  EXPECT_EQ(WatchdogPeriodNs("30000000", mine.c_str()), 15'000'000'000u);
  EXPECT_EQ(WatchdogPeriodNs("30000000", ""), 15'000'000'000u);
  EXPECT_EQ(WatchdogPeriodNs("30000000", other.c_str()), 0u);
  for (const char* none : {static_cast<const char*>(nullptr), "", "0", "-5", "soon", "5s", "99999999999999999999"}) {
    EXPECT_EQ(WatchdogPeriodNs(none, nullptr), 0u);
  }
}

}  // namespace
}  // namespace fastdecode::serve
