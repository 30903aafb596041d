// Parts that join are encoded as one text, and nobody can write a special token in a part with `special` off.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/engine/text/expect_golden.h"
#include "tests/engine/text/golden_files.h"

namespace fastdecode {
namespace {

using nlohmann::json;
using testing::Contains;
using testing::Not;
using Ids = std::vector<int32_t>;

// A part that joins.
Tokenizer::Part Own(std::string_view text) { return {text, /*special=*/true, {}, /*joins=*/true}; }
Tokenizer::Part Foreign(std::string_view text) { return {text, /*special=*/false, {}, /*joins=*/true}; }

Ids Encoded(const Tokenizer& tokenizer, const std::vector<Tokenizer::Part>& parts) {
  return tokenizer.EncodeParts(parts, false);
}

std::string Text(const std::vector<Tokenizer::Part>& parts) {
  std::string text;
  for (const Tokenizer::Part& part : parts) text += part.text;
  return text;
}

// The base's tokenizer.json, which has 1000 tokens and no steps but ByteLevel, with these added tokens, numbered from
// 1000 unless they have an id, and this patch.
std::unique_ptr<Tokenizer> WithTokens(json tokens, const json& patch = json::object()) {
  json document = ReadGoldenJson("base/tokenizer.json");
  for (size_t i = 0; i < tokens.size(); ++i) {
    json token = {{"id", 1000 + i},  {"single_word", false}, {"lstrip", false},
                  {"rstrip", false}, {"normalized", false},  {"special", true}};
    token.update(tokens[i]);
    EXPECT_EQ(document["model"]["vocab"].value(token["content"], token["id"].get<int>()), token["id"]);
    document["added_tokens"].push_back(token);
  }
  document.merge_patch(patch);
  auto tokenizer = ParseTokenizer(document);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

std::unique_ptr<Tokenizer> LoadGolden(const std::string& name) {
  auto tokenizer = Tokenizer::Load(GoldenPath(name));
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return *std::move(tokenizer);
}

std::unique_ptr<Tokenizer> LoadFamily(const std::string& name) {
  for (const json& family : ReadGoldenJson("families.json")) {
    if (family["name"] != name) continue;
    json document = ReadGoldenJson(family["base"].get<std::string>() + "/tokenizer.json");
    document.merge_patch(family["patch"]);
    auto tokenizer = ParseTokenizer(document);
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    return *std::move(tokenizer);
  }
  ADD_FAILURE() << name;
  return nullptr;
}

// ---- The ids of the whole text

// The same text as parts that join, cut anywhere, also inside of characters. `special`: of all; nothing: of each by
// chance.
std::vector<Tokenizer::Part> Cut(std::string_view text, std::optional<bool> special, std::mt19937* rng) {
  std::vector<size_t> cuts = {0, text.size()};
  for (size_t i = (*rng)() % 6; i > 0; --i) cuts.push_back((*rng)() % (text.size() + 1));
  std::sort(cuts.begin(), cuts.end());
  std::vector<Tokenizer::Part> parts;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    const std::string_view part = text.substr(cuts[i], cuts[i + 1] - cuts[i]);
    parts.push_back(special.value_or((*rng)() % 2 == 0) ? Own(part) : Foreign(part));
  }
  return parts;
}

class GoldenCutter {
 public:
  // `added`: the tokens of tokenizer.json that a text may spell.
  void Expect(const Tokenizer& tokenizer, const json& golden, const std::vector<std::string>& texts,
              const json& added) {
    ASSERT_EQ(golden["encodings"].size(), texts.size());
    for (size_t i = 0; i < texts.size(); ++i) {
      const json& expected = golden["encodings"][i];
      const Ids ids = expected["ids"];
      const Ids as_text = expected.value("as_text", ids);
      SCOPED_TRACE("text " + std::to_string(i) + ": " + texts[i].substr(0, 200));
      EXPECT_EQ(Encoded(tokenizer, Cut(texts[i], true, &rng_)), ids);
      // Hugging Face's merges make tokens that are special, too, of text.
      const bool made = std::any_of(as_text.begin(), as_text.end(), [&](int id) { return tokenizer.IsSpecial(id); });
      if (!made) {
        EXPECT_EQ(Encoded(tokenizer, Cut(texts[i], false, &rng_)), as_text);
      }
      if (made || SpellsToken(texts[i], added)) continue;
      EXPECT_EQ(Encoded(tokenizer, Cut(texts[i], std::nullopt, &rng_)), ids);
      ++mixed_;
    }
  }

