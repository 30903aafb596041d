#include "rdma/tcp/frames.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "rdma/tcp/frame_reader.h"

namespace fastdecode {
namespace {

LinkOffer Offer() {
  LinkOffer offer;
  offer.proposal.size = {.slots = 3,
                         .hop_payload_bytes_max = 100,
                         .reply_payload_bytes_max = 200,
                         .control_ring_bytes = 8192,
                         .bulk_segments = 4,
                         .bulk_segment_bytes_max = 300};
  offer.proposal.epoch = 77;
  offer.proposal.peer = {.engine_id = 0x1234567890, .role = 1};
  offer.proposal.home_index = 5;
  offer.proposal.shape = std::string("shape\0with a zero", 17);
  offer.parameters = std::string(kHandshakeBlobBytesMax, 'p');
  return offer;
}

// What the reader makes of a stream that comes in pieces of this size: its first frame, or what is wrong.
std::string ReadFirst(const std::string& stream, size_t piece, Side self = Side::kWorker) {
  FrameReader reader(self);
  size_t at = 0;
  while (at < stream.size()) {
    const size_t bytes = std::min({piece, reader.space_bytes(), stream.size() - at});
    std::memcpy(reader.space(), stream.data() + at, bytes);
    at += bytes;
    switch (reader.Take(bytes)) {
      case FrameReader::State::kIncomplete:
        EXPECT_TRUE(reader.in_frame());
        break;
      case FrameReader::State::kComplete:
        return reader.TakeFrame();
      case FrameReader::State::kMalformed:
        EXPECT_EQ(at, std::min(stream.size(), sizeof(FramePrefix))) << "known from the prefix on";
        return reader.Defect();
    }
  }
  return "incomplete";
}

template <class Field>
std::string With(std::string frame, size_t offset, Field value) {
  std::memcpy(frame.data() + offset, &value, sizeof(value));
  return frame;
}

TEST(FrameReaderTest, PutsFramesTogetherFromPieces) {
  const std::string frames[] = {
      MakeHelloFrame({1, 2, 3}), MakeProposalFrame(Offer()), MakeAcceptanceFrame(1, {{.homes = 2, .answer = "a"}, "p"}),
      MakeReadyFrame(),          MakeHeartbeatFrame(9),      MakeTextFrame(FrameKind::kFarewell, "bye")};
  for (const std::string& frame : frames) {
    for (const size_t piece : {1, 7, 23, 24, 25, 4096}) {
      EXPECT_EQ(ReadFirst(frame + "more", piece), frame);
    }
    EXPECT_EQ(ReadFirst(frame.substr(0, frame.size() - 1), 10), "incomplete");
    EXPECT_EQ(frame.size(), FrameBytes(KindOf(frame)));
  }
}

TEST(FrameReaderTest, SaysWhatIsWrong) {
  const std::string hello = MakeHelloFrame({});
  EXPECT_EQ(ReadFirst("GET / HTTP/1.1\r\nHost: worker\r\n", 100),
            "what was sent is nothing that a FastDecode engine sends");
  EXPECT_EQ(ReadFirst(With(hello, 8, uint32_t{9}), 1), "this worker speaks protocol version 8, the engine version 9");
  EXPECT_EQ(ReadFirst(With(hello, 8, uint32_t{0}), 1, Side::kEngine),
            "this engine speaks protocol version 8, the worker version 0");
  EXPECT_EQ(ReadFirst(With(hello, 12, uint32_t{8}), 1), "malformed frame: kind 8 does not exist");
  EXPECT_EQ(ReadFirst(With(hello, 12, uint32_t{0}), 1), "malformed frame: kind 0 does not exist");
  EXPECT_EQ(ReadFirst(With(hello, 16, uint32_t{57}), 1), "malformed frame: hello of 57 bytes, where it has 56");
  EXPECT_EQ(ReadFirst(With(hello, 16, ~uint32_t{0}), 1), "malformed frame: hello of 4294967295 bytes, where it has 56");
  EXPECT_EQ(ReadFirst(With(hello, 16, uint32_t{0}), 1), "malformed frame: hello of 0 bytes, where it has 56");
}

TEST(FrameReaderTest, ARefusalIsUnderstoodFromEveryVersion) {
  const std::string refusal = With(MakeTextFrame(FrameKind::kRefusal, "too old"), 8, uint32_t{17});
  EXPECT_EQ(ReadFirst(refusal, 100), refusal);
  EXPECT_EQ(ParseTextFrame(refusal), "too old");
}

TEST(FramesTest, AnOfferSurvivesTheWire) {
  const absl::StatusOr<LinkOffer> read = ParseProposalFrame(MakeProposalFrame(Offer()));
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->proposal.size.slots, 3);
  EXPECT_EQ(read->proposal.size.hop_payload_bytes_max, 100u);
  EXPECT_EQ(read->proposal.size.reply_payload_bytes_max, 200u);
  EXPECT_EQ(read->proposal.size.control_ring_bytes, 8192u);
  EXPECT_EQ(read->proposal.size.bulk_segments, 4);
  EXPECT_EQ(read->proposal.size.bulk_segment_bytes_max, 300u);
  EXPECT_EQ(read->proposal.epoch, 77u);
  EXPECT_EQ(read->proposal.peer.engine_id, 0x1234567890u);
  EXPECT_EQ(read->proposal.peer.role, 1u);
  EXPECT_EQ(read->proposal.home_index, 5u);
  EXPECT_EQ(read->proposal.shape, std::string("shape\0with a zero", 17));
  EXPECT_EQ(read->parameters, std::string(512, 'p'));
}

TEST(FramesTest, OffersThatCannotBe) {
  const std::string good = MakeProposalFrame(Offer());
  const auto error = [&](size_t offset, auto value) {
    return std::string(ParseProposalFrame(With(good, offset, value)).status().message());
  };
  EXPECT_EQ(error(offsetof(ProposalFrame, hop_header_bytes), uint16_t{40}),
            "header sizes differ: worker 32 and 48 bytes, engine 40 and 48");
  EXPECT_EQ(error(offsetof(ProposalFrame, reply_header_bytes), uint16_t{0}),
            "header sizes differ: worker 32 and 48 bytes, engine 32 and 0");
  EXPECT_EQ(error(offsetof(ProposalFrame, shape_bytes), uint32_t{513}), "link shape: 513 bytes are more than 512");
  EXPECT_EQ(error(offsetof(ProposalFrame, parameters_bytes), ~uint32_t{0}),
            "provider parameters: 4294967295 bytes are more than 512");
  EXPECT_EQ(error(offsetof(ProposalFrame, slots), ~uint32_t{0}), "link slots: -1 is not 1 to 16");
  EXPECT_EQ(error(offsetof(ProposalFrame, slots), uint32_t{0}), "link slots: 0 is not 1 to 16");
  EXPECT_NE(error(offsetof(ProposalFrame, hop_payload_bytes_max), ~uint64_t{0}).find("is more than"),
            std::string::npos);
  EXPECT_NE(error(offsetof(ProposalFrame, control_ring_bytes), uint64_t{0}).find("not a power of two"),
            std::string::npos);
  EXPECT_EQ(error(offsetof(ProposalFrame, bulk_segments), ~uint32_t{0}), "link bulk segments: -1 is not 0 to 256");
  EXPECT_EQ(error(offsetof(ProposalFrame, bulk_segment_bytes_max), uint32_t{262145}),
            "link bulk segment: 262145 bytes is not 1 to 262144");
  EXPECT_EQ(error(offsetof(ProposalFrame, bulk_segments), uint32_t{0}),
            "link bulk segment: 300 bytes is not 0, where there is no bulk channel");
}

TEST(FramesTest, AnAnswerSurvivesTheWire) {
  const std::string good = MakeAcceptanceFrame(77, {{.homes = 3, .answer = "described"}, std::string(512, 'q')});
  const absl::StatusOr<LinkAnswer> read = ParseAcceptanceFrame(good, 77);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->acceptance.homes, 3u);
  EXPECT_EQ(read->acceptance.answer, "described");
  EXPECT_EQ(read->parameters, std::string(512, 'q'));

