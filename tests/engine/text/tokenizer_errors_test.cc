#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>

#include "tests/engine/text/golden_files.h"

namespace fastdecode {
namespace {

using absl::StatusCode;
using nlohmann::json;
using testing::HasSubstr;

json Base() { return ReadGoldenJson("base/tokenizer.json"); }

// Applies a merge patch to the base tokenizer and expects this error.
void ExpectRefused(const json& document, StatusCode code, const std::string& message) {
  const auto tokenizer = ParseTokenizer(document);
  ASSERT_FALSE(tokenizer.ok()) << "expected: " << message;
  EXPECT_EQ(tokenizer.status().code(), code) << tokenizer.status();
  EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr("test/tokenizer.json: "));
  EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr(message));
}

void ExpectPatchRefused(const char* patch, StatusCode code, const std::string& message) {
  SCOPED_TRACE(patch);
  json document = Base();
  document.merge_patch(json::parse(patch));
  ExpectRefused(document, code, message);
}

TEST(TokenizerErrors, NamesOtherKinds) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"model": {"type": "Unigram"}})", R"(model.type is "Unigram" (SentencePiece); only BPE can be read)"},
      {R"({"model": {"type": "WordPiece"}})", R"(model.type is "WordPiece"; only BPE can be read)"},
      {R"({"model": {"type": "WordLevel"}})", R"(model.type is "WordLevel")"},
      {R"({"model": {"end_of_word_suffix": "</w>"}})", R"(model.end_of_word_suffix is "</w>")"},
      {R"({"model": {"continuing_subword_prefix": "##"}})", R"(model.continuing_subword_prefix is "##")"},
  };
  for (const auto& [patch, message] : cases) ExpectPatchRefused(patch, StatusCode::kUnimplemented, message);
}

TEST(TokenizerErrors, NamesStepsThatAreNotBuilt) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"model": {"dropout": 0.1}})", "model.dropout"},
      {R"({"normalizer": {"type": "Nmt"}})", R"(normalizer.type is "Nmt", not built; NFC,)"},
      {R"({"normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "Precompiled"}]}})",
       R"(normalizer.normalizers[1].type is "Precompiled", not built)"},
      {R"({"normalizer": {"type": "Replace", "pattern": {"Regex": "\\hx"}, "content": ""}})",
       "normalizer.pattern: the escape \\h at byte 0 is not supported"},
      {R"({"pre_tokenizer": {"type": "UnicodeScripts"}})", R"(pre_tokenizer.type is "UnicodeScripts", not built)"},
      {R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel", "add_prefix_space": false},
           {"type": "ByteLevel", "add_prefix_space": false}]}})",
       R"(pre_tokenizer.pretokenizers[1].type is "ByteLevel" after a ByteLevel)"},
      {R"({"normalizer": {"type": "ByteLevel"}})", R"(pre_tokenizer.type is "ByteLevel" after a ByteLevel)"},
      {R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "ByteLevel", "add_prefix_space": false},
           {"type": "Metaspace", "replacement": "_"}]}})",
       R"(pre_tokenizer.pretokenizers[1].type is "Metaspace" after a ByteLevel)"},
      {R"({"normalizer": {"type": "Strip", "strip_left": true, "strip_right": true}, "added_tokens": [{"id": 1000,
           "content": " ", "single_word": false, "lstrip": false, "rstrip": false, "normalized": true,
           "special": false}]})",
       "added_tokens: the normalizer leaves nothing of"},
      {R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "\\hx"},
           "behavior": "Isolated", "invert": false}, {"type": "ByteLevel", "add_prefix_space": false}]}})",
       "pre_tokenizer.pretokenizers[0].pattern: the escape \\h at byte 0 is not supported"},
      {R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "(\u001b"},
           "behavior": "Isolated", "invert": false}, {"type": "ByteLevel", "add_prefix_space": false}]}})",
       R"((byte 2 of (\u001b))"},
      {R"({"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Split", "pattern": {"Regex": "(a"},
           "behavior": "Isolated", "invert": false}, {"type": "ByteLevel", "add_prefix_space": false}]}})",
       "pre_tokenizer.pretokenizers[0].pattern: missing closing parenthesis"},
      {R"({"post_processor": {"type": "PairProcessing"}})", R"(post_processor.type is "PairProcessing")"},
      {R"({"post_processor": {"type": "Sequence", "processors": [
           {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}], "special_tokens": {}},
           {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}], "special_tokens": {}}]}})",
       "post_processor.processors[1]: a second TemplateProcessing"},
      {R"({"model": {"unk_token": "nosuch", "vocab": {"Z": null}}})",
       R"(model.unk_token is "nosuch", which is not in model.vocab, nor is a token for each byte)"},
      {R"({"normalizer": {"type": "Sequence", "normalizers": [
           {"type": "Replace", "pattern": {"Regex": "a"}, "content": "0123456789012345678901234567890123456789"},
           {"type": "Replace", "pattern": {"Regex": "a"}, "content": "0123456789012345678901234567890123456789"},
           {"type": "Replace", "pattern": {"String": "a"}, "content": "0123456789"}]}})",
       "normalizer: its steps may make a text thousands of times as long"},
      {R"({"decoder": {"type": "Replace", "pattern": {"String": "a"}, "content": "01234567890123456"}})",
       "decoder may make a token too long"},
      {R"({"decoder": {"type": "WordPiece"}})", R"(decoder.type is "WordPiece", not built; ByteLevel,)"},
      {R"({"decoder": {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "ByteFallback"}]}})",
       "decoder.decoders[1] comes after the tokens were joined"},
      {R"({"decoder": {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "ByteFallback"}]}})",
       "decoder.decoders[1] is the second of its kind"},
      {R"({"decoder": {"type": "Replace", "pattern": {"Regex": "(a"}, "content": ""}})",
       "decoder.pattern: missing closing parenthesis"},
      {R"({"model": {"byte_fallback": true, "vocab": {"Z": null}}})",
       "model.byte_fallback is true in a byte-level vocabulary without all bytes"},
  };
  for (const auto& [patch, message] : cases) ExpectPatchRefused(patch, StatusCode::kUnimplemented, message);
}

