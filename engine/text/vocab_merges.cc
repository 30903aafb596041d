#include "engine/text/vocab_merges.h"

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/model/json_fields.h"
#include "engine/text/tokenizer_class.h"
#include "engine/text/tokenizer_json.h"

namespace fastdecode {
namespace {

using nlohmann::json;

// An object of a file that others complain about if it is none.
json ObjectOf(const std::optional<std::string>& text) {
  const absl::StatusOr<json> object = ParseJsonObject(text.value_or("{}"), "");
  return object.ok() ? *object : json::object();
}

json Lines(std::string_view text) {
  json lines = json::array();
  while (!text.empty()) {
    const size_t end = text.find('\n');
    std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (!line.empty() && !line.starts_with("#version")) lines.push_back(std::string(line));
  }
  return lines;
}

json StepsOf(const TokenizerClass& known, bool add_prefix_space) {
  const json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", add_prefix_space}, {"use_regex", *known.pattern == '\0'}};
  if (*known.pattern == '\0') return byte_level;
  const json split = {
      {"type", "Split"}, {"pattern", {{"Regex", known.pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
  return {{"type", "Sequence"}, {"pretokenizers", {split, byte_level}}};
}

}  // namespace

absl::StatusOr<TokenizerSpec> ParseVocabAndMerges(const TokenizerFiles& files) {
  const json config = ObjectOf(files.tokenizer_config_json), model_config = ObjectOf(files.config_json);
  const TokenizerClass* known = FindTokenizerClass(config, model_config, /*byte_level=*/false);
  if (known == nullptr || known->pattern == nullptr) {
    const std::string name = TokenizerClassName(config, model_config);
    return absl::UnimplementedError(absl::StrCat(
        files.dir, "/vocab.json: without a tokenizer.json, vocab.json and merges.txt are read for the ",
        "classes GPT2Tokenizer, CodeGenTokenizer, Qwen2Tokenizer and GPTNeoXTokenizer, and tokenizer_class ",
        "of tokenizer_config.json is ", name.empty() ? "missing" : ShowText(name), "; name the class, or ",
        HowToMakeTokenizerJson(files.dir)));
  }
  const std::string vocab_file = absl::StrCat(files.dir, "/vocab.json");
  absl::StatusOr<json> vocab = ParseJsonObject(*files.vocab_json, vocab_file);
  if (!vocab.ok()) return vocab.status();
  const auto prefix = config.find("add_prefix_space");
  const bool add_prefix_space = prefix != config.end() && prefix->is_boolean() && prefix->get<bool>();
  json document = {{"model", {{"type", "BPE"}, {"merges", Lines(*files.merges_txt)}}},
                   {"pre_tokenizer", StepsOf(*known, add_prefix_space)},
                   {"decoder", {{"type", "ByteLevel"}}}};
  document["model"]["vocab"] = *std::move(vocab);
  if (known->composes) document["normalizer"] = {{"type", "NFC"}};
  return ParseTokenizerDocument(document, vocab_file + ", merges.txt");
}

}  // namespace fastdecode
