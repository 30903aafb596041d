#include <cmath>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/tools/serve/openai_tokens.h"

namespace fastdecode::serve {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

Piece PieceOf(const std::string& text, std::vector<int32_t> tokens = {}) {
  Piece piece;
  piece.text = text;
  piece.run.tokens = std::move(tokens);
  return piece;
}

std::string ChunkOf(const CompletionWriter& writer, Piece piece, const Usage& so_far = {}) {
  std::string chunk;
  writer.AppendChunk(&piece, so_far, &chunk);
  return chunk;
}

// The JSON of one event, which must be all there is.
json ParseEvent(const std::string& event) {
  EXPECT_THAT(event, StartsWith("data: {"));
  EXPECT_THAT(event, EndsWith("}\n\n"));
  EXPECT_EQ(event.find('\n'), event.size() - 2) << "an event is one line";
  return json::parse(event.substr(6));
}

TEST(CompletionWriterTest, AChunk) {
  const CompletionWriter writer(HeadOf(false), TokenBytesOf);
  EXPECT_EQ(ChunkOf(writer, PieceOf(" b", {kB})),
            R"(data: {"id":"cmpl-7","object":"text_completion","created":1767225600,"model":"tiny","choices":[)"
            R"({"index":0,"text":" b","logprobs":null,"finish_reason":null,"stop_reason":null}]})"
            "\n\n");
}

TEST(CompletionWriterTest, ChunksFollowEachOther) {
  const CompletionWriter writer(HeadOf(false), TokenBytesOf);
  std::string stream;
  Piece piece = PieceOf("a");
  writer.AppendChunk(&piece, {}, &stream);
  piece.text = "b";
  piece.index = 3;
  piece.finish_reason = "length";
  writer.AppendChunk(&piece, {}, &stream);
  writer.AppendUsageChunk({9, 3}, &stream);
  CompletionWriter::AppendDone(&stream);
  EXPECT_EQ(stream,
            R"(data: {"id":"cmpl-7","object":"text_completion","created":1767225600,"model":"tiny","choices":[)"
            R"({"index":0,"text":"a","logprobs":null,"finish_reason":null,"stop_reason":null}]})"
            "\n\n"
            R"(data: {"id":"cmpl-7","object":"text_completion","created":1767225600,"model":"tiny","choices":[)"
            R"({"index":3,"text":"b","logprobs":null,"finish_reason":"length","stop_reason":null}]})"
            "\n\n"
            R"(data: {"id":"cmpl-7","object":"text_completion","created":1767225600,"model":"tiny","choices":[],)"
            R"("usage":{"prompt_tokens":9,"completion_tokens":3,"total_tokens":12}})"
            "\n\n"
            "data: [DONE]\n\n");
}

// What is not streamed: the answer to "a" with echo, as lm-eval asks for it.
TEST(CompletionWriterTest, ABodyWithEchoAndLogprobs) {
  const CompletionWriter writer(HeadOf(true), TokenBytesOf);
  std::vector<Piece> pieces = {PieceOf("a b")};
  pieces[0].finish_reason = "length";
  pieces[0].run.Append(MadeEvent{{kA}, {kNaN}, {{-1, kNaN}}}.View());
  pieces[0].run.Append(MadeEvent{{kB}, {-0.5f}, {{kB, -0.5f}}}.View());
  EXPECT_EQ(writer.Body(pieces, {1, 1}),
            R"({"id":"cmpl-7","object":"text_completion","created":1767225600,"model":"tiny","choices":[)"
            R"({"index":0,"text":"a b","logprobs":{"tokens":["a"," b"],"text_offset":[0,1],)"
            R"("token_logprobs":[null,-0.5],"top_logprobs":[null,{" b":-0.5}]},)"
            R"("finish_reason":"length","stop_reason":null}],)"
            R"("usage":{"prompt_tokens":1,"completion_tokens":1,"total_tokens":2}})");
}

TEST(CompletionWriterTest, ABodyHasAllChoices) {
  const CompletionWriter writer(HeadOf(false), TokenBytesOf);
  std::vector<Piece> pieces = {PieceOf("a"), PieceOf("b"), PieceOf("")};
  for (uint32_t i = 0; i < 3; ++i) pieces[i].index = i;
  pieces[1].finish_reason = "stop";
  pieces[2].finish_reason = "length";
  const json body = json::parse(writer.Body(pieces, {5, 7}));
  ASSERT_EQ(body["choices"].size(), 3u);
  EXPECT_EQ(body["choices"][1], json::parse(R"({"index":1,"text":"b","logprobs":null,"finish_reason":"stop",)"
                                            R"("stop_reason":null})"));
  EXPECT_EQ(body["choices"][2]["text"], "");
  EXPECT_EQ(body["usage"]["total_tokens"], 12);
}

TEST(CompletionWriterTest, StopReasons) {
  const CompletionWriter writer(HeadOf(false), TokenBytesOf);
  const auto reason = [&](const Piece& piece) {
    return ParseEvent(ChunkOf(writer, piece))["choices"][0]["stop_reason"];
  };
  Piece piece;
  piece.finish_reason = "stop";
  EXPECT_EQ(reason(piece), nullptr);
  piece.stop_token = 0;
  EXPECT_EQ(reason(piece), 0);
  piece.stop_token = -1;
  piece.stop_string = "\n\"END\"";
  EXPECT_EQ(reason(piece), "\n\"END\"");
  piece.stop_string.clear();
  piece.finish_reason = "length";
  piece.deadline = true;
  EXPECT_EQ(reason(piece), "deadline");
}

TEST(CompletionWriterTest, UsageIsInChunksOnlyIfAskedFor) {
  CompletionWriter::Head head = HeadOf(false);
  EXPECT_FALSE(ParseEvent(ChunkOf(CompletionWriter(head, TokenBytesOf), PieceOf("a"), {2, 1})).contains("usage"));
  head.usage_in_chunks = true;
  const json with_null = ParseEvent(ChunkOf(CompletionWriter(head, TokenBytesOf), PieceOf("a"), {2, 1}));
  ASSERT_TRUE(with_null.contains("usage"));
  EXPECT_EQ(with_null["usage"], nullptr);
  head.continuous_usage = true;
  EXPECT_EQ(ParseEvent(ChunkOf(CompletionWriter(head, TokenBytesOf), PieceOf("a"), {2, 1}))["usage"],
            json::parse(R"({"prompt_tokens":2,"completion_tokens":1,"total_tokens":3})"));
}

TEST(CompletionWriterTest, UsageSaysWhatOthersHadComputedOnceItIsKnown) {
  const CompletionWriter writer(HeadOf(false), TokenBytesOf);
  Usage usage = {.prompt_tokens = 5, .completion_tokens = 1};
  std::vector<Piece> pieces = {PieceOf("a")};
  EXPECT_FALSE(json::parse(writer.Body(pieces, usage))["usage"].contains("prompt_tokens_details"));
  for (const uint64_t cached : {0u, 4u}) {
    usage.cached_tokens = cached;
    EXPECT_EQ(json::parse(writer.Body(pieces, usage))["usage"],
              json({{"prompt_tokens", 5},
                    {"completion_tokens", 1},
                    {"total_tokens", 6},
                    {"prompt_tokens_details", {{"cached_tokens", cached}}}}));
  }
}

TEST(CompletionWriterTest, TokenIdsAreTheAnswers) {
  CompletionWriter::Head head = HeadOf(false);
  head.return_token_ids = true;
  const CompletionWriter writer(head, TokenBytesOf);
  const std::vector<int32_t> prompt = {kBos, kA};
  Piece piece = PieceOf("<s>a b", {kBos, kA, kB});
  piece.echoed_tokens = 2;
  piece.prompt_ids = &prompt;
  const json first = ParseEvent(ChunkOf(writer, piece))["choices"][0];
  EXPECT_EQ(first["prompt_token_ids"], json({kBos, kA}));
  EXPECT_EQ(first["token_ids"], json::array({kB}));
  const json next = ParseEvent(ChunkOf(writer, PieceOf("", {kHalf, kOtherHalf})))["choices"][0];
  EXPECT_EQ(next["prompt_token_ids"], nullptr);
  EXPECT_EQ(next["token_ids"], json({kHalf, kOtherHalf}));
  EXPECT_EQ(ParseEvent(ChunkOf(writer, PieceOf("")))["choices"][0]["token_ids"], json::array());
  EXPECT_FALSE(
      ParseEvent(ChunkOf(CompletionWriter(HeadOf(false), TokenBytesOf), piece))["choices"][0].contains("token_ids"));
}

TEST(CompletionWriterTest, AnErrorInAStreamIsAnObject) {
  ApiError error;
  error.status = 500;
  error.message = "home b:7471/1\nwas lost";
  error.type = "server_error";
  error.code = "home_lost";
  std::string event;
  CompletionWriter::AppendError(error, &event);
  EXPECT_EQ(ParseEvent(event),
            json::parse(R"({"error":{"message":"home b:7471/1\nwas lost","type":"server_error","param":null,)"
                        R"("code":"home_lost"}})"));
}

// No text can end an event, break a line, or leave the string that it is in.
TEST(CompletionWriterTest, TextsStayInTheirStrings) {
  CompletionWriter::Head head = HeadOf(false);
  head.model = "a\"}\n\ndata: [DONE]\n\n";
  head.id = "x\"\\";
  const CompletionWriter writer(head, TokenBytesOf);
  const std::string text = "\"}]}\r\n\r\ndata: [DONE]\n\n\u2028\u0085\\";
  Piece piece = PieceOf(text);
  piece.stop_string = text;
  const std::string chunk = ChunkOf(writer, piece);
  EXPECT_THAT(chunk, Not(HasSubstr("\r")));
  EXPECT_THAT(chunk, Not(HasSubstr("\u2028")));
  EXPECT_THAT(chunk, Not(HasSubstr("\u0085")));
  const json event = ParseEvent(chunk);
  EXPECT_EQ(event["id"], head.id);
  EXPECT_EQ(event["model"], head.model);
  EXPECT_EQ(event["choices"][0]["text"], text);
  EXPECT_EQ(event["choices"][0]["stop_reason"], text);
}

TEST(TokenRunTest, EventsAddUp) {
  TokenRun run;
  run.Append(MadeEvent{{kA, kB}, {-1, -2}, {{kA, -1}, {kB, -3}, {kB, -2}, {-1, kNaN}}}.View());
  run.Append(MadeEvent{{kE}, {-4}, {{kE, -4}, {kA, -5}}}.View());
  run.Append(MadeEvent{{}}.View());
  EXPECT_THAT(run.tokens, ElementsAre(kA, kB, kE));
  EXPECT_THAT(run.logprobs, ElementsAre(-1, -2, -4));
  EXPECT_EQ(run.top_count, 2u);
  std::vector<int32_t> top;
  for (const fd_token_logprob& one : run.top) top.push_back(one.token);
  EXPECT_THAT(top, ElementsAre(kA, kB, kB, -1, kE, kA));
  run.Clear();
  EXPECT_TRUE(run.tokens.empty() && run.logprobs.empty() && run.top.empty());
  run.Append(MadeEvent{{kA}, {-1}, {{kA, -1}}}.View());
  EXPECT_EQ(run.top_count, 1u);
}

// The prompt's part may have logprobs that the answer has not, and the other way round.
TEST(TokenRunTest, WhatIsNotKnownIsNone) {
  TokenRun run;
  run.Append(MadeEvent{{kA, kB}, {-1, -2}}.View());
  run.Append(MadeEvent{{kE}}.View());
  ASSERT_EQ(run.logprobs.size(), 3u);
  EXPECT_TRUE(std::isnan(run.logprobs[2]));
  run.Append(MadeEvent{{kA}, {-4}, {{kA, -4}}}.View());
  EXPECT_EQ(run.logprobs[3], -4);
  EXPECT_EQ(run.top_count, 0u);
  EXPECT_TRUE(run.top.empty());

  TokenRun late;
  late.Append(MadeEvent{{kA}}.View());
  EXPECT_TRUE(late.logprobs.empty());
  late.Append(MadeEvent{{kB}, {-2}}.View());
  ASSERT_EQ(late.logprobs.size(), 2u);
  EXPECT_TRUE(std::isnan(late.logprobs[0]));
  EXPECT_EQ(late.logprobs[1], -2);

  TokenRun wide;
  wide.Append(MadeEvent{{kA}, {-1}, {{kA, -1}, {kB, -2}}}.View());
  wide.Append(MadeEvent{{kB}, {-2}, {{kB, -2}}}.View());
  wide.Append(MadeEvent{{kB}, {-2}, {{kB, -2}, {kA, -3}, {kE, -4}}}.View());
  std::vector<int32_t> top;
  for (const fd_token_logprob& one : wide.top) top.push_back(one.token);
  EXPECT_THAT(top, ElementsAre(kA, kB, kB, -1, kB, kA));
}

}  // namespace
}  // namespace fastdecode::serve
