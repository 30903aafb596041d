#include "engine/text/tokenizer_files.h"

#include <dirent.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/model/json_fields.h"
#include "engine/text/sentencepiece_model.h"
#include "engine/text/tiktoken_files.h"
#include "engine/text/tokenizer_config.h"
#include "engine/text/tokenizer_json.h"

namespace fastdecode {
namespace {

constexpr int64_t kFileBytesMax = 128 << 20;  // the largest published ones have some 35 MB

// Leaves *text empty if there is no such file.
absl::Status ReadOptionalFile(const std::string& path, std::optional<std::string>* text) {
  absl::StatusOr<std::string> read = ReadTextFile(path, kFileBytesMax);
  if (read.ok()) *text = *std::move(read);
  return absl::IsNotFound(read.status()) ? absl::OkStatus() : read.status();
}

// The first by name of the folder's files that end in .tiktoken; empty if there is none.
std::string FindTiktoken(const std::string& dir) {
  const std::unique_ptr<DIR, int (*)(DIR*)> open(opendir(dir.c_str()), closedir);
  std::string first;
  while (const dirent* entry = open == nullptr ? nullptr : readdir(open.get())) {
    const std::string name = entry->d_name;
    if (name.ends_with(".tiktoken") && (first.empty() || name < first)) first = name;
  }
  return first;
}

absl::Status ReadVocabulary(TokenizerFiles* files) {
  std::vector<std::string> names = {"tokenizer.model", "tekken.json", "tiktoken.model"};
  if (std::string name = FindTiktoken(files->dir); !name.empty()) names.push_back(std::move(name));
  for (const std::string& name : names) {
    if (absl::Status bad = ReadOptionalFile(absl::StrCat(files->dir, "/", name), &files->vocabulary); !bad.ok()) {
      return bad;
    }
    files->vocabulary_name = name;
    if (files->vocabulary.has_value()) return absl::OkStatus();
  }
  return absl::NotFoundError(absl::StrCat(files->dir, ": no tokenizer: neither tokenizer.json nor tokenizer.model, ",
                                          "tekken.json or *.tiktoken is there"));
}

absl::StatusOr<TokenizerSpec> ParseVocabulary(const TokenizerFiles& files) {
  if (files.tokenizer_json.has_value()) {
    return ParseTokenizerJson(*files.tokenizer_json, absl::StrCat(files.dir, "/tokenizer.json"));
  }
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

}  // namespace fastdecode
