#include "rdma/tcp/frames.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "numa/check.h"
#include "rdma/printable_text.h"

namespace fastdecode {

namespace {

template <class Frame>
Frame NewFrame(FrameKind kind) {
  Frame frame;
  frame.prefix.kind = kind;
  frame.prefix.bytes = sizeof(frame);
  return frame;
}

template <class Frame>
std::string BytesOf(const Frame& frame) {
  return std::string(reinterpret_cast<const char*>(&frame), sizeof(frame));
}

template <class Frame>
Frame CopyOut(const std::string& bytes) {
  FD_CHECK(bytes.size() == sizeof(Frame), "not a whole frame of this kind");
  Frame frame;
  std::memcpy(&frame, bytes.data(), sizeof(frame));
  return frame;
}

uint32_t PutBlob(const std::string& blob, char* field) {
  FD_CHECK(blob.size() <= kHandshakeBlobBytesMax, "a blob of the handshake is too long");
  std::memcpy(field, blob.data(), blob.size());
  return static_cast<uint32_t>(blob.size());
}

absl::Status CheckBlob(const char* name, uint32_t bytes) {
  if (bytes <= kHandshakeBlobBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: %d bytes are more than %d", name, bytes, kHandshakeBlobBytesMax));
}

}  // namespace

std::string FrameKindName(FrameKind kind) {
  switch (kind) {
    case FrameKind::kHello:
      return "hello";
    case FrameKind::kProposal:
      return "proposal";
    case FrameKind::kAcceptance:
      return "acceptance";
    case FrameKind::kRefusal:
      return "refusal";
    case FrameKind::kReady:
      return "ready";
    case FrameKind::kHeartbeat:
      return "heartbeat";
    case FrameKind::kFarewell:
      return "farewell";
  }
  return absl::StrCat("kind ", static_cast<uint32_t>(kind));
}

size_t FrameBytes(FrameKind kind) {
  switch (kind) {
    case FrameKind::kHello:
      return sizeof(HelloFrame);
    case FrameKind::kProposal:
      return sizeof(ProposalFrame);
    case FrameKind::kAcceptance:
      return sizeof(AcceptanceFrame);
    case FrameKind::kReady:
      return sizeof(ReadyFrame);
    case FrameKind::kHeartbeat:
      return sizeof(HeartbeatFrame);
    case FrameKind::kRefusal:
    case FrameKind::kFarewell:
      return sizeof(TextFrame);
  }
  return 0;
}

std::string MakeHelloFrame(const Nonce& nonce) {
  auto frame = NewFrame<HelloFrame>(FrameKind::kHello);
  frame.nonce = nonce;
  return BytesOf(frame);
}

std::string MakeProposalFrame(const LinkOffer& offer) {
  auto frame = NewFrame<ProposalFrame>(FrameKind::kProposal);
  const LinkProposal& proposal = offer.proposal;
  frame.epoch = proposal.epoch;
  frame.engine_id = proposal.peer.engine_id;
  frame.role = proposal.peer.role;
  frame.home_index = proposal.home_index;
  frame.hop_payload_bytes_max = proposal.size.hop_payload_bytes_max;
  frame.reply_payload_bytes_max = proposal.size.reply_payload_bytes_max;
  frame.control_ring_bytes = proposal.size.control_ring_bytes;
  frame.slots = static_cast<uint32_t>(proposal.size.slots);
  frame.bulk_segments = static_cast<uint32_t>(proposal.size.bulk_segments);
  frame.bulk_segment_bytes_max = static_cast<uint32_t>(proposal.size.bulk_segment_bytes_max);
  frame.shape_bytes = PutBlob(proposal.shape, frame.shape);
  frame.parameters_bytes = PutBlob(offer.parameters, frame.parameters);
  return BytesOf(frame);
}

std::string MakeAcceptanceFrame(uint64_t epoch, const LinkAnswer& answer) {
  const LinkAcceptance& acceptance = answer.acceptance;
  FD_CHECK(acceptance.homes > 0 && acceptance.homes <= kHomesPerWorkerMax, "number of homes");
  auto frame = NewFrame<AcceptanceFrame>(FrameKind::kAcceptance);
  frame.epoch = epoch;
  frame.homes = acceptance.homes;
  frame.answer_bytes = PutBlob(acceptance.answer, frame.answer);
  frame.parameters_bytes = PutBlob(answer.parameters, frame.parameters);
  return BytesOf(frame);
}

std::string MakeReadyFrame() { return BytesOf(NewFrame<ReadyFrame>(FrameKind::kReady)); }

std::string MakeHeartbeatFrame(uint64_t progress) {
  auto frame = NewFrame<HeartbeatFrame>(FrameKind::kHeartbeat);
  frame.progress = progress;
  return BytesOf(frame);
}

std::string MakeTextFrame(FrameKind kind, const std::string& text) {
  auto frame = NewFrame<TextFrame>(kind);
  frame.text_bytes = static_cast<uint32_t>(std::min(text.size(), sizeof(frame.text)));
  std::memcpy(frame.text, text.data(), frame.text_bytes);
  return BytesOf(frame);
}

FrameKind KindOf(const std::string& frame) {
  FD_CHECK(frame.size() >= sizeof(FramePrefix), "not a whole frame");
  FramePrefix prefix;
  std::memcpy(&prefix, frame.data(), sizeof(prefix));
  return prefix.kind;
}

Nonce ParseHelloFrame(const std::string& frame) { return CopyOut<HelloFrame>(frame).nonce; }

absl::StatusOr<LinkOffer> ParseProposalFrame(const std::string& bytes) {
  const auto frame = CopyOut<ProposalFrame>(bytes);
  if (frame.hop_header_bytes != sizeof(HopHeader) || frame.reply_header_bytes != sizeof(ReplyHeader)) {
    return absl::InvalidArgumentError(absl::StrFormat("header sizes differ: worker %d and %d bytes, engine %d and %d",
                                                      sizeof(HopHeader), sizeof(ReplyHeader), frame.hop_header_bytes,
                                                      frame.reply_header_bytes));
  }
  if (absl::Status status = CheckBlob("link shape", frame.shape_bytes); !status.ok()) return status;
  if (absl::Status status = CheckBlob("provider parameters", frame.parameters_bytes); !status.ok()) return status;
  LinkOffer offer;
  LinkProposal& proposal = offer.proposal;
  proposal.size.slots = frame.slots <= kMaxSlots ? static_cast<int>(frame.slots) : -1;
  proposal.size.hop_payload_bytes_max = frame.hop_payload_bytes_max;
  proposal.size.reply_payload_bytes_max = frame.reply_payload_bytes_max;
  proposal.size.control_ring_bytes = frame.control_ring_bytes;
  proposal.size.bulk_segments = frame.bulk_segments <= kBulkSegmentsMax ? static_cast<int>(frame.bulk_segments) : -1;
  proposal.size.bulk_segment_bytes_max = frame.bulk_segment_bytes_max;
  if (absl::Status status = CheckLinkSize(proposal.size); !status.ok()) return status;
  proposal.epoch = frame.epoch;
  proposal.peer = {frame.engine_id, frame.role};
  proposal.home_index = frame.home_index;
  proposal.shape.assign(frame.shape, frame.shape_bytes);
  offer.parameters.assign(frame.parameters, frame.parameters_bytes);
  return offer;
}

absl::StatusOr<LinkAnswer> ParseAcceptanceFrame(const std::string& bytes, uint64_t epoch) {
  const auto frame = CopyOut<AcceptanceFrame>(bytes);
  if (frame.epoch != epoch) {
    return absl::InvalidArgumentError(absl::StrFormat("epoch: %d, where %d was proposed", frame.epoch, epoch));
  }
  if (frame.homes == 0 || frame.homes > kHomesPerWorkerMax) {
    return absl::InvalidArgumentError(absl::StrFormat("homes: %d is not 1 to %d", frame.homes, kHomesPerWorkerMax));
  }
  if (absl::Status status = CheckBlob("answer", frame.answer_bytes); !status.ok()) return status;
  if (absl::Status status = CheckBlob("provider parameters", frame.parameters_bytes); !status.ok()) return status;
  LinkAnswer answer;
  answer.acceptance.homes = frame.homes;
  answer.acceptance.answer.assign(frame.answer, frame.answer_bytes);
  answer.parameters.assign(frame.parameters, frame.parameters_bytes);
  return answer;
}

uint64_t ParseHeartbeatFrame(const std::string& frame) { return CopyOut<HeartbeatFrame>(frame).progress; }

std::string ParseTextFrame(const std::string& bytes) {
  const auto frame = CopyOut<TextFrame>(bytes);
  return PrintableText(std::string(frame.text, std::min<size_t>(frame.text_bytes, sizeof(frame.text))));
}

}  // namespace fastdecode