TEST(TokenizerErrors, NamesFieldAndValue) {
  const std::pair<const char*, const char*> cases[] = {
      {R"({"model": null})", "model is missing, expected an object"},
      {R"({"model": 7})", "model is 7, expected an object"},
      {R"({"model": {"type": 7}})", "model.type is 7, expected a string"},
      {R"({"model": {"byte_fallback": "no"}})", R"(model.byte_fallback is "no", expected true or false)"},
      {R"({"model": {"vocab": null}})", "model.vocab is missing, expected an object"},
      {R"({"model": {"vocab": {"in": -1}}})", R"(model.vocab["in"] is -1, expected an id from 0 to 4194303)"},
      {R"({"model": {"vocab": {"in": 4194304}}})", R"(model.vocab["in"] is 4194304, expected an id)"},
      {R"({"model": {"vocab": {"in": 18446744073709551615}}})", R"(model.vocab["in"] is 18446744073709551615)"},
      {R"({"model": {"vocab": {"in": 1.5}}})", R"(model.vocab["in"] is 1.5)"},
      {R"({"model": {"vocab": {"in": "5"}}})", R"(model.vocab["in"] is "5")"},
      {R"({"model": {"vocab": {"zz": 3}}})", R"(is 3, the id of another token too)"},
      {R"({"model": {"unk_token": 5}})", "model.unk_token is 5, expected a string"},
      {R"({"model": {"merges": null}})", "model.merges is missing, expected an array"},
      {R"({"model": {"merges": {"a": "b"}}})", R"(model.merges is {"a":"b"}, expected an array)"},
      {R"({"model": {"merges": ["ab"]}})", R"(model.merges[0] is "ab", expected two tokens)"},
      {R"({"model": {"merges": ["i n", "i n g"]}})", R"(model.merges[1] is "i n g", expected two tokens)"},
      {R"({"model": {"merges": [["i"]]}})", R"(model.merges[0] is ["i"], expected two tokens)"},
      {R"({"model": {"merges": [["i", 5]]}})", R"(model.merges[0] is ["i",5], expected two tokens)"},
      {R"({"model": {"merges": ["i "]}})", "expected two tokens"},
      {R"({"model": {"merges": [["i", "n"], ["nosuch", "i"]]}})",
       R"(model.merges[1] is ["nosuch","i"]: "nosuch" is not in model.vocab)"},
      {R"({"model": {"merges": ["Q Q"]}})", R"(model.merges[0] is "Q Q": "QQ" is not in model.vocab)"},
      {R"({"added_tokens": 5})", "added_tokens is 5, expected an array"},
      {R"({"added_tokens": [5]})", "added_tokens[0] is 5, expected an object"},
      {R"({"added_tokens": [{"id": 1000}]})", "added_tokens[0].content is missing, expected a string"},
      {R"({"pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": null}})",
       "pre_tokenizer.add_prefix_space is missing"},
      {R"({"pre_tokenizer": "ByteLevel"})", R"(pre_tokenizer is "ByteLevel", expected an object or null)"},
      {R"({"normalizer": {"type": "Strip", "strip_left": true}})", "normalizer.strip_right is missing"},
      {R"({"normalizer": {"type": "Prepend", "prepend": 5}})", "normalizer.prepend is 5, expected a string"},
      {R"({"normalizer": {"type": "Replace", "pattern": " ", "content": ""}})",
       R"(normalizer.pattern is " ", expected)"},
      {R"({"normalizer": {"type": "Replace", "pattern": {"String": " "}}})", "normalizer.content is missing"},
      {R"({"pre_tokenizer": {"type": "Metaspace", "replacement": "ab"}})",
       R"(pre_tokenizer.replacement is "ab", expected one character)"},
      {R"({"pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "last",
           "add_prefix_space": true}})",
       R"(pre_tokenizer.prepend_scheme is "last", expected always, first or never)"},
      {R"({"pre_tokenizer": {"type": "Metaspace", "replacement": "_", "prepend_scheme": "first",
           "add_prefix_space": false}})",
       R"(pre_tokenizer.add_prefix_space is false, expected true, for prepend_scheme is "first")"},
      {R"({"pre_tokenizer": {"type": "CharDelimiterSplit", "delimiter": ""}})", "expected one character"},
      {R"({"pre_tokenizer": {"type": "Punctuation", "behavior": "Apart"}})",
       R"(pre_tokenizer.behavior is "Apart", expected Isolated)"},
      {R"({"decoder": {"type": "Strip", "content": "ab", "start": 1, "stop": 0}})",
       R"(decoder.content is "ab", expected one character)"},
      {R"({"decoder": {"type": "Strip", "content": "a", "start": -1, "stop": 0}})", "decoder.start is -1, expected"},
      {R"({"decoder": {"type": "Replace", "content": ""}})", "decoder.pattern is missing, expected an object"},
      {R"({"post_processor": {"type": "RobertaProcessing", "sep": ["x", 1]}})",
       "post_processor.cls is missing, expected an array"},
      {R"({"post_processor": {"type": "BertProcessing", "sep": ["x", 1], "cls": ["y"]}})",
       R"(post_processor.cls is ["y"], expected a token and its id)"},
      {R"({"post_processor": {"type": "BertProcessing", "sep": ["x", 70000], "cls": ["y", 1]}})",
       "post_processor.sep[1] is 70000, the id of no token"},
      {R"({"post_processor": {"type": "TemplateProcessing", "single": [], "special_tokens": {}}})",
       "post_processor.single has no Sequence"},
      {R"({"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}],
           "special_tokens": {}}})",
       R"(post_processor.special_tokens["x"] has no array ids)"},
      {R"({"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}],
           "special_tokens": {"x": {"ids": [70000]}}}})",
       R"(post_processor.special_tokens["x"].ids has 70000, the id of no token)"},
      {R"({"post_processor": {"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}},
           {"Sequence": {"id": "A"}}],
           "special_tokens": {}}})",
       "post_processor.single has more than one Sequence"},
  };
  for (const auto& [patch, message] : cases) ExpectPatchRefused(patch, StatusCode::kInvalidArgument, message);
}