  const auto error = [&](size_t offset, auto value) {
    return std::string(ParseAcceptanceFrame(With(good, offset, value), 77).status().message());
  };
  EXPECT_EQ(error(offsetof(AcceptanceFrame, epoch), uint64_t{78}), "epoch: 78, where 77 was proposed");
  EXPECT_EQ(error(offsetof(AcceptanceFrame, homes), uint32_t{0}), "homes: 0 is not 1 to 1024");
  EXPECT_EQ(error(offsetof(AcceptanceFrame, homes), uint32_t{1025}), "homes: 1025 is not 1 to 1024");
  EXPECT_EQ(error(offsetof(AcceptanceFrame, answer_bytes), uint32_t{513}), "answer: 513 bytes are more than 512");
  EXPECT_EQ(error(offsetof(AcceptanceFrame, parameters_bytes), uint32_t{513}),
            "provider parameters: 513 bytes are more than 512");
}

TEST(FramesTest, TextIsCutAndDefused) {
  EXPECT_EQ(ParseTextFrame(MakeTextFrame(FrameKind::kRefusal, "\x1b[2Jboo\n\x7f\xc3\xa9")), "?[2Jboo??\xc3\xa9");
  EXPECT_EQ(ParseTextFrame(MakeTextFrame(FrameKind::kRefusal, "")), "(no reason given)");
  EXPECT_EQ(ParseTextFrame(MakeTextFrame(FrameKind::kRefusal, std::string(1000, 'x'))), std::string(508, 'x'));
  const std::string lies = With(MakeTextFrame(FrameKind::kRefusal, std::string(508, 'x')), 24, ~uint32_t{0});
  EXPECT_EQ(ParseTextFrame(lies), std::string(508, 'x'));
  EXPECT_EQ(ParseHeartbeatFrame(MakeHeartbeatFrame(1ull << 40)), 1ull << 40);
}

}  // namespace
}  // namespace fastdecode
