#ifndef FASTDECODE_ENGINE_TEXT_NAMED_TOKENS_H_
#define FASTDECODE_ENGINE_TEXT_NAMED_TOKENS_H_

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/text/tokenizer_spec.h"

namespace fastdecode {

// A JSON object of a model's folder; empty if the file is not there.
struct ConfigFile {
  std::string name;       // with its folder
  std::string_view text;  // which has the order of the fields; outlives this
  nlohmann::json object = nlohmann::json::object();
};

// The object that `text` holds. Errors: InvalidArgument for what is none.
absl::StatusOr<ConfigFile> ReadConfigFile(const std::optional<std::string>& text, const std::string& name);

// A special token that has a name, such as bos_token. Its content may be empty: then it is no token.
struct NamedToken {
  std::string name;
  AddedToken token;
};

// The special tokens that a folder's files name.
struct NamedTokens {
  std::vector<NamedToken> named;     // bos_token, eos_token, ..., mask_token, then a model's own, such as image_token
  std::vector<AddedToken> extra;     // those without names
  std::vector<std::string> unnamed;  // names that the files expressly give no token
  // What added_tokens.json takes for special by itself: a part of them.
  std::vector<std::string> of_lists;

  bool Says(std::string_view name) const;  // a token, or that there is none
  const AddedToken* Find(std::string_view name) const;
};

// What transformers 5 makes of tokenizer_config.json and special_tokens_map.json, in its order: the map counts more;
// extra_special_tokens more than the older additional_special_tokens; null takes a name away, and what is empty is
// passed over where Python's truth does. An object need not say that it is a token ("__type"). Without a map, pass an
// empty one. Errors: InvalidArgument, with file, field and value.
absl::StatusOr<NamedTokens> ReadNamedTokens(const ConfigFile& config, const ConfigFile& map);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_TEXT_NAMED_TOKENS_H_
