#ifndef FASTDECODE_ENGINE_TEXT_CHAT_CHAT_FILES_H_
#define FASTDECODE_ENGINE_TEXT_CHAT_CHAT_FILES_H_

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace fastdecode {

struct ChatTemplateSource {
  std::string file;  // for errors
  std::string name;  // "default", "tool_use", ...
  std::string text;
};

// What a model's folder says of chats.
struct ChatFiles {
  std::vector<ChatTemplateSource> templates;
  // Tokens that templates know by name, such as bos_token, and their texts.
  std::vector<std::pair<std::string, std::string>> special_tokens;
  // Added tokens that no request may spell, beside special ones; without a list, those that the templates spell.
  std::vector<std::string> control_tokens;
  bool has_control_tokens = false;
  // For the log: templates that others count before.
  std::vector<std::string> warnings;
};

// Reads, as transformers 5 does, the first of these that is there: `given`, which is a path or empty; the folder's
// chat_template.jinja with additional_chat_templates/*.jinja; chat_template of tokenizer_config.json, which is a text
// or a list of named ones; chat_template.json, which older folders of multimodal models have. Tokens come from
// tokenizer_config.json and special_tokens_map.json. NotFound: there is no template. Other errors name file and field.
absl::StatusOr<ChatFiles> ReadChatFiles(const std::string& model_dir, const std::string& given);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_TEXT_CHAT_CHAT_FILES_H_
