#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "numa/check.h"
#include "rdma/tcp/frame_reader.h"
#include "rdma/tcp/frames.h"
#include "tests/fuzz/fuzz_target.h"

namespace fastdecode {

namespace {

constexpr uint64_t kEpoch = 77;

bool CheckOffer(const std::string& frame) {
  const absl::StatusOr<LinkOffer> offer = ParseProposalFrame(frame);
  if (!offer.ok()) {
    FD_CHECK(!offer.status().message().empty(), "an error says what is wrong");
    return false;
  }
  FD_CHECK(CheckLinkSize(offer->proposal.size).ok(), "an offer's size can be made");
  FD_CHECK(offer->proposal.shape.size() <= kHandshakeBlobBytesMax, "the shape fits");
  FD_CHECK(offer->parameters.size() <= kHandshakeBlobBytesMax, "the parameters fit");
  const absl::StatusOr<LinkOffer> again = ParseProposalFrame(MakeProposalFrame(*offer));
  FD_CHECK(again.ok() && again->proposal.shape == offer->proposal.shape && again->parameters == offer->parameters &&
               again->proposal.epoch == offer->proposal.epoch,
           "what was read can be written");
  return true;
}

bool CheckAnswer(const std::string& frame) {
  const absl::StatusOr<LinkAnswer> answer = ParseAcceptanceFrame(frame, kEpoch);
  if (!answer.ok()) return false;
  FD_CHECK(answer->acceptance.homes >= 1 && answer->acceptance.homes <= kHomesPerWorkerMax, "there are homes");
  FD_CHECK(ParseAcceptanceFrame(MakeAcceptanceFrame(kEpoch, *answer), kEpoch).ok(), "what was read can be written");
  return true;
}

bool CheckText(const std::string& frame) {
  const std::string text = ParseTextFrame(frame);
  FD_CHECK(!text.empty() && text.size() < sizeof(TextFrame), "a text is neither empty nor longer than its frame");
  FD_CHECK(std::none_of(text.begin(), text.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }),
           "a text is printable");
  return true;
}

bool CheckFrame(const std::string& frame) {
  const FrameKind kind = KindOf(frame);
  FD_CHECK(frame.size() == FrameBytes(kind), "a frame of a kind has one size");
  switch (kind) {
    case FrameKind::kProposal:
      return CheckOffer(frame);
    case FrameKind::kAcceptance:
      return CheckAnswer(frame);
    case FrameKind::kRefusal:
    case FrameKind::kFarewell:
      return CheckText(frame);
    case FrameKind::kHello:
      return MakeHelloFrame(ParseHelloFrame(frame)).size() == frame.size();
    case FrameKind::kHeartbeat:
      return MakeHeartbeatFrame(ParseHeartbeatFrame(frame)).size() == frame.size();
    case FrameKind::kReady:
      return true;
  }
  FD_CHECK(false, "the reader lets no unknown kind through");
}

}  // namespace

// The input: all that one end sends, as the other reads it, in pieces.
bool FuzzOne(const std::string& input) {
  FrameReader reader(input.size() % 2 == 0 ? Side::kEngine : Side::kWorker);
  const size_t piece = 1 + input.size() % 97;
  bool good = true;
  for (size_t at = 0; at < input.size();) {
    FD_CHECK(reader.space_bytes() > 0 && reader.space_bytes() <= kFrameBytesMax, "the reader wants what it can hold");
    const size_t bytes = std::min({piece, reader.space_bytes(), input.size() - at});
    std::memcpy(reader.space(), input.data() + at, bytes);
    at += bytes;
    switch (reader.Take(bytes)) {
      case FrameReader::State::kIncomplete:
        break;
      case FrameReader::State::kComplete:
        good &= CheckFrame(reader.TakeFrame());
        break;
      case FrameReader::State::kMalformed:
        FD_CHECK(!reader.Defect().empty(), "a defect has a name");
        return false;
    }
  }
  return good && !reader.in_frame();
}

std::vector<std::string> FuzzSeeds() {
  LinkOffer offer;
  offer.proposal.size.hop_payload_bytes_max = 1 << 20;
  offer.proposal.size.reply_payload_bytes_max = 1 << 20;
  offer.proposal.epoch = kEpoch;
  offer.proposal.shape = "shape";
  offer.parameters = "parameters";
  const std::string hello = MakeHelloFrame({1, 2, 3});
  const std::string acceptance = MakeAcceptanceFrame(kEpoch, {{.homes = 2, .answer = "answer"}, "parameters"});
  return {
      hello + MakeProposalFrame(offer) + MakeReadyFrame() + MakeHeartbeatFrame(1),
      hello + acceptance + MakeReadyFrame() + MakeTextFrame(FrameKind::kFarewell, "gone"),
      hello + MakeTextFrame(FrameKind::kRefusal, "wrong secret"),
      MakeHeartbeatFrame(1) + MakeHeartbeatFrame(2),
  };
}

}  // namespace fastdecode
