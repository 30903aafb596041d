#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/tools/serve/openai_tokens.h"
#include "tools/serve/openai/chat_writer.h"

namespace fastdecode::serve {
namespace {

using nlohmann::json;
using ::testing::EndsWith;
using ::testing::StartsWith;

AnswerWriter::Head ChatHead(bool logprobs = false) {
  AnswerWriter::Head head = HeadOf(logprobs);
  head.id = "chatcmpl-9";
  return head;
}

Piece ChatPiece(const std::string& content, const std::string& reasoning = "", bool first = false) {
  Piece piece;
  piece.first = first;
  piece.text = content;
  piece.reasoning = reasoning;
  return piece;
}

std::string ChunkText(const AnswerWriter& writer, Piece piece, const Usage& so_far = {}) {
  std::string chunk;
  writer.AppendChunk(&piece, so_far, &chunk);
  return chunk;
}

json ChunkJson(const AnswerWriter& writer, const Piece& piece, const Usage& so_far = {}) {
  const std::string chunk = ChunkText(writer, piece, so_far);
  EXPECT_THAT(chunk, StartsWith("data: {"));
  EXPECT_THAT(chunk, EndsWith("}\n\n"));
  EXPECT_EQ(chunk.find('\n'), chunk.size() - 2) << "an event is one line";
  return json::parse(chunk.substr(6));
}

json DeltaOf(const AnswerWriter& writer, const Piece& piece) { return ChunkJson(writer, piece)["choices"][0]["delta"]; }

json BodyOf(const AnswerWriter& writer, std::vector<Piece> pieces, const Usage& usage = {}) {
  return json::parse(writer.Body(pieces, usage));
}

// The shapes are those of OpenAI's reference, with vLLM's stop_reason.
TEST(ChatWriterTest, AChunk) {
  const ChatWriter writer(ChatHead(), TokenBytesOf, true);
  EXPECT_EQ(
      ChunkText(writer, ChatPiece("He", "", /*first=*/true)),
      R"(data: {"id":"chatcmpl-9","object":"chat.completion.chunk","created":1767225600,"model":"tiny","choices":[)"
      R"({"index":0,"delta":{"role":"assistant","content":"He"},"logprobs":null,"finish_reason":null,)"
      R"("stop_reason":null}]})"
      "\n\n");
}

TEST(ChatWriterTest, ABody) {
  const ChatWriter writer(ChatHead(), TokenBytesOf, true);
  std::vector<Piece> pieces = {ChatPiece("Hello", "", true), ChatPiece("", "", true)};
  pieces[0].finish_reason = "stop";
  pieces[1].index = 1;
  pieces[1].finish_reason = "length";
  EXPECT_EQ(
      writer.Body(pieces, {.prompt_tokens = 9, .completion_tokens = 3, .reasoning_tokens = 2, .cached_tokens = 7}),
      R"({"id":"chatcmpl-9","object":"chat.completion","created":1767225600,"model":"tiny","choices":[)"
      R"({"index":0,"message":{"role":"assistant","content":"Hello","refusal":null},"logprobs":null,)"
      R"("finish_reason":"stop","stop_reason":null},)"
      R"({"index":1,"message":{"role":"assistant","content":"","refusal":null},"logprobs":null,)"
      R"("finish_reason":"length","stop_reason":null}],"usage":{"prompt_tokens":9,"completion_tokens":3,)"
      R"("total_tokens":12,"prompt_tokens_details":{"cached_tokens":7},)"
      R"("completion_tokens_details":{"reasoning_tokens":2}}})");
}

TEST(ChatWriterTest, ReasoningHasTwoNames) {
  const ChatWriter writer(ChatHead(), TokenBytesOf, true);
  const json both = BodyOf(writer, {ChatPiece("42", "six times \"seven\"")})["choices"][0]["message"];
  EXPECT_EQ(both, json::parse(R"({"role":"assistant","content":"42","refusal":null,)"
                              R"("reasoning":"six times \"seven\"","reasoning_content":"six times \"seven\""})"));
  const json reasoning_alone = BodyOf(writer, {ChatPiece("", "hm")})["choices"][0]["message"];
  EXPECT_EQ(reasoning_alone["content"], nullptr);
  EXPECT_EQ(reasoning_alone["reasoning"], "hm");
  EXPECT_FALSE(BodyOf(writer, {ChatPiece("a")})["choices"][0]["message"].contains("reasoning"));
}

TEST(ChatWriterTest, ReasoningMayBeLeftOut) {
  const ChatWriter writer(ChatHead(), TokenBytesOf, false);
  EXPECT_EQ(BodyOf(writer, {ChatPiece("42", "hm")})["choices"][0]["message"],
            json::parse(R"({"role":"assistant","content":"42","refusal":null})"));
  EXPECT_EQ(BodyOf(writer, {ChatPiece("", "hm")})["choices"][0]["message"]["content"], nullptr);
  EXPECT_EQ(DeltaOf(writer, ChatPiece("", "hm", true)), json::parse(R"({"role":"assistant","content":""})"));
  EXPECT_EQ(ChunkText(writer, ChatPiece("", "hm")), "");
}

TEST(ChatWriterTest, DeltasSayWhatIsNew) {
  const ChatWriter writer(ChatHead(), TokenBytesOf, true);
  EXPECT_EQ(DeltaOf(writer, ChatPiece("", "", true)), json::parse(R"({"role":"assistant","content":""})"));
  EXPECT_EQ(DeltaOf(writer, ChatPiece("", "hm", true)),
            json::parse(R"({"role":"assistant","reasoning":"hm","reasoning_content":"hm"})"));
  EXPECT_EQ(DeltaOf(writer, ChatPiece("a")), json::parse(R"({"content":"a"})"));
  EXPECT_EQ(DeltaOf(writer, ChatPiece("", "hm")), json::parse(R"({"reasoning":"hm","reasoning_content":"hm"})"));
  EXPECT_EQ(DeltaOf(writer, ChatPiece("a", "hm")),
            json::parse(R"({"content":"a","reasoning":"hm","reasoning_content":"hm"})"));
  Piece last = ChatPiece("");
  last.finish_reason = "stop";
  const json end = ChunkJson(writer, last)["choices"][0];
  EXPECT_EQ(end["delta"], json::object());
  EXPECT_EQ(end["finish_reason"], "stop");
  last.text = "the rest";
  EXPECT_EQ(DeltaOf(writer, last), json::parse(R"({"content":"the rest"})"));
}

TEST(ChatWriterTest, ATokenWithoutTextIsNoChunkUnlessItHasMoreToSay) {
  const ChatWriter writer(ChatHead(), TokenBytesOf, true);
  EXPECT_EQ(ChunkText(writer, ChatPiece("")), "");
  Piece piece = ChatPiece("");
  piece.run.Append(MadeEvent{{kHalf}, {-1}}.View());
  const json choice = ChunkJson(ChatWriter(ChatHead(true), TokenBytesOf, true), piece)["choices"][0];
  EXPECT_EQ(choice["delta"], json::object());
  EXPECT_EQ(choice["logprobs"]["content"].size(), 1u);
}

TEST(ChatWriterTest, LogprobsHaveExactBytes) {
  const ChatWriter writer(ChatHead(true), TokenBytesOf, true);
  Piece piece = ChatPiece("\u00e9", "", true);
  piece.run.Append(MadeEvent{{kE}, {-0.1f}, {{kE, -0.1f}, {kA, -2.5f}}}.View());
  EXPECT_EQ(ChunkJson(writer, piece)["choices"][0]["logprobs"].dump(),
            json::parse("{\"content\":[{\"token\":\"\u00e9\",\"bytes\":[195,169],\"logprob\":-0.1,\"top_logprobs\":["
                        "{\"token\":\"\u00e9\",\"bytes\":[195,169],\"logprob\":-0.1},"
                        "{\"token\":\"a\",\"bytes\":[97],\"logprob\":-2.5}]}],\"refusal\":null}")
                .dump());
  // Parts of characters have names of their own; what cannot be is a number all the same.
  piece.run.Clear();
  piece.run.Append(MadeEvent{{kHalf, kOtherHalf}, {-1, kNever}, {{kHalf, -1}, {-1, kNaN}}}.View());
  const json content = ChunkJson(writer, piece)["choices"][0]["logprobs"]["content"];
  EXPECT_EQ(content[0]["token"], R"(bytes:\xe2\x80)");
  EXPECT_EQ(content[0]["bytes"], json({0xe2, 0x80}));
  EXPECT_EQ(content[0]["top_logprobs"].size(), 1u);
  EXPECT_EQ(content[1]["bytes"], json::array({0x99}));
  EXPECT_EQ(content[1]["logprob"], -9999.0);
  EXPECT_EQ(content[1]["top_logprobs"], json::array());
}

TEST(ChatWriterTest, LogprobsOfAnAnswerWithoutTokens) {
  const ChatWriter writer(ChatHead(true), TokenBytesOf, true);
  EXPECT_EQ(BodyOf(writer, {ChatPiece("", "", true)})["choices"][0]["logprobs"],
            json::parse(R"({"content":[],"refusal":null})"));
  Piece last = ChatPiece("");
  last.finish_reason = "stop";
  EXPECT_EQ(ChunkJson(writer, last)["choices"][0]["logprobs"], nullptr);
}

// As vLLM has them: the prompt's beside the choices, and those of the answer in its choice.
TEST(ChatWriterTest, TokenIds) {
  AnswerWriter::Head head = ChatHead();
  head.return_token_ids = true;
  const ChatWriter writer(head, TokenBytesOf, true);
  const std::vector<int32_t> prompt = {kBos, kA};
  Piece piece = ChatPiece(" b", "", true);
  piece.prompt_ids = &prompt;
  piece.run.tokens = {kB};
  const json first = ChunkJson(writer, piece);
  EXPECT_EQ(first["prompt_token_ids"], json({kBos, kA}));
  EXPECT_EQ(first["choices"][0]["token_ids"], json::array({kB}));
  EXPECT_EQ(BodyOf(writer, {piece})["prompt_token_ids"], json({kBos, kA}));
  piece.StartNext();
  piece.finish_reason = "stop";
  const json next = ChunkJson(writer, piece);
  EXPECT_EQ(next["prompt_token_ids"], nullptr);
  EXPECT_EQ(next["choices"][0]["token_ids"], json::array());
}

TEST(ChatWriterTest, UsageIsInChunksOnlyIfAskedFor) {
  AnswerWriter::Head head = ChatHead();
  const Usage usage = {.prompt_tokens = 2, .completion_tokens = 1, .reasoning_tokens = 0};
  EXPECT_FALSE(ChunkJson(ChatWriter(head, TokenBytesOf, true), ChatPiece("a"), usage).contains("usage"));
  head.usage_in_chunks = true;
  EXPECT_EQ(ChunkJson(ChatWriter(head, TokenBytesOf, true), ChatPiece("a"), usage).at("usage"), nullptr);
  head.continuous_usage = true;
  const json expected = json::parse(R"({"prompt_tokens":2,"completion_tokens":1,"total_tokens":3,)"
                                    R"("completion_tokens_details":{"reasoning_tokens":0}})");
  const ChatWriter writer(head, TokenBytesOf, true);
  EXPECT_EQ(ChunkJson(writer, ChatPiece("a"), usage)["usage"], expected);
  std::string last;
  writer.AppendUsageChunk(usage, &last);
  EXPECT_EQ(json::parse(last.substr(6)),
            json::parse(R"({"id":"chatcmpl-9","object":"chat.completion.chunk","created":1767225600,"model":"tiny",)"
                        R"("choices":[],"usage":)" +
                        expected.dump() + "}"));
}

}  // namespace
}  // namespace fastdecode::serve
