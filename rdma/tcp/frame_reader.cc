#include "rdma/tcp/frame_reader.h"

#include <cstring>

#include "absl/strings/str_format.h"
#include "numa/check.h"

namespace fastdecode {

namespace {

bool OfEveryVersion(FrameKind kind) { return kind == FrameKind::kRefusal || kind == FrameKind::kFarewell; }

bool Readable(const FramePrefix& prefix) {
  if (prefix.magic != kFrameMagic) return false;
  if (prefix.version != kProtocolVersion && !OfEveryVersion(prefix.kind)) return false;
  return FrameBytes(prefix.kind) != 0 && prefix.bytes == FrameBytes(prefix.kind);
}

}  // namespace

FramePrefix FrameReader::prefix() const {
  FramePrefix prefix;
  std::memcpy(&prefix, buffer_.data(), sizeof(prefix));
  return prefix;
}

FrameReader::State FrameReader::Take(size_t bytes) {
  FD_CHECK(state_ == State::kIncomplete && bytes > 0 && bytes <= space_bytes(), "bytes that were not asked for");
  filled_ += bytes;
  if (filled_ == sizeof(FramePrefix)) {
    if (!Readable(prefix())) return state_ = State::kMalformed;
    wanted_ = prefix().bytes;
    static_assert(sizeof(HeartbeatFrame) > sizeof(FramePrefix));  // as all others: more is wanted
  }
  return state_ = filled_ == wanted_ ? State::kComplete : State::kIncomplete;
}

std::string FrameReader::TakeFrame() {
  FD_CHECK(state_ == State::kComplete, "there is no whole frame");
  std::string frame(buffer_.data(), filled_);
  filled_ = 0;
  wanted_ = sizeof(FramePrefix);
  state_ = State::kIncomplete;
  return frame;
}

std::string FrameReader::Defect() const {
  FD_CHECK(state_ == State::kMalformed, "nothing is wrong");
  const char* const self = self_ == Side::kWorker ? "worker" : "engine";
  const char* const peer = self_ == Side::kWorker ? "engine" : "worker";
  const FramePrefix prefix = this->prefix();
  if (prefix.magic != kFrameMagic) return absl::StrFormat("what was sent is nothing that a FastDecode %s sends", peer);
  if (prefix.version != kProtocolVersion && !OfEveryVersion(prefix.kind)) {
    return absl::StrFormat("this %s speaks protocol version %d, the %s version %d", self, kProtocolVersion, peer,
                           prefix.version);
  }
  if (FrameBytes(prefix.kind) == 0)
    return absl::StrFormat("malformed frame: %s does not exist", FrameKindName(prefix.kind));
  return absl::StrFormat("malformed frame: %s of %d bytes, where it has %d", FrameKindName(prefix.kind), prefix.bytes,
                         FrameBytes(prefix.kind));
}

}  // namespace fastdecode