TEST(TokenizerErrors, NamesBadSplits) {
  const json split =
      json::parse(R"({"type": "Split", "pattern": {"Regex": "a"}, "behavior": "Isolated", "invert": false})");
  const std::pair<const char*, const char*> cases[] = {
      {R"({"behavior": "Apart"})", R"(pre_tokenizer.pretokenizers[0].behavior is "Apart", expected Isolated, Removed)"},
      {R"({"invert": null})", "pre_tokenizer.pretokenizers[0].invert is missing"},
      {R"({"pattern": "a"})", R"(pre_tokenizer.pretokenizers[0].pattern is "a", expected an object)"},
      {R"({"pattern": {"Regex": 1}})", "pre_tokenizer.pretokenizers[0].pattern.Regex is 1, expected a string"},
  };
  for (const auto& [patch, message] : cases) {
    json changed = split;
    changed.merge_patch(json::parse(patch));
    json document = Base();
    const json byte_level = document["pre_tokenizer"];
    document["pre_tokenizer"] = {{"type", "Sequence"}, {"pretokenizers", {changed, byte_level}}};
    ExpectRefused(document, StatusCode::kInvalidArgument, message);
  }
}

TEST(TokenizerErrors, NamesBadAddedTokens) {
  const json token =
      json::parse(R"({"id": 1000, "content": "<x>", "single_word": false, "lstrip": false, "rstrip": false,
                                     "normalized": false, "special": true})");
  const std::pair<const char*, const char*> cases[] = {
      {R"({"id": -1})", "added_tokens[0].id is -1"},
      {R"({"id": 4294967296})", "added_tokens[0].id is 4294967296"},
      {R"({"special": null})", "added_tokens[0].special is missing, expected true or false"},
      {R"({"lstrip": 1})", "added_tokens[0].lstrip is 1, expected true or false"},
  };
  for (const auto& [patch, message] : cases) {
    json document = Base();
    document["added_tokens"] = json::array({token});
    document["added_tokens"][0].merge_patch(json::parse(patch));
    ExpectRefused(document, StatusCode::kInvalidArgument, message);
  }
}

