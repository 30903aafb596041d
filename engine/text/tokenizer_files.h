#ifndef FASTDECODE_ENGINE_TEXT_TOKENIZER_FILES_H_
#define FASTDECODE_ENGINE_TEXT_TOKENIZER_FILES_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "engine/text/tokenizer_spec.h"

namespace fastdecode {

// The files of a model's folder that describe its tokenizer, as they are on disk.
struct TokenizerFiles {
  std::string dir;  // only for messages

  // The vocabulary: the first of these that is there.
  std::optional<std::string> tokenizer_json = {};

  // What stands beside it: named tokens (bos, eos) and whether they are put around a text, and tokens that
  // tokenizer.json does not list.
  std::optional<std::string> tokenizer_config_json = {};
  std::optional<std::string> special_tokens_map_json = {};
  std::optional<std::string> added_tokens_json = {};

  // Without a tokenizer.json: tokenizer.model, which holds SentencePiece's or tiktoken's data, tekken.json, or a
  // *.tiktoken, whose name `vocabulary_name` is.
  std::optional<std::string> vocabulary = {};
  std::string vocabulary_name = {};
  // Without any of these: a byte-level BPE in two files.
  std::optional<std::string> vocab_json = {};
  std::optional<std::string> merges_txt = {};

  // It tells the tokenizer's class by the model's type. What is wrong with it is not said here.
  std::optional<std::string> config_json = {};
};

// Errors: NotFound if there is nothing of a tokenizer; Unimplemented, saying what to do, if what is there is read in
// another form only; what absl::ErrnoToStatus makes of unreadable files; InvalidArgument for what is no such file.
absl::StatusOr<TokenizerFiles> ReadTokenizerFiles(const std::string& model_dir);

// Reads the vocabulary, then what the other files say. Errors as of ParseTokenizerJson.
absl::StatusOr<TokenizerSpec> ParseTokenizerSpec(const TokenizerFiles& files);

// For errors: the command that makes a tokenizer.json of what else is in a folder.
std::string HowToMakeTokenizerJson(const std::string& dir);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_TEXT_TOKENIZER_FILES_H_
