// What `bench serve` reads out of streams, wherever reads cut them.
#include "tools/load/event_stream.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace fastdecode::load {

namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::vector<std::string> Events(const std::string& bytes, size_t part) {
  EventReader reader;
  std::vector<std::string> events;
  for (size_t i = 0; i < bytes.size(); i += part) {
    EXPECT_TRUE(
        reader.Feed(std::string_view(bytes).substr(i, part), [&](std::string_view e) { events.emplace_back(e); }));
  }
  return events;
}

CompletionChunk Read(const std::string& json) {
  CompletionChunk chunk;
  std::string problem;
  EXPECT_TRUE(ReadCompletionChunk(json, true, &chunk, &problem)) << problem;
  return chunk;
}

TEST(EventReader, IsTheSameWhereverReadsCut) {
  const std::string bytes =
      ": ping\n\ndata: {\"a\":1}\n\ndata:b\r\n\r\nevent: x\nid: 3\ndata: c\ndata:  d\n\ndatabase: e\n\nretry\ndata\n\n"
      "data: [DONE]\n\ndata: cut";
  for (size_t part = 1; part <= bytes.size(); ++part) {
    EXPECT_THAT(Events(bytes, part), ElementsAre("{\"a\":1}", "b", "c\n d", "", "[DONE]")) << part;
  }
}

TEST(EventReader, KnowsOfAPart) {
  EventReader reader;
  const auto ignore = [](std::string_view) {};
  EXPECT_FALSE(reader.HasPart());
  reader.Feed("data: a\n", ignore);
  EXPECT_TRUE(reader.HasPart());
  reader.Feed("\n", ignore);
  EXPECT_FALSE(reader.HasPart());
}

TEST(EventReader, RefusesAnEventWithoutEnd) {
  EventReader reader;
  const auto ignore = [](std::string_view) {};
  const std::string part(1 << 20, 'x');
  size_t fed = 0;
  while (fed <= 2 * EventReader::kEventBytesMax && reader.Feed(part, ignore)) fed += part.size();
  EXPECT_EQ(fed, EventReader::kEventBytesMax);
}

TEST(ReadCompletionChunk, TakesTheFirstChoice) {
  const CompletionChunk chunk = Read(
      R"({"id":"c","text":"no","choices":[{"logprobs":{"text":"no","tokens":["no"]},"index":0,"text":"a\u00e9\"\n"},)"
      R"({"index":1,"text":"no"}],"usage":null,"error":null})");
  EXPECT_TRUE(chunk.has_choices);
  EXPECT_FALSE(chunk.has_error);
  EXPECT_EQ(chunk.text, "a\xC3\xA9\"\n");
  EXPECT_EQ(chunk.output_tokens, -1);
}

TEST(ReadCompletionChunk, TakesUsage) {
  const CompletionChunk chunk = Read(
      R"({"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":3,"prompt_tokens_details":{"completion_tokens":7}}})");
  EXPECT_FALSE(chunk.has_choices);
  EXPECT_EQ(chunk.prompt_tokens, 9);
  EXPECT_EQ(chunk.output_tokens, 3);
}

TEST(ReadCompletionChunk, TakesNothingFromElsewhere) {
  const CompletionChunk chunk = Read(
      R"({"x":{"choices":[{"text":"no"}],"usage":{"completion_tokens":7},"error":"no"},"choices":{"a":{"text":"no"}},)"
      R"("usage":[{"completion_tokens":7}],"completion_tokens":7})");
  EXPECT_FALSE(chunk.has_choices);
  EXPECT_FALSE(chunk.has_error);
  EXPECT_EQ(chunk.text, "");
  EXPECT_EQ(chunk.output_tokens, -1);
}

TEST(ReadCompletionChunk, TakesErrors) {
  EXPECT_EQ(Read(R"({"error":{"code":"x","message":"it broke","inner":{"message":"no"}}})").error, "it broke");
  EXPECT_EQ(Read(R"({"error":"it broke"})").error, "it broke");
  EXPECT_TRUE(Read(R"({"error":{}})").has_error);
  EXPECT_TRUE(Read(R"({"error":true})").has_error);
}

TEST(ReadCompletionChunk, ForgetsTheLast) {
  CompletionChunk chunk;
  std::string problem;
  ReadCompletionChunk(R"({"choices":[{"text":"a"}],"usage":{"completion_tokens":3},"error":"e"})", true, &chunk,
                      &problem);
  ReadCompletionChunk("{}", true, &chunk, &problem);
  EXPECT_FALSE(chunk.has_choices || chunk.has_error);
  EXPECT_THAT(chunk.text + chunk.error, IsEmpty());
  EXPECT_EQ(chunk.output_tokens, -1);
}

TEST(ReadCompletionChunk, RefusesWhatIsNoObject) {
  for (const char* json :
       {"", "[]", "3", "\"a\"", "{", "{}x", "{\"a\":\x01}", "{\"a\":\"\xff\"}", "[DONE]", "{'a':1}"}) {
    CompletionChunk chunk;
    std::string problem;
    EXPECT_FALSE(ReadCompletionChunk(json, true, &chunk, &problem)) << json;
    EXPECT_NE(problem, "") << json;
  }
}

}  // namespace

}  // namespace fastdecode::load