// Hugging Face's library passes over tokens without content, lets the last of equals count, and numbers
// tokens itself, with a warning where the file says otherwise.
TEST(TokenizerErrors, NumbersAddedTokensItself) {
  const json token =
      json::parse(R"({"id": 1000, "content": "<x>", "single_word": false, "lstrip": false, "rstrip": false,
                                     "normalized": false, "special": true})");
  const struct {
    const char* patch;
    std::vector<int32_t> ids;  // of "<x>A"
    const char* warning;
  } cases[] = {
      {R"({})", {1000, 32}, ""},
      {R"({"id": 3})", {1000, 32}, R"(added_tokens[0].id is 3, but "<x>" gets 1000, the next free id)"},
      {R"({"id": 4294967295})", {1000, 32}, R"(added_tokens[0].id is 4294967295, but "<x>" gets 1000)"},
      {R"({"content": "A"})", {27, 87, 29, 32}, R"(added_tokens[0].id is 1000, but "A" gets 32, as in model.vocab)"},
      {R"({"content": ""})", {27, 87, 29, 32}, ""},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.patch);
    json document = Base();
    json changed = token;
    changed.merge_patch(json::parse(c.patch));
    document["added_tokens"] = json::array({changed, changed});
    const auto tokenizer = ParseTokenizer(document);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    EXPECT_EQ((*tokenizer)->Encode("<x>A", false), c.ids);
    if (*c.warning == 0) {
      EXPECT_THAT((*tokenizer)->warnings(), testing::IsEmpty());
    } else {
      EXPECT_THAT((*tokenizer)->warnings(), testing::ElementsAre(HasSubstr(c.warning)));
    }
  }
}

