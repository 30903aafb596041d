// Folders whose tokenizer files contradict each other, are empty in places or lack what has a default, against what
// transformers and `tokenizers` make of them: tests/golden/tokenizer/odd.json, which make_odd_goldens.py writes.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "absl/strings/str_split.h"
#include "tests/engine/text/golden_files.h"

namespace fastdecode {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

// What the libraries refuse, and why it is taken here.
const std::set<std::string>& TakenHere() {
  static const auto* const names = new std::set<std::string>{};
  return *names;
}

void SetAt(const std::string& path, const json& value, json* document) {
  json* place = document;
  for (const absl::string_view part : absl::StrSplit(path, '/')) {
    const std::string name(part);
    place = place->is_array() ? &(*place)[std::stoul(name)] : &(*place)[name];
  }
  *place = value;
}

TokenizerFiles FilesOf(const json& golden) {
  json document = ReadGoldenJson(golden["base"].get<std::string>() + "/tokenizer.json");
  if (golden.contains("patch")) document.merge_patch(golden["patch"]);
  if (golden.contains("set")) {
    for (const auto& [path, value] : golden["set"].items()) SetAt(path, value, &document);
  }
  TokenizerFiles files = {.dir = "DIR"};
  if (golden.contains("split")) {
    files.vocab_json = document["model"]["vocab"].dump();
    files.merges_txt = "#version: 0.2\n";
    for (const json& merge : document["model"]["merges"]) {
      *files.merges_txt += merge[0].get<std::string>() + " " + merge[1].get<std::string>() + "\n";
    }
  } else {
    files.tokenizer_json = document.dump();
  }
  const std::pair<const char*, std::optional<std::string>*> others[] = {
      {"tokenizer_config.json", &files.tokenizer_config_json},
      {"special_tokens_map.json", &files.special_tokens_map_json},
      {"added_tokens.json", &files.added_tokens_json},
      {"config.json", &files.config_json}};
  files.config_json = R"({"model_type": "llama"})";
  for (const auto& [name, text] : others) {
    if (golden.contains("files") && golden["files"].contains(name)) *text = golden["files"][name].get<std::string>();
  }
  return files;
}

void ExpectSame(const Tokenizer& tokenizer, const json& golden, const std::vector<std::string>& texts) {
  const json encodings = golden.value("encodings", json::array());
  ASSERT_EQ(encodings.size(), golden.contains("names_only") ? 0 : texts.size());
  for (size_t i = 0; i < encodings.size(); ++i) {
    SCOPED_TRACE(texts[i]);
    const json& encoding = encodings[i];
    const Ids ids = encoding["ids"].get<Ids>();
    EXPECT_EQ(tokenizer.Encode(texts[i], false), ids);
    EXPECT_EQ(tokenizer.Encode(texts[i], true), encoding.value("around", ids));
    EXPECT_EQ(tokenizer.Decode(ids, false), encoding.value("decoded", texts[i]));
    EXPECT_EQ(tokenizer.Decode(ids, true), encoding.value("skipped", texts[i]));
  }
  const json added = golden.value("added", json::object());
  for (const auto& [id, token] : added.items()) {
    EXPECT_EQ(tokenizer.TokenBytes(std::stoi(id)), token[0].get<std::string>());
    EXPECT_EQ(tokenizer.IsSpecial(std::stoi(id)), token[1].get<bool>()) << token;
  }
  if (!golden.contains("named")) return;  // `tokenizers` knows no names
  const std::map<std::string, std::string> named(tokenizer.named_tokens().begin(), tokenizer.named_tokens().end());
  EXPECT_EQ(json(named), golden["named"]);
  EXPECT_EQ(tokenizer.bos_id().value_or(-1), golden["bos_id"].is_null() ? -1 : golden["bos_id"].get<int>());
  EXPECT_EQ(tokenizer.eos_id().value_or(-1), golden["eos_id"].is_null() ? -1 : golden["eos_id"].get<int>());
}

TEST(TokenizerOdd, EqualsTransformers) {
  const json goldens = ReadGoldenJson("odd.json");
  const std::vector<std::string> texts = goldens["texts"];
  ASSERT_GE(goldens["cases"].size(), 190u);
  size_t taken = 0, refused = 0;
  for (const json& golden : goldens["cases"]) {
    const std::string name = golden["name"];
    SCOPED_TRACE(name);
    const auto tokenizer = Tokenizer::Parse(FilesOf(golden));
    if (golden.contains("refused")) {
      ++refused;
      EXPECT_EQ(tokenizer.ok(), TakenHere().contains(name)) << golden["refused"];
      if (!tokenizer.ok()) EXPECT_THAT(std::string(tokenizer.status().message()), testing::StartsWith("DIR/"));
      continue;
    }
    EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
    if (!tokenizer.ok()) continue;
    ++taken;
    ExpectSame(**tokenizer, golden, golden.value("texts", texts));
  }
  EXPECT_GE(taken, 150u);
  EXPECT_GE(refused, 30u);
}

}  // namespace
}  // namespace fastdecode
