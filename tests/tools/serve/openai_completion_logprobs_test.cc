#include <algorithm>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/tools/serve/openai_tokens.h"
#include "tools/serve/openai/utf8.h"

namespace fastdecode::serve {
namespace {

using nlohmann::json;

// The logprobs object of one piece.
json LogprobsOf(const MadeEvent& event, size_t text_offset = 0) {
  const CompletionWriter writer(HeadOf(true), TokenBytesOf);
  Piece piece;
  piece.text_offset = text_offset;
  piece.run.Append(event.View());
  return json::parse(writer.Body({&piece, 1}, {}))["choices"][0]["logprobs"];
}

TEST(LogprobsTest, WithoutTheMostLikelyThereIsTheChosenToken) {
  EXPECT_EQ(LogprobsOf({{kA, kB}, {-0.25f, 0}}),
            json::parse(R"({"tokens":["a"," b"],"text_offset":[0,1],"token_logprobs":[-0.25,0.0],)"
                        R"("top_logprobs":[{"a":-0.25},{" b":0.0}]})"));
}

TEST(LogprobsTest, APieceWithoutTokensHasEmptyLists) {
  EXPECT_EQ(LogprobsOf({{}}), json::parse(R"({"tokens":[],"text_offset":[],"token_logprobs":[],"top_logprobs":[]})"));
}

TEST(LogprobsTest, TheFirstTokenOfAPromptHasNone) {
  EXPECT_EQ(LogprobsOf({{kBos, kA}, {kNaN, -1}, {{-1, kNaN}, {-1, kNaN}, {kB, -0.5f}, {kA, -1}}}),
            json::parse(R"({"tokens":["<s>","a"],"text_offset":[0,3],"token_logprobs":[null,-1.0],)"
                        R"("top_logprobs":[null,{" b":-0.5,"a":-1.0}]})"));
}

TEST(LogprobsTest, TheChosenTokenIsAlwaysAmongTheMostLikely) {
  const json got = LogprobsOf({{kE}, {-7}, {{kA, -0.5f}, {kB, -1}}});
  EXPECT_EQ(got["top_logprobs"], json::parse("[{\"a\":-0.5,\" b\":-1.0,\"\u00e9\":-7.0}]"));
}

TEST(LogprobsTest, PlacesWithoutATokenAreLeftOut) {
  EXPECT_EQ(LogprobsOf({{kA}, {-1}, {{kA, -1}, {-1, kNaN}, {-1, kNaN}}})["top_logprobs"],
            json::parse(R"([{"a":-1.0}])"));
}

TEST(LogprobsTest, PartsOfCharactersHaveNamesOfTheirOwn) {
  const json got = LogprobsOf({{kHalf, kOtherHalf, kMixed, kThird},
                               {-1, -2, -3, -4},
                               {{kHalf, -1},
                                {kThird, -2},
                                {kOtherHalf, -2},
                                {kHalf, -3},
                                {kMixed, -3},
                                {kHalf, -9},
                                {kThird, -4},
                                {kMixed, -5}}});
  EXPECT_EQ(got["tokens"], json({R"(bytes:\xe2\x80)", R"(bytes:\x99)", R"(bytes:x\x5c\xe2y)", R"(bytes:\xe2)"}));
  EXPECT_EQ(got["top_logprobs"][0], json::parse(R"({"bytes:\\xe2\\x80":-1.0,"bytes:\\xe2":-2.0})"));
  // A character counts where its first byte is.
  EXPECT_EQ(got["text_offset"], json({0, 1, 1, 5}));
}

TEST(LogprobsTest, OfTwoTokensWithOneTextTheMoreLikelyCounts) {
  EXPECT_EQ(LogprobsOf({{kSameToo}, {-2}, {{kSame, -1}, {kSameToo, -2}, {kA, -3}}})["top_logprobs"][0],
            json::parse(R"({"same":-1.0,"a":-3.0})"));
  EXPECT_EQ(LogprobsOf({{kSameToo}, {-9}, {{kSame, -1}, {kA, -3}}})["top_logprobs"][0],
            json::parse(R"({"same":-1.0,"a":-3.0})"));
}

TEST(LogprobsTest, OffsetsGoOnFromPieceToPiece) {
  const CompletionWriter writer(HeadOf(true), TokenBytesOf);
  Piece piece;
  std::string chunk;
  const auto offsets_of = [&](const MadeEvent& event) {
    piece.run.Clear();
    piece.run.Append(event.View());
    chunk.clear();
    writer.AppendChunk(&piece, {}, &chunk);
    return json::parse(chunk.substr(6))["choices"][0]["logprobs"]["text_offset"];
  };
  EXPECT_EQ(offsets_of({{kBos, kSmile}, {-1, -1}}), json({0, 3}));
  EXPECT_EQ(piece.text_offset, 4u);
  EXPECT_EQ(offsets_of({{kB, kEmpty, kE}, {-1, -1, -1}}), json({4, 6, 6}));
  EXPECT_EQ(offsets_of({{kA}, {-1}}), json::array({7}));
  EXPECT_EQ(piece.text_offset, 8u);
}

TEST(LogprobsTest, WhatCannotBeIsANumberAllTheSame) {
  const json got = LogprobsOf({{kA}, {kNever}, {{kB, 0}, {kA, kNever}}});
  EXPECT_EQ(got["token_logprobs"], json::array({-9999.0}));
  EXPECT_EQ(got["top_logprobs"][0], json::parse(R"({" b":0.0,"a":-9999.0})"));
}

TEST(LogprobsTest, ThereIsNoObjectUnlessAskedFor) {
  const CompletionWriter writer(HeadOf(false), [](int32_t) -> std::string {
    ADD_FAILURE() << "nobody asked for a token's text";
    return "";
  });
  Piece piece;
  piece.run.Append(MadeEvent{{kA}, {-1}}.View());
  EXPECT_EQ(json::parse(writer.Body({&piece, 1}, {}))["choices"][0]["logprobs"], nullptr);
}

// Random tokens and logprobs: lists of one length, offsets by the texts, floats that read back as themselves, and the
// chosen token's value equal to the greatest if it is the most likely one, as lm-eval finds out what is greedy.
TEST(LogprobsTest, RandomOnesKeepTheirPromises) {
  std::mt19937_64 random(55);
  for (int round = 0; round < 2000; ++round) {
    const size_t count = random() % 5;
    const size_t top_count = random() % 6;
    MadeEvent event;
    for (size_t i = 0; i < count; ++i) {
      std::vector<fd_token_logprob> top;
      std::set<int32_t> seen;
      while (top.size() < top_count) {
        const auto token = static_cast<int32_t>(random() % (kSmile + 1));
        if (!seen.insert(token).second) continue;
        top.push_back({token, -static_cast<float>(random() % 1'000'000) / 98'765.0f});
      }
      std::sort(top.begin(), top.end(), [](const auto& a, const auto& b) { return a.logprob > b.logprob; });
      const bool from_top = !top.empty() && random() % 2 == 0;
      event.tokens.push_back(from_top ? top[random() % top.size()].token : static_cast<int32_t>(kA));
      float logprob = -11.5f;
      for (const fd_token_logprob& one : top) {
        if (one.token == event.tokens.back()) logprob = one.logprob;
      }
      event.logprobs.push_back(logprob);
      event.top.insert(event.top.end(), top.begin(), top.end());
    }
    const json got = LogprobsOf(event, 100);
    size_t offset = 100;
    for (const char* list : {"tokens", "text_offset", "token_logprobs", "top_logprobs"}) {
      ASSERT_EQ(got[list].size(), count) << list;
    }
    for (size_t i = 0; i < count; ++i) {
      const std::string bytes = TokenBytesOf(event.tokens[i]);
      const std::string name = got["tokens"][i];
      if (IsUtf8(bytes)) {
        ASSERT_EQ(name, bytes);
      } else {
        ASSERT_TRUE(name.starts_with("bytes:"));
      }
      ASSERT_EQ(got["text_offset"][i], offset);
      offset += CountCharacters(bytes);
      const auto logprob = got["token_logprobs"][i].get<double>();
      ASSERT_EQ(static_cast<float>(logprob), event.logprobs[i]);
      const json& top = got["top_logprobs"][i];
      ASSERT_TRUE(top.contains(name));
      double greatest = -1e9;
      for (const auto& [key, value] : top.items()) greatest = std::max(greatest, value.get<double>());
      const bool greedy = top_count == 0 || event.logprobs[i] >= event.top[i * top_count].logprob;
      ASSERT_EQ(logprob == greatest, greedy) << got.dump();
      ASSERT_GE(top.size(), std::max<size_t>(top_count, 2) - 1) << "two tokens at most have one text";
    }
  }
}

}  // namespace
}  // namespace fastdecode::serve