TEST(TokenizerErrors, NamesBadJson) {
  const std::string text = Base().dump();
  for (const std::string& broken :
       {std::string(), std::string("{"), text.substr(0, text.size() / 2), text + "}", std::string("\xFF"),
        std::string("[]"), std::string(R"({"model": {"vocab": {"\ud800": 1}}})"), std::string(100'000, '[')}) {
    const auto tokenizer = Tokenizer::Parse({"dir", broken, std::nullopt, std::nullopt});
    ASSERT_FALSE(tokenizer.ok());
    EXPECT_EQ(tokenizer.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr("dir/tokenizer.json: "));
  }
}

TEST(TokenizerErrors, NamesBadBosAndEos) {
  const std::string text = Base().dump();
  const std::pair<const char*, const char*> cases[] = {
      {"[", "dir/tokenizer_config.json: not valid JSON"},
      {R"({"bos_token": 5})", "dir/tokenizer_config.json: bos_token is 5, expected a string or an object"},
      {R"({"eos_token": {"text": "A"}})", "dir/tokenizer_config.json: eos_token.content is missing"},
      {R"({"added_tokens_decoder": []})", "dir/tokenizer_config.json: added_tokens_decoder is [], expected an object"},
      {R"({"added_tokens_decoder": {"x": {"content": "y"}}})",
       R"(dir/tokenizer_config.json: added_tokens_decoder["x"]: expected an id from 0 to 4194303)"},
      {R"({"added_tokens_decoder": {"1000": "y"}})",
       R"(dir/tokenizer_config.json: added_tokens_decoder["1000"] is "y", expected an object)"},
      {R"({"added_tokens_decoder": {"1000": {"content": 5}}})",
       R"(dir/tokenizer_config.json: added_tokens_decoder["1000"].content is 5, expected a string)"},
      {R"({"additional_special_tokens": ["<x>", 5]})",
       "dir/tokenizer_config.json: additional_special_tokens[1] is 5, expected a string or an object"},
  };
  for (const auto& [config, message] : cases) {
    const auto tokenizer = Tokenizer::Parse({"dir", text, config, std::nullopt});
    ASSERT_FALSE(tokenizer.ok()) << config;
    EXPECT_EQ(tokenizer.status().code(), StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(tokenizer.status().message()), HasSubstr(message));
  }
}

// In transformers 5, special_tokens_map.json counts more than the config, unless that has the newer list.
TEST(TokenizerErrors, TakesBosAndEosFromTheMapWithoutANewerList) {
  const char* map = R"({"bos_token": "B", "eos_token": {"content": "C", "lstrip": false}})";
  const auto tokenizer =
      Tokenizer::Parse({"dir", Base().dump(), R"({"bos_token": "A", "eos_token": null})", std::string(map)});
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->TokenBytes((*tokenizer)->bos_id().value_or(-1)), "B");
  EXPECT_EQ((*tokenizer)->TokenBytes((*tokenizer)->eos_id().value_or(-1)), "C");
  const auto newer =
      Tokenizer::Parse({"dir", Base().dump(), R"({"bos_token": "A", "added_tokens_decoder": {}})", std::string(map)});
  ASSERT_TRUE(newer.ok()) << newer.status();
  EXPECT_EQ((*newer)->TokenBytes((*newer)->bos_id().value_or(-1)), "A");
  EXPECT_EQ((*newer)->eos_id(), std::nullopt);
  // A file that transformers would not open is not looked into.
  const auto broken = Tokenizer::Parse({"dir", Base().dump(), R"({"added_tokens_decoder": {}})", "{broken"});
  EXPECT_TRUE(broken.ok()) << broken.status();
}

TEST(TokenizerErrors, NamesMissingFiles) {
  std::string pattern = testing::TempDir() + "tokenizer_errors_XXXXXX";
  ASSERT_NE(mkdtemp(pattern.data()), nullptr);
  const std::filesystem::path dir = pattern;
  EXPECT_EQ(Tokenizer::Load(dir).status().code(), StatusCode::kNotFound);
  EXPECT_THAT(std::string(Tokenizer::Load(dir).status().message()),
              HasSubstr(dir.string() + ": no tokenizer: neither tokenizer.json nor"));
  // What else a tokenizer may be in is named, with what makes the file that is read.
  for (const char* name : {"vocab.json", "merges.txt", "vocab.txt", "spiece.model", "sentencepiece.bpe.model",
                           "tokenizer.model.v3", "tokenizer.json.incomplete", "encoder.json"}) {
    std::ofstream(dir / name) << "x";
    EXPECT_EQ(Tokenizer::Load(dir).status().code(), StatusCode::kUnimplemented) << name;
    EXPECT_THAT(std::string(Tokenizer::Load(dir).status().message()),
                testing::AllOf(HasSubstr(std::string("; ") + name + " is; "),
                               HasSubstr("AutoTokenizer as T; T.from_pretrained(\"" + dir.string() + "\")")));
    std::filesystem::remove(dir / name);
  }
  std::ofstream(dir / "special_tokens_map.json") << "{}";  // says nothing by itself
  EXPECT_EQ(Tokenizer::Load(dir).status().code(), StatusCode::kNotFound);
  std::filesystem::remove(dir / "special_tokens_map.json");
  std::ofstream(dir / "tokenizer.json") << Base();
  EXPECT_TRUE(Tokenizer::Load(dir).ok()) << Tokenizer::Load(dir).status();
  std::filesystem::create_directory(dir / "special_tokens_map.json");
  EXPECT_THAT(std::string(Tokenizer::Load(dir).status().message()), HasSubstr("special_tokens_map.json"));
  // A link to nothing was meant to be a file: it is not passed over as one that is missing.
  for (const char* name : {"tokenizer_config.json", "tokenizer.json"}) {
    std::filesystem::remove(dir / name);
    std::filesystem::create_symlink("gone", dir / name);
    EXPECT_EQ(Tokenizer::Load(dir).status().code(), StatusCode::kInvalidArgument);
    EXPECT_EQ(std::string(Tokenizer::Load(dir).status().message()), (dir / name).string() + ": a link to nothing");
  }
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace fastdecode