  int mixed() const { return mixed_; }

 private:
  static std::string Lowercase(std::string text) {
    for (char& c : text) c = c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c;
    return text;
  }
  static bool SpellsToken(const std::string& text, const json& added) {
    return std::any_of(added.begin(), added.end(), [&](const json& token) {
      return Lowercase(text).find(Lowercase(token["content"])) != std::string::npos;
    });
  }

  std::mt19937 rng_{1};
  int mixed_ = 0;  // texts that were cut into parts of both kinds
};

TEST(ChatParts, JoinToWhatHuggingFaceMakesOfTheWhole) {
  const std::vector<std::string> all = GoldenTexts();
  GoldenCutter cutter;
  for (const std::string name : {"gpt2", "llama3", "qwen2", "deepseek", "llama2"}) {
    SCOPED_TRACE(name);
    const json golden = ReadGoldenJson(name + "/golden.json");
    cutter.Expect(*LoadGolden(name), golden, golden.contains("text_numbers") ? TextsOf(golden, all) : all,
                  ReadGoldenJson(name + "/tokenizer.json")["added_tokens"]);
  }
  for (const char* file : {"variants.json", "families.json"}) {
    for (const json& variant : ReadGoldenJson(file)) {
      SCOPED_TRACE(variant["name"].get<std::string>());
      json document = ReadGoldenJson(variant.value("base", "base") + "/tokenizer.json");
      document.merge_patch(variant["patch"]);
      const auto tokenizer = ParseTokenizer(document);
      ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
      cutter.Expect(**tokenizer, variant, TextsOf(variant, all), document["added_tokens"]);
    }
  }
  EXPECT_GT(cutter.mixed(), 3000);
}

// The space that a tokenizer puts before a text stands before the first part alone, and merges cross from part to part.
TEST(ChatParts, WhatStandsBeforeAndAroundATextIsThere) {
  const auto tokenizer = LoadGolden("llama2");
  const std::vector<Tokenizer::Part> parts = {Own("the har"), Foreign("bour and"), Own(" the storm")};
  EXPECT_EQ(tokenizer->EncodeParts(parts, true), tokenizer->Encode(Text(parts), true));
  std::vector<Tokenizer::Part> apart = parts;
  for (Tokenizer::Part& part : apart) part.joins = false;
  EXPECT_NE(tokenizer->EncodeParts(apart, true), tokenizer->Encode(Text(parts), true));
}

TEST(ChatParts, IdsEndATextThatJoins) {
  const auto tokenizer = WithTokens(json::parse(R"([{"content": "<|a|>"}])"));
  const Ids given = {5, 6};
  EXPECT_EQ(Encoded(*tokenizer, {Own("<|a"), {"|>", true, given, true}, Own("<|"), Own("a|>")}),
            Encoded(*tokenizer, {{"<|a", true, {}}, {"|>", true, given}, {"<|a|>", true, {}}}));
  const auto joined = Encoded(*tokenizer, {{"", true, given}, Own("<|"), Own("a|>")});
  EXPECT_EQ(joined, Ids({5, 6, 1000}));
}

// ---- Special tokens at the border of two parts

class BorderTest : public testing::Test {
 protected:
  // What these parts are, where only the ids of special tokens and the text are looked at.
  void Expect(const std::vector<Tokenizer::Part>& parts, const Ids& special) {
    SCOPED_TRACE(testing::PrintToString(Text(parts)));
    const Ids ids = Encoded(*tokenizer_, parts);
    Ids found;
    std::copy_if(ids.begin(), ids.end(), std::back_inserter(found), [](int32_t id) { return id >= 1000; });
    EXPECT_EQ(found, special);
    EXPECT_EQ(tokenizer_->Decode(ids, false), Text(parts));
  }

