#include "engine/text/tokenizer_files.h"

#include <dirent.h>

#include <algorithm>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/model/json_fields.h"
#include "engine/model/model_folder.h"
#include "engine/text/sentencepiece_model.h"
#include "engine/text/tiktoken_files.h"
#include "engine/text/tokenizer_config.h"
#include "engine/text/tokenizer_json.h"
#include "engine/text/vocab_merges.h"

namespace fastdecode {
namespace {

constexpr int64_t kFileBytesMax = 128 << 20;  // the largest published ones have some 35 MB

constexpr size_t kFirstBytes = 512;

// Leaves *text empty if there is no such file.
absl::Status ReadOptionalFile(const std::string& path, std::optional<std::string>* text) {
  absl::StatusOr<std::string> read = ReadTextFile(path, kFileBytesMax);
  if (read.ok()) *text = *std::move(read);
  return absl::IsNotFound(read.status()) ? absl::OkStatus() : read.status();
}

// The same of a file that is no JSON, of which nothing else finds out that it is another one.
absl::Status ReadOptionalData(const std::string& path, std::optional<std::string>* text) {
  if (absl::Status bad = ReadOptionalFile(path, text); !bad.ok() || !text->has_value()) return bad;
  const std::string guess = GuessContent(std::string_view(**text).substr(0, kFirstBytes));
  return guess.empty() ? absl::OkStatus() : absl::InvalidArgumentError(absl::StrCat(path, ": ", guess));
}

std::vector<std::string> NamesOf(const std::string& dir) {
  const std::unique_ptr<DIR, int (*)(DIR*)> open(opendir(dir.c_str()), closedir);
  std::vector<std::string> names;
  while (const dirent* entry = open == nullptr ? nullptr : readdir(open.get())) names.emplace_back(entry->d_name);
  std::sort(names.begin(), names.end());
  return names;
}

// The first by name of the folder's files that end in .tiktoken; empty if there is none.
std::string FindTiktoken(const std::string& dir) {
  for (std::string& name : NamesOf(dir)) {
    if (name.ends_with(".tiktoken")) return std::move(name);
  }
  return "";
}

// What of a tokenizer is in a folder without any file that is read.
absl::Status ExplainMissing(const std::string& dir) {
  std::vector<std::string> there;
  for (const std::string& name : NamesOf(dir)) {
    static constexpr const char* kParts[] = {"vocab.json", "merges.txt",   "vocab.txt",
                                             "vocab.bpe",  "encoder.json", "bpe.codes"};
    const bool is_part = std::find(std::begin(kParts), std::end(kParts), name) != std::end(kParts);
    const bool is_model = name.ends_with(".model") || name.starts_with("tokenizer.model");
    if (is_part || is_model || name.starts_with("tokenizer.json")) there.push_back(ShowText(name));
  }
  std::string missing = absl::StrCat(dir, ": no tokenizer: neither tokenizer.json nor tokenizer.model, tekken.json, ",
                                     "*.tiktoken, or vocab.json with merges.txt is there");
  if (there.empty()) return absl::NotFoundError(missing);
  const bool sentencepiece =
      std::any_of(there.begin(), there.end(), [](const std::string& name) { return name.find(".model") != name.npos; });
  return absl::UnimplementedError(
      absl::StrCat(missing, "; ", absl::StrJoin(there, " and "), there.size() > 1 ? " are; " : " is; ",
                   sentencepiece ? "if that is a SentencePiece model of type BPE, name it tokenizer.model, else " : "",
                   HowToMakeTokenizerJson(dir)));
}

absl::Status ReadVocabulary(TokenizerFiles* files) {
  std::vector<std::string> names = {"tokenizer.model", "tekken.json", "tiktoken.model"};
  if (std::string name = FindTiktoken(files->dir); !name.empty()) names.push_back(std::move(name));
  for (const std::string& name : names) {
    if (absl::Status bad = ReadOptionalData(absl::StrCat(files->dir, "/", name), &files->vocabulary); !bad.ok()) {
      return bad;
    }
    files->vocabulary_name = name;
    if (files->vocabulary.has_value()) return absl::OkStatus();
  }
  absl::Status bad = ReadOptionalFile(absl::StrCat(files->dir, "/vocab.json"), &files->vocab_json);
  if (bad.ok()) bad = ReadOptionalData(absl::StrCat(files->dir, "/merges.txt"), &files->merges_txt);
  if (!bad.ok() || (files->vocab_json.has_value() && files->merges_txt.has_value())) return bad;
  return ExplainMissing(files->dir);
}

absl::StatusOr<TokenizerSpec> ParseVocabulary(const TokenizerFiles& files) {
  if (files.tokenizer_json.has_value()) {
    return ParseTokenizerJson(*files.tokenizer_json, absl::StrCat(files.dir, "/tokenizer.json"));
  }
  if (files.vocab_json.has_value() && files.merges_txt.has_value()) return ParseVocabAndMerges(files);
  if (!files.vocabulary.has_value()) return absl::NotFoundError(absl::StrCat(files.dir, ": no tokenizer"));
  const std::string file = absl::StrCat(files.dir, "/", files.vocabulary_name);
  if (files.vocabulary_name == "tekken.json") return ParseTekkenJson(*files.vocabulary, file);
  if (files.vocabulary_name == "tokenizer.model" && !IsTiktokenRanks(*files.vocabulary)) {
    return ParseSentencePieceModel(*files.vocabulary, file);
  }
  return ParseTiktokenRanks(*files.vocabulary, file);
}

}  // namespace

absl::StatusOr<TokenizerFiles> ReadTokenizerFiles(const std::string& model_dir) {
  TokenizerFiles files;
  files.dir = model_dir;
  const std::pair<const char*, std::optional<std::string>*> wanted[] = {
      {"tokenizer.json", &files.tokenizer_json},
      {"tokenizer_config.json", &files.tokenizer_config_json},
      {"special_tokens_map.json", &files.special_tokens_map_json},
      {"added_tokens.json", &files.added_tokens_json}};
  for (const auto& [name, text] : wanted) {
    if (absl::Status bad = ReadOptionalFile(absl::StrCat(model_dir, "/", name), text); !bad.ok()) return bad;
  }
  (void)ReadOptionalFile(absl::StrCat(model_dir, "/config.json"), &files.config_json);
  if (files.tokenizer_json.has_value()) return files;
  if (absl::Status bad = ReadVocabulary(&files); !bad.ok()) return bad;
  return files;
}

absl::StatusOr<TokenizerSpec> ParseTokenizerSpec(const TokenizerFiles& files) {
  absl::StatusOr<TokenizerSpec> spec = ParseVocabulary(files);
  if (!spec.ok()) return spec;
  if (absl::Status bad = ApplyTokenizerConfig(files, &*spec); !bad.ok()) return bad;
  return spec;
}

std::string HowToMakeTokenizerJson(const std::string& dir) {
  return absl::StrCat(
      "make a tokenizer.json with Python: from transformers import AutoTokenizer as T; T.from_pretrained(\"", dir,
      "\").save_pretrained(\"", dir, "\")");
}

}  // namespace fastdecode
