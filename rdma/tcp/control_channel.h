#ifndef FASTDECODE_RDMA_TCP_CONTROL_CHANNEL_H_
#define FASTDECODE_RDMA_TCP_CONTROL_CHANNEL_H_

#include <cstdint>
#include <mutex>
#include <string>

#include "absl/status/status.h"
#include "rdma/file_descriptor.h"
#include "rdma/peer_channel.h"
#include "rdma/tcp/frame_reader.h"
#include "rdma/tcp/frames.h"
#include "rdma/tcp/transcript.h"

namespace fastdecode {

// The last two frames of a handshake, which hold nothing but what both ends know by then.
struct ReadyFrames {
  std::string engine;
  std::string worker;
};
// `transcript`: up to the acceptance.
ReadyFrames MakeReadyFrames(Transcript transcript);

// The connection on which a link over a fabric was made, from the acceptance on. First each end tells the other that it
// can receive: the engine by SendReady once its end is up, the worker in Poll as it sees that. Heartbeats pass after
// that; a farewell may come at any time. Who says something else has broken the protocol, and the channel is closed.
// Owns: the socket.
// Thread: any; of several threads in Poll, each gets some of the news.
// Bounded: one frame not yet read to its end, and one not yet sent to its end.
class ControlChannel final : public PeerChannel {
 public:
  // `name`: the peer, for messages. `ready_deadline_ns` (NowNs): until when the worker's end waits for its engine.
  ControlChannel(Side side, std::string name, FileDescriptor socket, ReadyFrames ready_frames,
                 uint64_t ready_deadline_ns);
  ~ControlChannel() override;

  // Engine: this end can receive.
  void SendReady();
  // Engine, after SendReady: waits until the worker's end can receive.
  // Errors, naming the worker: DeadlineExceeded; Unavailable, with its farewell or how the connection ended.
  absl::Status AwaitReady(uint64_t deadline_ns);
  // Each end knows of the other that it can receive.
  bool ready() const override;

  int fd() const override { return socket_.get(); }
  // A worker's engine that is not ready in time is kClosed; fd() does not tell of that, so Poll must be called without
  // it now and then.
  PeerNews Poll() override;
  // Nothing before ready().
  void SendHeartbeat(uint64_t progress) override;
  void SendFarewell(const std::string& text) override;
  std::string name() const override { return name_; }

 private:
  // All with mutex_ held.
  PeerNews Handle(const std::string& frame);
  PeerNews End(PeerNews::Kind kind, std::string text);
  bool Send(const std::string& frame);

  const Side side_;
  const std::string name_;
  const std::string own_ready_;
  const std::string peer_ready_;
  const uint64_t ready_deadline_ns_;
  FileDescriptor socket_;

  mutable std::mutex mutex_;  // guards what follows
  FrameReader reader_;
  std::string unsent_;  // the rest of a frame that the socket had no room for
  bool ready_ = false;
  bool said_farewell_ = false;
  PeerNews end_;  // kFarewell or kClosed once it has come
};

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_TCP_CONTROL_CHANNEL_H_