  std::unique_ptr<Tokenizer> tokenizer_;
};

TEST_F(BorderTest, ATokenIsOneOnlyIfAllOfItIsOwn) {
  tokenizer_ = WithTokens(json::parse(R"([{"content": "<|a|>"}])"));
  Expect({Own("x<|a|>y")}, {1000});
  Expect({Own("x<|"), Own("a|>y")}, {1000});
  Expect({Own("x<|"), Foreign(""), Own("a|>y")}, {1000});
  Expect({Foreign("x<|a|>y")}, {});
  Expect({Foreign("x<|"), Foreign("a|>y")}, {});
  Expect({Own("x<|"), Foreign("a|>y")}, {});
  Expect({Foreign("x<|"), Own("a|>y")}, {});
  Expect({Own("<|"), Foreign("a"), Own("|>")}, {});
  Expect({Own("<|a|>"), Foreign("<|a|>"), Own("<|a|>")}, {1000, 1000});
  Expect({Foreign("<|a"), Own("<|a|>"), Foreign("|>")}, {1000});
}

TEST_F(BorderTest, ForeignTextHidesNoTokenBehindIt) {
  tokenizer_ = WithTokens(json::parse(R"([{"content": "<|a|>"}, {"content": "x<|a|>"}])"));
  Expect({Own("x<|a|>")}, {1001});
  Expect({Foreign("x"), Own("<|a|>")}, {1000});
  Expect({Foreign("x<|a|>"), Own("<|a|>")}, {1000});
}

TEST_F(BorderTest, ForeignTextHidesNoTokenBeforeIt) {
  tokenizer_ = WithTokens(json::parse(R"([{"content": "<|a|>"}, {"content": "<|a|><|b|>"}, {"content": "<|b|>"}])"));
  Expect({Own("<|a|><|b|>")}, {1001});
  Expect({Own("<|a|>"), Foreign("<|b|>")}, {1000});
  Expect({Own("<|a|><|"), Foreign("b|>")}, {1000});
}

// Tokens that anybody may write hide none either, and where one that is refused has own text, the search goes on in it.
TEST_F(BorderTest, UnrestrictedTokensReachAcrossUnlessTheyWouldHideOne) {
  tokenizer_ = WithTokens(json::parse(R"([
      {"content": "<|a|>"}, {"content": "x<|", "special": false}, {"content": "xy", "special": false},
      {"content": "QZ", "special": false}, {"content": "ZQ", "special": false}, {"content": "Q<|", "special": false},
      {"content": "q<|open|>"}, {"content": "<|open|>", "special": false}, {"content": "q<", "special": false},
      {"content": "r<|open|>"}])"));
  Expect({Own("x<|a|>")}, {1001});
  Expect({Foreign("x"), Own("<|a|>")}, {1000});
  Expect({Foreign("x"), Own("<|b|>")}, {1001});
  Expect({Foreign("x"), Own("y<|a|>")}, {1002, 1000});
  // One that begins in foreign text shifts those behind it.
  Expect({Own("ZQ<|a|>")}, {1004, 1000});
  Expect({Own("QZQ<|a|>")}, {1003, 1005});
  Expect({Foreign("Q"), Own("ZQ<|a|>")}, {1003, 1000});
  // What is refused hides neither what is shorter nor what begins inside of it, unless all of it is foreign: then it is
  // as Hugging Face's encode_special_tokens has it.
  Expect({Own("q<|open|>r<|open|>")}, {1006, 1009});
  Expect({Foreign("q"), Own("<|open|>")}, {1008});
  Expect({Foreign("q<"), Own("|open|>")}, {1008});
  Expect({Foreign("r"), Own("<|open|>")}, {1007});
  Expect({Foreign("q<|open|>r<|open|>")}, {});
}

TEST_F(BorderTest, CharactersThatAreSpreadOverPartsAreForeignIfOneOfThemIs) {
  tokenizer_ = WithTokens(json::parse(R"([{"content": "<｜a｜>"}])"));
  const std::string name = "<｜a｜>";
  for (size_t cut = 1; cut < name.size(); ++cut) {
    const std::string begin = name.substr(0, cut), end = name.substr(cut);
    Expect({Own(begin), Own(end)}, {1000});
    Expect({Own(begin), Foreign(end)}, {});
    Expect({Foreign(begin), Own(end)}, {});
    Expect({Foreign(begin), Foreign(end)}, {});
    Expect({Foreign(begin), Own(end + name)}, {1000});
    Expect({Own(name + begin), Foreign(end)}, {1000});
  }
  // What is left open or was never begun stays what it is, and the next token is one.
  const Ids broken = Encoded(*tokenizer_, {Foreign("\xEF\xBD"), Own(name), Foreign("\x9C\xF0\x9F"), Own(name)});
  EXPECT_EQ(tokenizer_->Decode(broken, false), "\uFFFD" + name + "\uFFFD\uFFFD" + name);
  EXPECT_EQ(std::count(broken.begin(), broken.end(), 1000), 2);
  tokenizer_ = WithTokens(json::parse(R"([{"content": "<|\uFFFD"}])"));
  EXPECT_THAT(Encoded(*tokenizer_, {Own("<|"), Own("\xF0\x9F")}), Contains(1000));
  EXPECT_THAT(Encoded(*tokenizer_, {Own("<|"), Foreign("\xF0\x9F")}), Not(Contains(1000)));
}

// Its neighbours are those of its own text.
TEST_F(BorderTest, WordCharactersOfOthersDoNotTouchASingleWord) {
  tokenizer_ = WithTokens(json::parse(R"([{"content": "<w>", "single_word": true},
                                          {"content": "<v>", "single_word": true, "special": false}])"));
  Expect({Own("a<w>b")}, {});
  Expect({Own("-<w>-")}, {1000});
  Expect({Foreign("a"), Own("<w>"), Foreign("b")}, {1000});
  Expect({Foreign("a"), Own("b<w>"), Foreign("-")}, {});
  Expect({Foreign("a"), Own("<v>"), Foreign("b")}, {});  // as for the whole text
  Expect({Foreign("-"), Own("<v>"), Foreign("-")}, {1001});
}

TEST_F(BorderTest, WhiteSpaceOfOthersIsTakenAlong) {
  tokenizer_ = WithTokens(json::parse(R"([{"content": "<l>", "lstrip": true}, {"content": "<r>", "rstrip": true},
                                          {"content": "\t", "lstrip": true}])"));
  const std::vector<Tokenizer::Part> parts = {Foreign("x \n"), Own(" <l>"), Foreign("y"), Own("<r>"),
                                              Foreign(" \nz"), Own("<r> "), Foreign(" z")};
  EXPECT_EQ(Encoded(*tokenizer_, parts), tokenizer_->Encode("x <l>y<r> z<r>z", false));
  EXPECT_EQ(Encoded(*tokenizer_, parts), tokenizer_->Encode(Text(parts), false));
  // Of its own text, the token before takes it along, and is all that is left of it.
  EXPECT_EQ(tokenizer_->Encode("<r> \t", false), Ids({1001}));
  EXPECT_EQ(Encoded(*tokenizer_, {Own("<r>"), Foreign(" "), Own("\t")}), Ids({1001, 1002}));
}

TEST_F(BorderTest, MergesMakeNoSpecialToken) {
  const json vocab = ReadGoldenJson("base/tokenizer.json")["model"]["vocab"];
  const int32_t in = vocab["in"];
  for (const bool ignore_merges : {false, true}) {
    tokenizer_ = WithTokens({{{"content", "in"}, {"id", in}}}, {{"model", {{"ignore_merges", ignore_merges}}}});
    EXPECT_THAT(Encoded(*tokenizer_, {Own("in")}), Contains(in));
    for (const std::string text : {"in", " in the rain", "in\nin"}) {
      EXPECT_THAT(Encoded(*tokenizer_, {Foreign(text)}), Not(Contains(in)));
      EXPECT_THAT(Encoded(*tokenizer_, {Own("<"), Foreign(text), Own(">")}), Not(Contains(in)));
      Expect({Own("<"), Foreign(text), Own(">")}, {});
    }
  }
}

// ---- Tokens of the normalized text

json Normalizer(const char* type) { return {{"normalizer", {{"type", type}}}}; }

TEST_F(BorderTest, OwnTextIsToldFromOthersAfterTheNormalizer) {
  const json tokens = json::parse(R"([{"content": "<name>", "normalized": true}])");
  tokenizer_ = WithTokens(tokens, Normalizer("Lowercase"));
  const auto count = [&](const std::vector<Tokenizer::Part>& parts) {
    const Ids ids = Encoded(*tokenizer_, parts);
    return std::count(ids.begin(), ids.end(), 1000);
  };
  EXPECT_EQ(count({Own("<NAME>"), Foreign("<NAME><name>"), Own("<Name>")}), 2);
  EXPECT_EQ(count({Foreign("<NA"), Own("ME><na"), Foreign("me>")}), 0);
  EXPECT_EQ(count({Foreign("İ<NA"), Own("İ<name>İ"), Foreign("me>")}), 1);  // it grows
  tokenizer_ = WithTokens(tokens, Normalizer("NFKC"));
  EXPECT_EQ(count({Own("＜name＞"), Foreign("＜name＞<ｎame>")}), 1);
  EXPECT_EQ(count({Foreign("＜"), Own("name>")}), 0);
}

// U+0338 after > is composed to one character.
TEST_F(BorderTest, MarksOfOthersHideNoToken) {
  const json tokens = json::parse(R"([{"content": "<name>", "normalized": true}, {"content": "<!>"}])");
  tokenizer_ = WithTokens(tokens, Normalizer("NFC"));
  EXPECT_THAT(Encoded(*tokenizer_, {Own("<name>\u0338")}), Not(Contains(1000)));
  EXPECT_THAT(Encoded(*tokenizer_, {Own("<name>"), Foreign("\u0338")}), Contains(1000));
  EXPECT_THAT(Encoded(*tokenizer_, {Foreign("<name>"), Own("\u0338")}), Not(Contains(1000)));
  EXPECT_THAT(Encoded(*tokenizer_, {Own("<name"), Foreign(">\u0338")}), Not(Contains(1000)));
  // Where there is no token to hide, the text is that of the whole.
  for (const auto& parts : {std::vector{Foreign("caf"), Own("e"), Foreign("\u0301 <name>")},
                            std::vector{Own("<!>cafe"), Foreign("\u0301"), Own("<!>")}}) {
    const std::string text = Text(parts);
    const std::vector<Tokenizer::Part> apart = {{text, text[0] == '<', {}}};
    EXPECT_EQ(Encoded(*tokenizer_, parts), Encoded(*tokenizer_, apart));
  }
}

// A token of the text as given is found before those of the normalized text.
TEST_F(BorderTest, TokensOfTheGivenTextHideNoneOfTheNormalizedText) {
  const json tokens =
      json::parse(R"([{"content": "<name>", "normalized": true}, {"content": "x<", "special": false}])");
  tokenizer_ = WithTokens(tokens, Normalizer("NFC"));
  Expect({Own("x<name>")}, {1001});
  Expect({Foreign("x"), Own("<name>")}, {1000});
  Expect({Foreign("x<"), Own("<name>")}, {1001, 1000});
}

// The normalizer puts ▁ before a text alone, and the token's name has it.
TEST_F(BorderTest, OwnTextInTheMiddleIsNoStartOfAText) {
  json document = ReadGoldenJson("llama2/tokenizer.json");
  const int32_t id = static_cast<int32_t>(document["model"]["vocab"].size());
  document["added_tokens"].push_back({{"id", id},
                                      {"content", "<name>"},
                                      {"single_word", false},
                                      {"lstrip", false},
                                      {"rstrip", false},
                                      {"normalized", true},
                                      {"special", true}});
  auto tokenizer = ParseTokenizer(document);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::vector<Tokenizer::Part> parts = {Foreign("the harbour"), Own(" <name>"), Foreign(" and")};
  EXPECT_THAT(Encoded(**tokenizer, parts), Contains(id));
  EXPECT_EQ(Encoded(**tokenizer, parts), (*tokenizer)->Encode(Text(parts), false));
  EXPECT_THAT(Encoded(**tokenizer, {Foreign("the harbour"), Own("<name>")}), Not(Contains(id)));
  EXPECT_THAT(Encoded(**tokenizer, {Foreign("the harbour "), Own("<name>")}), Not(Contains(id)));
}

TEST_F(BorderTest, NormalizersThatLookAtTheWholeTextSeeIt) {
  for (const char* name : {"normalizer_strip", "normalizer_regex_literal", "normalizer_prepend_twice", "added_strip",
                           "phi3", "gemma", "chatglm3"}) {
    SCOPED_TRACE(name);
    const auto tokenizer = LoadFamily(name);
    const std::vector<Tokenizer::Part> parts = {Foreign("  the har "), Own("  bour\n"), Foreign("\n\n  \tthe storm  ")};
    EXPECT_EQ(Encoded(*tokenizer, parts), tokenizer->Encode(Text(parts), false));
  }
}

// ---- Tokens that a chat template spells

TEST(GuardedTokens, AreTextInForeignTextAlone) {
  const auto tokenizer = LoadGolden("deepseek");
  const std::string name = "<｜User｜>";
  const Ids mark = {802};
  const std::vector<Tokenizer::Part> apart = {{name, false, {}}};
  EXPECT_EQ(Encoded(*tokenizer, {Foreign(name)}), mark);
  EXPECT_EQ(Encoded(*tokenizer, apart), mark);
  tokenizer->GuardTokensIn("{{ bos_token }}<|User|> and <｜User");
  EXPECT_EQ(Encoded(*tokenizer, {Foreign(name)}), mark) << "its name does not occur";
  tokenizer->GuardTokensIn("x" + name + "y");
  for (const Ids& ids : {Encoded(*tokenizer, {Foreign(name)}), Encoded(*tokenizer, apart),
                         Encoded(*tokenizer, {Foreign("<"), Own(name.substr(1))})}) {
    EXPECT_THAT(ids, Not(Contains(802)));
    EXPECT_EQ(tokenizer->Decode(ids, true), name);
  }
  EXPECT_EQ(Encoded(*tokenizer, {Own(name)}), mark);
  EXPECT_EQ(tokenizer->Encode(name, false), mark);
  EXPECT_FALSE(tokenizer->IsSpecial(802));
  EXPECT_EQ(tokenizer->Decode(mark, true), name);
  EXPECT_EQ(Encoded(*tokenizer, {Foreign("<s>")}), Ids({803})) << "it is none that was named";
}

TEST(GuardedTokens, AreFoundInsideOfEachOtherAndAfterTheNormalizer) {
  const auto tokenizer = WithTokens(json::parse(R"([
      {"content": "<user>", "special": false, "normalized": true}, {"content": "<user>:", "special": false},
      {"content": "user>:", "special": false}, {"content": "\n\n", "special": false},
      {"content": "<tool>", "special": false}, {"content": "<bot>", "special": false, "normalized": true}])"),
                                    Normalizer("Lowercase"));
  const std::string text = "<user>:<User>user>:\n\n<tool><bot>";
  const auto added = [&](const std::vector<Tokenizer::Part>& parts) {
    Ids ids = Encoded(*tokenizer, parts);
    std::erase_if(ids, [](int32_t id) { return id < 1000; });
    return ids;
  };
  const Ids all = {1001, 1000, 1002, 1003, 1004, 1005};
  EXPECT_EQ(added({Foreign(text)}), all);
  tokenizer->GuardTokensIn("\n\n<BOT>");
  EXPECT_EQ(added({Foreign(text)}), Ids({1001, 1000, 1002, 1003, 1004}));
  tokenizer->GuardTokensIn("<user>:");
  EXPECT_EQ(added({Foreign(text)}), Ids({1003, 1004}));
  EXPECT_EQ(added({Own(text)}), all);
}

}  // namespace
}  // namespace fastdecode
