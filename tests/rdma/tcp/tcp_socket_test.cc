#include "rdma/tcp/tcp_socket.h"

#include <gtest/gtest.h>
#include <netdb.h>
#include <sys/socket.h>

#include <cstring>
#include <string>

#include "numa/clock.h"

namespace fastdecode {
namespace {

constexpr uint64_t kGenerousNs = 60'000'000'000;

uint64_t Soon() { return NowNs() + kGenerousNs; }

// The connection that a client made, at the listening end.
FileDescriptor Accept(const FileDescriptor& listening, std::string* peer) {
  EXPECT_TRUE(WaitReadable(listening.get(), Soon()));
  FileDescriptor fd = AcceptTcp(listening.get(), peer);
  EXPECT_TRUE(fd.valid()) << strerror(errno);
  return fd;
}

void ExpectTheyTalk(const std::string& listen_host, const std::string& connect_host, const std::string& peer_prefix) {
  const auto sockets = ListenTcp(listen_host, 0);
  if (absl::IsNotFound(sockets.status())) GTEST_SKIP() << sockets.status();
  ASSERT_TRUE(sockets.ok()) << sockets.status();
  const auto client = ConnectTcp(connect_host, LocalPort(sockets->front().get()), Soon());
  ASSERT_TRUE(client.ok()) << client.status();
  std::string peer;
  const FileDescriptor server = Accept(sockets->front(), &peer);
  EXPECT_EQ(peer, peer_prefix + std::to_string(LocalPort(client->get())));
  const std::string frame = MakeHeartbeatFrame(7);
  EXPECT_EQ(SendSome(client->get(), frame.data(), frame.size()), frame.size());
  ASSERT_TRUE(WaitReadable(server.get(), Soon()));
  FrameReader reader(Side::kWorker);
  const FrameNews news = ReadFrame(server.get(), &reader);
  EXPECT_EQ(news.kind, FrameNews::Kind::kFrame);
  EXPECT_EQ(news.text, frame);
}

TEST(TcpSocketTest, OverIpv4) { ExpectTheyTalk("127.0.0.1", "127.0.0.1", "127.0.0.1:"); }
TEST(TcpSocketTest, OverIpv6) { ExpectTheyTalk("::1", "::1", "[::1]:"); }
TEST(TcpSocketTest, AnIpv4ClientOfAnIpv6Listener) { ExpectTheyTalk("::", "127.0.0.1", "127.0.0.1:"); }

TEST(TcpSocketTest, AllAddressesOfAName) {
  const auto sockets = ListenTcp("localhost", 0);
  ASSERT_TRUE(sockets.ok()) << sockets.status();
  for (const FileDescriptor& socket : *sockets) EXPECT_EQ(LocalPort(socket.get()), LocalPort(sockets->front().get()));
  EXPECT_TRUE(ConnectTcp("localhost", LocalPort(sockets->front().get()), Soon()).ok());
}

TEST(TcpSocketTest, AnAddressThatIsNamedTwiceIsListenedAtOnce) {
  addrinfo* list = nullptr;  // the address once for each type of socket
  ASSERT_EQ(getaddrinfo("127.0.0.1", "0", nullptr, &list), 0);
  const AddressList addresses(list);
  ASSERT_NE(addresses->ai_next, nullptr);
  const auto sockets = ListenTcp(addresses);
  ASSERT_TRUE(sockets.ok()) << sockets.status();
  EXPECT_EQ(sockets->size(), 1u);
}

TEST(TcpSocketTest, APortInUseIsNamed) {
  const auto sockets = ListenTcp("127.0.0.1", 0);
  ASSERT_TRUE(sockets.ok()) << sockets.status();
  const uint16_t port = LocalPort(sockets->front().get());
  const auto second = ListenTcp("127.0.0.1", port);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(second.status().message(),
            "cannot listen at 127.0.0.1:" + std::to_string(port) + ": the port is in use by another process");
}

TEST(TcpSocketTest, APortIsFreeAgainAtOnce) {
  uint16_t port = 0;
  {
    const auto sockets = ListenTcp("127.0.0.1", 0);
    ASSERT_TRUE(sockets.ok()) << sockets.status();
    port = LocalPort(sockets->front().get());
    const auto client = ConnectTcp("127.0.0.1", port, Soon());
    ASSERT_TRUE(client.ok()) << client.status();
    std::string peer;
    CloseTcp(Accept(sockets->front(), &peer));  // this end waits in TIME_WAIT
  }
  const auto again = ListenTcp("127.0.0.1", port);
  EXPECT_TRUE(again.ok()) << again.status();
}

TEST(TcpSocketTest, WhereNobodyListens) {
  uint16_t port;
  {
    const auto sockets = ListenTcp("127.0.0.1", 0);
    ASSERT_TRUE(sockets.ok()) << sockets.status();
    port = LocalPort(sockets->front().get());
  }
  const auto client = ConnectTcp("127.0.0.1", port, Soon());
  const std::string place = "127.0.0.1:" + std::to_string(port);
  EXPECT_EQ(client.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(client.status().message(), "no worker to be reached at " + place + ": " + place + ": Connection refused");
}

TEST(TcpSocketTest, AddressesThatAreNotHere) {
  const auto listen = ListenTcp("192.0.2.1", 4711);  // TEST-NET-1
  EXPECT_EQ(listen.status().code(), absl::StatusCode::kNotFound) << listen.status();
  EXPECT_NE(listen.status().message().find("cannot listen at 192.0.2.1:4711: bind: "), std::string::npos);
  EXPECT_FALSE(ListenTcp("no such host", 4711).ok());
  const auto client = ConnectTcp("no such host", 4711, Soon());
  EXPECT_NE(client.status().message().find("no worker to be reached at no such host:4711: host 'no such host': "),
            std::string::npos)
      << client.status();
}

// A listener whose queue is full drops what comes.
TEST(TcpSocketTest, AHostThatDoesNotAnswer) {
  const auto sockets = ListenTcp("127.0.0.1", 0);
  ASSERT_TRUE(sockets.ok()) << sockets.status();
  ASSERT_EQ(listen(sockets->front().get(), 0), 0);
  std::vector<FileDescriptor> clients;
  absl::Status status;
  for (int i = 0; i < 20 && status.ok(); ++i) {
    auto client = ConnectTcp("127.0.0.1", LocalPort(sockets->front().get()), NowNs() + 50'000'000);
    status = client.status();
    if (client.ok()) clients.push_back(*std::move(client));
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
}

TEST(TcpSocketTest, WhatWasSentBeforeTheCloseArrives) {
  const auto sockets = ListenTcp("127.0.0.1", 0);
  ASSERT_TRUE(sockets.ok()) << sockets.status();
  const auto client = ConnectTcp("127.0.0.1", LocalPort(sockets->front().get()), Soon());
  ASSERT_TRUE(client.ok()) << client.status();
  std::string peer;
  FileDescriptor server = Accept(sockets->front(), &peer);
  const std::string unread(3000, 'x');
  SendSome(client->get(), unread.data(), unread.size());
  ASSERT_TRUE(WaitReadable(server.get(), Soon()));
  const std::string last = MakeTextFrame(FrameKind::kRefusal, "the last word");
  SendSome(server.get(), last.data(), last.size());
  CloseTcp(std::move(server));
  FrameReader reader(Side::kEngine);
  FrameNews news;
  while ((news = ReadFrame(client->get(), &reader)).kind == FrameNews::Kind::kNothing) {
    ASSERT_TRUE(WaitReadable(client->get(), Soon()));
  }
  ASSERT_EQ(news.kind, FrameNews::Kind::kFrame) << news.text;
  EXPECT_EQ(ParseTextFrame(news.text), "the last word");
}

TEST(TcpSocketTest, Names) {
  EXPECT_EQ(FormatHostAndPort("node7", 4711), "node7:4711");
  EXPECT_EQ(FormatHostAndPort("::1", 4711), "[::1]:4711");
}

}  // namespace
}  // namespace fastdecode
