#include "engine/text/tiktoken_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string_view>
#include <tuple>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/text/byte_alphabet.h"
#include "engine/text/token_splits.h"

namespace fastdecode {
namespace {

using absl::StatusCode;
using nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

using Triple = std::tuple<int, int, int>;

std::vector<Triple> Triples(const std::vector<BpeMerge>& merges) {
  std::vector<Triple> triples;
  for (const BpeMerge& merge : merges) triples.emplace_back(merge.left, merge.right, merge.merged);
  return triples;
}

TEST(TokenSplits, AreAllPairsOfTokensInOrder) {
  const std::string_view tokens[] = {"a", "b", "ab", "aba", "ba", "", "abab", "c"};
  const auto splits = FindTokenSplits(tokens, 100);
  ASSERT_TRUE(splits.has_value());
  EXPECT_THAT(Triples(*splits), ElementsAre(Triple(0, 1, 2), Triple(0, 4, 3), Triple(2, 0, 3), Triple(1, 0, 4),
                                            Triple(2, 2, 6), Triple(3, 1, 6)));
}

TEST(TokenSplits, AreNoneIfThereAreTooMany) {
  const std::string_view tokens[] = {"a", "aa", "aaa"};
  EXPECT_EQ(FindTokenSplits(tokens, 3)->size(), 3u);
  EXPECT_FALSE(FindTokenSplits(tokens, 2).has_value());
  EXPECT_THAT(*FindTokenSplits({}, 0), IsEmpty());
}

TEST(TokenSplits, AreWhatTryingEverySplitFinds) {
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    std::set<std::string> distinct;
    for (int i = 0; i < 30; ++i) {
      std::string token;
      for (size_t left = random() % 7; left > 0; --left) token.push_back("ab\0\xff"[random() % 4]);
      distinct.insert(token);
    }
    std::vector<std::string_view> tokens(distinct.begin(), distinct.end());
    for (size_t i = tokens.size(); i > 1; --i) std::swap(tokens[i - 1], tokens[random() % i]);
    std::vector<Triple> expected;
    for (size_t merged = 0; merged < tokens.size(); ++merged) {
      for (size_t left = 0; left < tokens.size(); ++left) {
        for (size_t right = 0; right < tokens.size(); ++right) {
          if (tokens[left].empty() || tokens[right].empty()) continue;
          if (absl::StrCat(std::string(tokens[left]), std::string(tokens[right])) != std::string(tokens[merged]))
            continue;
          expected.emplace_back(left, right, merged);
        }
      }
    }
    EXPECT_EQ(Triples(*FindTokenSplits(tokens, 1000)), expected);
  }
}

std::string RankText(const std::string& token, int rank) {
  return absl::StrCat(absl::Base64Escape(token), " ", rank, "\n");
}

// All bytes, with 'a' and 'b' as the first two, then "ab", "ba" and "aba".
std::string SmallRanks() {
  std::string text = absl::StrCat(RankText("a", 0), RankText("b", 1));
  int rank = 2;
  for (int byte = 0; byte < 256; ++byte) {
    if (byte != 'a' && byte != 'b') absl::StrAppend(&text, RankText(std::string(1, static_cast<char>(byte)), rank++));
  }
  return absl::StrCat(text, RankText("ab", 256), RankText("ba", 257), RankText("aba", 258));
}

TiktokenKind SmallKind() {
  TiktokenKind kind;
  kind.pattern = "\\w+|\\s";
  kind.special_tokens = {{300, "<x>"}, {259, "<y>"}};
  kind.bos_id = 300;
  kind.eos_id = 259;
  kind.add_bos = true;
  return kind;
}

TokenizerSpec ParseRanks(const std::string& text) {
  absl::StatusOr<TokenizerSpec> spec = ParseTiktokenRanks(text, "DIR/x.tiktoken", SmallKind());
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.ok() ? *std::move(spec) : TokenizerSpec();
}

void ExpectRanksRefused(const std::string& text, const std::string& message) {
  SCOPED_TRACE(message);
  const auto spec = ParseTiktokenRanks(text, "DIR/x.tiktoken", SmallKind());
  ASSERT_FALSE(spec.ok());
  EXPECT_EQ(spec.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(spec.status().message()), absl::StrCat("DIR/x.tiktoken: ", message));
}

TEST(TiktokenRanks, MergesAreAllSplitsByRanks) {
  const TokenizerSpec spec = ParseRanks(SmallRanks());
  EXPECT_EQ(spec.file, "DIR/x.tiktoken");
  EXPECT_THAT(Triples(spec.merges),
              ElementsAre(Triple(0, 1, 256), Triple(1, 0, 257), Triple(0, 257, 258), Triple(256, 0, 258)));
  EXPECT_TRUE(spec.ignore_merges);
  EXPECT_FALSE(spec.byte_fallback || spec.unknown_id.has_value());
  ASSERT_THAT(spec.vocab, SizeIs(259));
  EXPECT_EQ(spec.vocab[0].key, "a");
  EXPECT_EQ(spec.vocab[2].key, ByteLevelCharacter(0));
  EXPECT_EQ(spec.vocab[258].key, "aba");
  EXPECT_EQ(spec.vocab[258].id, 258);
}

TEST(TiktokenRanks, PipelineSplitsAndSpellsBytes) {
  const TokenizerSpec spec = ParseRanks(SmallRanks());
  EXPECT_THAT(spec.normalizer, IsEmpty());
  ASSERT_THAT(spec.pre_tokenizer, SizeIs(2));
  EXPECT_EQ(spec.pre_tokenizer[0].kind, PreTokenizerStep::Kind::kSplit);
  EXPECT_EQ(spec.pre_tokenizer[0].pattern.pattern, "\\w+|\\s");
  EXPECT_FALSE(spec.pre_tokenizer[0].pattern.is_literal || spec.pre_tokenizer[0].invert);
  EXPECT_EQ(spec.pre_tokenizer[0].behavior, SplitBehavior::kIsolated);
  EXPECT_EQ(spec.pre_tokenizer[1].kind, PreTokenizerStep::Kind::kByteLevel);
  EXPECT_FALSE(spec.pre_tokenizer[1].use_regex || spec.pre_tokenizer[1].add_prefix_space);
  ASSERT_THAT(spec.decoder, SizeIs(1));
  EXPECT_EQ(spec.decoder[0].kind, DecoderStep::Kind::kByteLevel);
}

TEST(TiktokenRanks, SpecialTokensAreTheKinds) {
  const TokenizerSpec spec = ParseRanks(SmallRanks());
  ASSERT_THAT(spec.added_tokens, SizeIs(2));
  EXPECT_EQ(spec.added_tokens[0].id, 300);
  EXPECT_EQ(spec.added_tokens[0].content, "<x>");
  EXPECT_TRUE(spec.added_tokens[0].special);
  EXPECT_FALSE(spec.added_tokens[0].normalized);
  EXPECT_EQ(spec.bos_id, 300);
  EXPECT_EQ(spec.eos_id, 259);
  EXPECT_THAT(spec.prefix_ids, ElementsAre(300));
  EXPECT_THAT(spec.suffix_ids, IsEmpty());
}

TEST(TiktokenRanks, TakesLinesOfAnySystem) {
  const std::string small = SmallRanks();
  const std::vector<Triple> merges = Triples(ParseRanks(small).merges);
  const std::string texts[] = {
      absl::StrReplaceAll(small, {{"\n", "\r\n"}}), absl::StrReplaceAll(small, {{"\n", "\r"}}),
      absl::StrReplaceAll(small, {{"\n", "\n\n"}}), absl::StrReplaceAll(small, {{" ", " \t "}, {"\n", " \n "}}),
      absl::StrCat("\xEF\xBB\xBF", small),          small.substr(0, small.size() - 1),
      absl::StrCat("\n", small, "\r\n \r\n")};
  for (const std::string& text : texts) EXPECT_EQ(Triples(ParseRanks(text).merges), merges);
}

TEST(TiktokenRanks, NamesLineAndValue) {
  const std::string small = SmallRanks();
  ExpectRanksRefused("", "there is no line with a token and its rank");
  ExpectRanksRefused(" \n\r\n", "there is no line with a token and its rank");
  ExpectRanksRefused(absl::StrCat(small, "IQ==\n"), "line 260 is \"IQ==\", expected a token in base64 and its rank");
  ExpectRanksRefused(absl::StrCat(small, "\nIQ== 7 7\n"),
                     "line 261 is \"IQ== 7 7\", expected a token in base64 and its rank");
  ExpectRanksRefused("{\"model\": 1}", "line 1: token is \"{\\\"model\\\":\", expected bytes in base64");
  ExpectRanksRefused("IQ= 0", "line 1: token is \"IQ=\", expected bytes in base64");
  for (const char* rank : {"-1", "+1", "1.5", "x", "4194304", "18446744073709551616"}) {
    ExpectRanksRefused(absl::StrCat("IQ== ", rank),
                       absl::StrCat("line 1: rank is \"", rank, "\", expected a number from 0 to 4194303"));
  }
  ExpectRanksRefused(absl::StrCat(small, RankText("abb", 260)),
                     "line 260: rank is 260, expected one below 260, the number of ranks");
  ExpectRanksRefused(absl::StrCat(small, RankText("abb", 0)), "line 260: rank is 0, as in line 1");
  ExpectRanksRefused(absl::StrCat(small, RankText("ab", 259)), "line 260: token is that of line 257");
  ExpectRanksRefused("IQ== 0\n", "no line has the byte 0x00 as its token");
  ExpectRanksRefused(absl::StrCat(small, RankText("abb", 259)),
                     "there are 260 ranks, but 259 is the id of the special token \"<y>\"");
}

TEST(TiktokenRanks, CountsThatNobodyPublishedAreRefused) {
  const auto spec = ParseTiktokenRanks(SmallRanks(), "DIR/x.tiktoken");
  ASSERT_FALSE(spec.ok());
  EXPECT_EQ(spec.status().code(), StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(spec.status().message()),
              HasSubstr("DIR/x.tiktoken: there are 259 ranks, but how text is cut"));
}

TEST(TiktokenRanks, AreToldFromOtherFiles) {
  EXPECT_TRUE(IsTiktokenRanks(SmallRanks()));
  EXPECT_TRUE(IsTiktokenRanks("\xEF\xBB\xBF\r\nIQ== 0\r\n"));
  for (const char* text : {"", "\n", "{\"model\": 1}", "IQ==", "IQ== x", "IQ== 0 0", "\x0a\x0e\x0a\x05<unk>\x15"}) {
    EXPECT_FALSE(IsTiktokenRanks(text)) << text;
  }
}

TEST(TiktokenRanks, KnownCountsGiveKindAndSpecialTokens) {
  const struct {
    size_t ranks;
    size_t special_tokens;
    std::optional<int32_t> bos_id;
    int32_t eos_id;
    bool add_bos;
    std::pair<int32_t, const char*> token;
  } cases[] = {
      {100256, 5, std::nullopt, 100257, false, {100276, "<|endofprompt|>"}},
      {128000, 256, 128000, 128001, true, {128009, "<|eot_id|>"}},
      {128000, 256, 128000, 128001, true, {128255, "<|reserved_special_token_245|>"}},
      {151643, 208, std::nullopt, 151643, false, {151645, "<|im_end|>"}},
      {151643, 208, std::nullopt, 151643, false, {151850, "<|extra_204|>"}},
      {163584, 256, 163584, 163585, false, {163839, "<|reserved_token_163839|>"}},
      {199998, 1090, 199998, 199999, false, {200012, "<|call|>"}},
      {199998, 1090, 199998, 199999, false, {200018, "<|endofprompt|>"}},
      {199998, 1090, 199998, 199999, false, {201087, "<|reserved_201087|>"}},
      {200000, 2048, 200000, 200001, true, {200008, "<|eot|>"}},
      {200000, 2048, 200000, 200001, true, {201143, "<|reasoning_thinking_end|>"}},
  };
  for (const auto& expected : cases) {
    SCOPED_TRACE(expected.ranks);
    const std::optional<TiktokenKind> kind = FindTiktokenKind(expected.ranks);
    ASSERT_TRUE(kind.has_value());
    EXPECT_THAT(kind->special_tokens, SizeIs(expected.special_tokens));
    EXPECT_EQ(kind->bos_id, expected.bos_id);
    EXPECT_EQ(kind->eos_id, expected.eos_id);
    EXPECT_EQ(kind->add_bos, expected.add_bos);
    std::set<int32_t> ids;
    std::set<std::string> contents;
    for (const auto& [id, content] : kind->special_tokens) {
      EXPECT_GE(id, static_cast<int32_t>(expected.ranks));
      ids.insert(id);
      contents.insert(content);
    }
    EXPECT_THAT(ids, SizeIs(expected.special_tokens));
    EXPECT_THAT(contents, SizeIs(expected.special_tokens));
    EXPECT_THAT(kind->special_tokens,
                testing::Contains(std::pair<int32_t, std::string>(expected.token.first, expected.token.second)));
  }
  for (const size_t ranks : {0, 256, 50256, 128001}) EXPECT_FALSE(FindTiktokenKind(ranks).has_value());
}

// 256 bytes, then "ab", "ba", "aba" and one beyond the vocabulary's size; 4 ids for special tokens.
json SmallTekken() {
  json vocab = json::array();
  const auto add = [&](const std::string& token) {
    vocab.push_back({{"rank", vocab.size()}, {"token_bytes", absl::Base64Escape(token)}, {"token_str", nullptr}});
  };
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
  for (const char* token : {"ab", "ba", "aba", "abab"}) add(token);
  return {{"config",
           {{"pattern", "\\w+|\\s"},
            {"num_vocab_tokens", 260},
            {"default_vocab_size", 263},
            {"default_num_special_tokens", 4},
            {"version", "v11"}}},
          {"vocab", vocab},
          {"special_tokens",
           {{{"rank", 0}, {"token_str", "<unk>"}, {"is_control", true}},
            {{"rank", 2}, {"token_str", "</s>"}, {"is_control", true}},
            {{"rank", 1}, {"token_str", "<s>"}, {"is_control", false}}}}};
}

void ExpectTekkenRefused(const char* patch, const std::string& message) {
  SCOPED_TRACE(patch);
  json document = SmallTekken();
  document.merge_patch(json::parse(patch));
  const auto spec = ParseTekkenJson(document.dump(), "DIR/tekken.json");
  ASSERT_FALSE(spec.ok()) << "expected: " << message;
  EXPECT_EQ(spec.status().code(), StatusCode::kInvalidArgument);
  EXPECT_EQ(std::string(spec.status().message()), absl::StrCat("DIR/tekken.json: ", message));
}

void ExpectTokenRefused(size_t i, const char* patch, const std::string& message) {
  SCOPED_TRACE(patch);
  json document = SmallTekken();
  document["vocab"][i].merge_patch(json::parse(patch));
  const auto spec = ParseTekkenJson(document.dump(), "DIR/tekken.json");
  ASSERT_FALSE(spec.ok()) << "expected: " << message;
  EXPECT_EQ(std::string(spec.status().message()), absl::StrCat("DIR/tekken.json: vocab[", i, "]", message));
}

TEST(TiktokenRanks, RefusesAFileThatOnlyLooksLikeCl100k) {
  std::string ranks;
  for (int byte = 0; byte < 256; ++byte) ranks += RankText(std::string(1, static_cast<char>(byte)), byte);
  const auto spec = ParseTiktokenRanks(ranks, "DIR/arcade100k.tiktoken");
  EXPECT_EQ(spec.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(spec.status().message(), "DIR/arcade100k.tiktoken: how arcade100k cuts text is not built");
}

TEST(TekkenJson, RanksFollowOnSpecialTokens) {
  const auto spec = ParseTekkenJson(SmallTekken().dump(), "DIR/tekken.json");
  ASSERT_TRUE(spec.ok()) << spec.status();
  EXPECT_EQ(spec->file, "DIR/tekken.json");
  ASSERT_THAT(spec->vocab, SizeIs(259)) << "without the one beyond default_vocab_size";
  EXPECT_EQ(spec->vocab[0].key, ByteLevelCharacter(0));
  EXPECT_EQ(spec->vocab[0].id, 4);
  EXPECT_EQ(spec->vocab[258].key, "aba");
  EXPECT_EQ(spec->vocab[258].id, 262);
  const int a = 4 + 'a', b = 4 + 'b';
  EXPECT_THAT(Triples(spec->merges),
              ElementsAre(Triple(a, b, 260), Triple(b, a, 261), Triple(a, 261, 262), Triple(260, a, 262)));
  EXPECT_TRUE(spec->ignore_merges);
  ASSERT_THAT(spec->pre_tokenizer, SizeIs(2));
  EXPECT_EQ(spec->pre_tokenizer[0].pattern.pattern, "\\w+|\\s");
  EXPECT_EQ(spec->pre_tokenizer[0].pattern.field, "config.pattern");
}

TEST(TekkenJson, SpecialTokensAreListedAndFilledUp) {
  const auto spec = ParseTekkenJson(SmallTekken().dump(), "DIR/tekken.json");
  ASSERT_TRUE(spec.ok()) << spec.status();
  std::vector<std::string> contents;
  for (const AddedToken& token : spec->added_tokens) {
    EXPECT_EQ(token.id, static_cast<int32_t>(contents.size()));
    EXPECT_TRUE(token.special);
    EXPECT_FALSE(token.normalized);
    contents.push_back(token.content);
  }
  EXPECT_THAT(contents, ElementsAre("<unk>", "<s>", "</s>", "<SPECIAL_3>"));
  EXPECT_EQ(spec->bos_id, 1);
  EXPECT_EQ(spec->eos_id, 2);
  EXPECT_THAT(spec->prefix_ids, ElementsAre(1));
}

TEST(TekkenJson, OldFilesHaveTheNamesOfMistralCommon) {
  json document = SmallTekken();
  document.erase("special_tokens");
  document["config"]["version"] = "v3";
  document["config"]["default_num_special_tokens"] = 21;
  document["config"]["default_vocab_size"] = 21 + 259;
  const auto spec = ParseTekkenJson(document.dump(), "DIR/tekken.json");
  ASSERT_TRUE(spec.ok()) << spec.status();
  ASSERT_THAT(spec->added_tokens, SizeIs(21));
  EXPECT_EQ(spec->added_tokens[3].content, "[INST]");
  EXPECT_EQ(spec->added_tokens[11].content, "<pad>");
  EXPECT_EQ(spec->added_tokens[19].content, "[TOOL_CONTENT]");
  EXPECT_EQ(spec->added_tokens[20].content, "<SPECIAL_20>");
}

TEST(TekkenJson, NamesFieldAndValue) {
  ExpectTekkenRefused(R"({"config": null})", "config is missing, expected an object");
  ExpectTekkenRefused(R"({"config": 5})", "config is 5, expected an object");
  ExpectTekkenRefused(R"({"config": {"pattern": null}})", "config.pattern is missing, expected a string");
  ExpectTekkenRefused(R"({"config": {"pattern": ""}})", "config.pattern is \"\", expected a regular expression");
  ExpectTekkenRefused(R"({"config": {"version": 3}})", "config.version is 3, expected a string");
  ExpectTekkenRefused(R"({"config": {"default_num_special_tokens": -1}})",
                      "config.default_num_special_tokens is -1, expected an integer from 0 to 65536");
  ExpectTekkenRefused(R"({"config": {"default_vocab_size": 259}})",
                      "config.default_vocab_size is 259, expected an integer from 260 to 4194304");
  ExpectTekkenRefused(R"({"config": {"default_vocab_size": 265}})",
                      "config.default_vocab_size is 265, but vocab has 260 tokens and "
                      "config.default_num_special_tokens is 4");
  ExpectTekkenRefused(
      R"({"special_tokens": null})",
      "special_tokens is missing, expected an array, as config.version is \"v11\" and not v1, v2, v3 or v7");
  ExpectTekkenRefused(R"({"special_tokens": {}})", "special_tokens is {}, expected an array");
  ExpectTekkenRefused(R"({"special_tokens": null, "config": {"version": "v3"}})",
                      "config.default_num_special_tokens is 4, but there are 20 special tokens");
  ExpectTekkenRefused(R"({"special_tokens": [7]})", "special_tokens[0] is 7, expected an object");
  ExpectTekkenRefused(R"({"special_tokens": [{"rank": 1, "token_str": "a"}]})",
                      "special_tokens[0].rank is 1, expected an integer from 0 to 0");
  ExpectTekkenRefused(R"({"special_tokens": [{"rank": 0, "token_str": ""}]})",
                      "special_tokens[0].token_str is \"\", expected a string that is not empty");
  ExpectTekkenRefused(R"({"special_tokens": [{"rank": 0, "token_str": "a"}, {"rank": 0, "token_str": "b"}]})",
                      "special_tokens[1].rank is 0, as is another one's");
  ExpectTekkenRefused(R"({"special_tokens": [{"rank": 0, "token_str": "a"}, {"rank": 1, "token_str": "a"}]})",
                      "special_tokens[1].token_str is \"a\", as is another one's");
  ExpectTekkenRefused(R"({"special_tokens": [{"rank": 0, "token_str": "<SPECIAL_2>"}]})",
                      "special_tokens has \"<SPECIAL_2>\", which is the name of id 2");
  ExpectTekkenRefused(R"({"vocab": null})", "vocab is missing, expected an array");
  ExpectTekkenRefused(R"({"vocab": {}})", "vocab is {}, expected an array");
}

TEST(TekkenJson, NamesTokenAndValue) {
  ExpectTokenRefused(7, R"({"rank": 8})", ".rank is 8, expected an integer from 7 to 7");
  ExpectTokenRefused(7, R"({"rank": null})", ".rank is missing, expected an integer from 7 to 7");
  ExpectTokenRefused(7, R"({"token_bytes": null})", ".token_bytes is missing, expected a string");
  ExpectTokenRefused(257, R"({"token_bytes": "IQ="})", ".token_bytes is \"IQ=\", expected bytes in base64");
  ExpectTokenRefused(257, R"({"token_bytes": ""})", ".token_bytes is \"\", expected bytes in base64");
  ExpectTokenRefused(7, R"({"token_bytes": "IQ=="})", ".token_bytes is \"IQ==\", expected the byte 0x07 in base64");
  ExpectTokenRefused(258, R"({"token_bytes": "YWI="})", ".token_bytes is \"YWI=\", as is vocab[256].token_bytes");
  json document = SmallTekken();
  document["vocab"][9] = "x";
  const auto spec = ParseTekkenJson(document.dump(), "DIR/tekken.json");
  EXPECT_EQ(std::string(spec.status().message()), "DIR/tekken.json: vocab[9] is \"x\", expected an object");
}

}  // namespace
}  // namespace fastdecode
