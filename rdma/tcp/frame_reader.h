#ifndef FASTDECODE_RDMA_TCP_FRAME_READER_H_
#define FASTDECODE_RDMA_TCP_FRAME_READER_H_

#include <array>
#include <cstddef>
#include <string>

#include "rdma/tcp/frames.h"

namespace fastdecode {

// Puts the frames of a stream together, whatever the pieces that it comes in. It never asks for a byte beyond the frame
// that it is at, and knows from the prefix on whether it will be one.
// Owns: one frame's bytes. Bounded: kFrameBytesMax.
class FrameReader {
 public:
  enum class State {
    kIncomplete,
    kComplete,   // TakeFrame() gives it
    kMalformed,  // no frame that this version of ours could read (Defect); final
  };

  // `self`: which end this is, for messages.
  explicit FrameReader(Side self) : self_(self) {}

  // Where the next bytes of the stream belong. REQUIRES: kIncomplete.
  char* space() { return buffer_.data() + filled_; }
  size_t space_bytes() const { return wanted_ - filled_; }  // > 0
  // `bytes` were put there, 0 < bytes <= space_bytes().
  State Take(size_t bytes);

  // Begins the next frame. REQUIRES: kComplete.
  std::string TakeFrame();
  // Some of a frame has come, and not all of it.
  bool in_frame() const { return filled_ > 0; }
  // What is wrong, for both ends to read. REQUIRES: kMalformed.
  std::string Defect() const;

 private:
  FramePrefix prefix() const;

  const Side self_;
  std::array<char, kFrameBytesMax> buffer_;
  size_t filled_ = 0;
  size_t wanted_ = sizeof(FramePrefix);
  State state_ = State::kIncomplete;
};

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_TCP_FRAME_READER_H_
