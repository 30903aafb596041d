#ifndef FASTDECODE_RDMA_PEER_CHANNEL_H_
#define FASTDECODE_RDMA_PEER_CHANNEL_H_

#include <cstdint>
#include <string>

namespace fastdecode {

// What came from the peer's process.
struct PeerNews {
  enum class Kind : uint8_t {
    kNothing,    // and nothing more for now
    kHeartbeat,  // the peer's process lives; `progress` is its count of finished work items
    kFarewell,   // the peer has given the link up: `text` is why
    kClosed,     // no more will come: the connection ended, or the peer broke the protocol (`text`)
  };

  Kind kind = Kind::kNothing;
  uint64_t progress = 0;
  std::string text;
};

// The connection on which a link over a fabric was made, and which stays as long as the link: signs of life and the
// last word pass here, never data.
// Thread: Poll and SendHeartbeat by one at a time; SendFarewell by any, also while another is in the other calls; the
// rest by any. Nothing blocks: what the connection has no room for is dropped (a heartbeat) or cut short by closing it
// (a farewell).
class PeerChannel {
 public:
  // Closes the connection. What was sent before still arrives.
  virtual ~PeerChannel() = default;

  // Readable (poll(2) for POLLIN) when Poll has news; the same for the whole life.
  virtual int fd() const = 0;
  // Whether the peer can have said anything. Until then its silence means nothing; how long that may last Poll judges.
  virtual bool ready() const = 0;
  // The next news; kNothing when there is none. Kinds kFarewell and kClosed repeat.
  virtual PeerNews Poll() = 0;
  virtual void SendHeartbeat(uint64_t progress) = 0;
  // At most once; heartbeats after it are dropped.
  virtual void SendFarewell(const std::string& text) = 0;
  // For messages: "worker at 10.0.0.2:4711".
  virtual std::string name() const = 0;
};

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_PEER_CHANNEL_H_
