#include "rdma/tcp/control_channel.h"

#include <openssl/crypto.h>
#include <sys/socket.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "numa/check.h"
#include "numa/clock.h"
#include "rdma/tcp/tcp_socket.h"

namespace fastdecode {

ReadyFrames MakeReadyFrames(Transcript transcript) {
  ReadyFrames frames = {MakeReadyFrame(), MakeReadyFrame()};
  transcript.SignAndAppend(Side::kEngine, &frames.engine);
  transcript.SignAndAppend(Side::kWorker, &frames.worker);
  return frames;
}

ControlChannel::ControlChannel(Side side, std::string name, FileDescriptor socket, ReadyFrames ready_frames,
                               uint64_t ready_deadline_ns)
    : side_(side),
      name_(std::move(name)),
      own_ready_(side == Side::kEngine ? ready_frames.engine : ready_frames.worker),
      peer_ready_(side == Side::kEngine ? ready_frames.worker : ready_frames.engine),
      ready_deadline_ns_(ready_deadline_ns),
      socket_(std::move(socket)),
      reader_(side) {}

ControlChannel::~ControlChannel() { CloseTcp(std::move(socket_)); }

void ControlChannel::SendReady() {
  FD_CHECK(side_ == Side::kEngine, "the worker becomes ready by itself");
  const std::lock_guard lock(mutex_);
  Send(own_ready_);
}

absl::Status ControlChannel::AwaitReady(uint64_t deadline_ns) {
  while (true) {
    const PeerNews news = Poll();
    if (news.kind == PeerNews::Kind::kFarewell) {
      return absl::UnavailableError(absl::StrCat(name_, " gave the link up: ", news.text));
    }
    if (news.kind == PeerNews::Kind::kClosed) return absl::UnavailableError(absl::StrCat(name_, " ", news.text));
    if (ready()) return absl::OkStatus();
    if (!WaitReadable(fd(), deadline_ns)) {
      return absl::DeadlineExceededError(absl::StrCat(name_, " did not become ready in time"));
    }
  }
}

bool ControlChannel::ready() const {
  const std::lock_guard lock(mutex_);
  return ready_;
}

PeerNews ControlChannel::Poll() {
  const std::lock_guard lock(mutex_);
  while (end_.kind == PeerNews::Kind::kNothing) {
    FrameNews news = ReadFrame(socket_.get(), &reader_);
    switch (news.kind) {
      case FrameNews::Kind::kClosed:
      case FrameNews::Kind::kMalformed:
        return End(PeerNews::Kind::kClosed, std::move(news.text));
      case FrameNews::Kind::kFrame: {
        PeerNews handled = Handle(news.text);
        if (handled.kind != PeerNews::Kind::kNothing) return handled;
        break;  // it was the peer's ready, which comes once
      }
      case FrameNews::Kind::kNothing:
        if (side_ == Side::kWorker && !ready_ && NowNs() >= ready_deadline_ns_) {
          return End(PeerNews::Kind::kClosed, "never became ready");
        }
        return {};
    }
  }
  return end_;
}

PeerNews ControlChannel::Handle(const std::string& frame) {
  const FrameKind kind = KindOf(frame);
  if (kind == FrameKind::kFarewell) return End(PeerNews::Kind::kFarewell, ParseTextFrame(frame));
  if (kind == FrameKind::kHeartbeat && ready_) {
    return {PeerNews::Kind::kHeartbeat, ParseHeartbeatFrame(frame), ""};
  }
  if (kind != FrameKind::kReady || ready_) {
    return End(PeerNews::Kind::kClosed, absl::StrCat("broke the protocol: ", FrameKindName(kind), " came ",
                                                     ready_ ? "on a link that is up" : "before it was ready"));
  }
  if (CRYPTO_memcmp(frame.data(), peer_ready_.data(), peer_ready_.size()) != 0) {
    return End(PeerNews::Kind::kClosed, "broke the protocol: its ready is not signed for this link");
  }
  ready_ = true;
  if (side_ == Side::kWorker) Send(own_ready_);
  return {};
}

PeerNews ControlChannel::End(PeerNews::Kind kind, std::string text) {
  end_.kind = kind;
  end_.text = std::move(text);
  return end_;
}

void ControlChannel::SendHeartbeat(uint64_t progress) {
  const std::lock_guard lock(mutex_);
  if (ready_) Send(MakeHeartbeatFrame(progress));
}

void ControlChannel::SendFarewell(const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (said_farewell_) return;
  // What cannot be said now cannot be said later, either; the end of the connection says that there is one.
  if (!Send(MakeTextFrame(FrameKind::kFarewell, text))) shutdown(socket_.get(), SHUT_RDWR);
  said_farewell_ = true;
}

// False: not all of it. What was begun is finished before anything else is sent, so that no frame is ever torn.
bool ControlChannel::Send(const std::string& frame) {
  if (said_farewell_) return false;
  if (!unsent_.empty()) unsent_.erase(0, SendSome(socket_.get(), unsent_.data(), unsent_.size()));
  if (!unsent_.empty()) return false;
  const size_t sent = SendSome(socket_.get(), frame.data(), frame.size());
  if (sent > 0) unsent_ = frame.substr(sent);
  return sent == frame.size();
}

}  // namespace fastdecode
