#ifndef FASTDECODE_TESTS_RDMA_TCP_RAW_CLIENT_H_
#define FASTDECODE_TESTS_RDMA_TCP_RAW_CLIENT_H_

#include <gtest/gtest.h>
#include <sys/socket.h>

#include <cstring>
#include <memory>
#include <string>
#include <utility>

#include "numa/clock.h"
#include "rdma/tcp/frames.h"
#include "rdma/tcp/tcp_socket.h"
#include "rdma/tcp/transcript.h"
#include "tests/rdma/tcp/door_service.h"

namespace fastdecode {

// `frame` with other bytes at `offset`.
template <class Field>
std::string Spoilt(std::string frame, size_t offset, Field value) {
  std::memcpy(frame.data() + offset, &value, sizeof(value));
  return frame;
}

// A client that does as it likes.
class RawClient {
 public:
  explicit RawClient(uint16_t port, std::shared_ptr<const Secret> secret = TestSecret())
      : reader_(Side::kEngine), transcript_(std::move(secret)) {
    auto socket = ConnectTcp("127.0.0.1", port, NowNs() + kGenerousNs);
    EXPECT_TRUE(socket.ok()) << socket.status();
    if (socket.ok()) socket_ = *std::move(socket);
  }

  // On a connection that was made elsewhere.
  explicit RawClient(FileDescriptor socket)
      : socket_(std::move(socket)), reader_(Side::kEngine), transcript_(TestSecret()) {}

  void Send(const std::string& bytes) { SendSome(socket_.get(), bytes.data(), bytes.size()); }
  FrameNews Receive() {
    FrameNews news;
    while ((news = ReadFrame(socket_.get(), &reader_)).kind == FrameNews::Kind::kNothing) {
      if (!WaitReadable(socket_.get(), NowNs() + kGenerousNs)) break;
    }
    return news;
  }
  // Why it was refused; how the connection ended otherwise.
  std::string Refusal() {
    const FrameNews news = Receive();
    if (news.kind != FrameNews::Kind::kFrame) return news.text;
    return KindOf(news.text) == FrameKind::kRefusal ? ParseTextFrame(news.text) : FrameKindName(KindOf(news.text));
  }

  // The steps of a handshake.
  void ExchangeHellos() {
    const std::string hello = MakeHelloFrame(*RandomNonce());
    transcript_.Append(hello);
    Send(hello);
    const FrameNews answer = Receive();
    EXPECT_EQ(answer.kind, FrameNews::Kind::kFrame) << answer.text;
    transcript_.Append(answer.text);
  }
  void Propose(std::string proposal) {
    transcript_.SignAndAppend(Side::kEngine, &proposal);
    Send(proposal);
  }
  void AwaitAcceptance() {
    const FrameNews acceptance = Receive();
    ASSERT_EQ(acceptance.kind, FrameNews::Kind::kFrame) << acceptance.text;
    ASSERT_EQ(KindOf(acceptance.text), FrameKind::kAcceptance);
    EXPECT_TRUE(transcript_.VerifyAndAppend(Side::kWorker, acceptance.text));
  }
  const Transcript& transcript() const { return transcript_; }

  // Ends with a reset in place of an orderly close.
  void Reset() {
    const linger at_once = {.l_onoff = 1, .l_linger = 0};
    setsockopt(socket_.get(), SOL_SOCKET, SO_LINGER, &at_once, sizeof(at_once));
    socket_.Close();
  }
  FileDescriptor TakeSocket() { return std::move(socket_); }

 private:
  FileDescriptor socket_;
  FrameReader reader_;
  Transcript transcript_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_RDMA_TCP_RAW_CLIENT_H_
