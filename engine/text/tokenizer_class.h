#ifndef FASTDECODE_ENGINE_TEXT_TOKENIZER_CLASS_H_
#define FASTDECODE_ENGINE_TEXT_TOKENIZER_CLASS_H_

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fastdecode {

// What a tokenizer class of transformers 5 knows beside the files.
struct TokenizerClass {
  std::string_view name;
  // Special tokens that it names where no file does, in its order.
  std::vector<std::pair<std::string_view, std::string_view>> tokens;
  // How it cuts text that comes from vocab.json and merges.txt: a pattern before ByteLevel's spelling of bytes, or
  // ByteLevel's own where this is empty. Null: it does not read these files.
  const char* pattern = nullptr;
  bool composes = false;    // NFC comes first
  bool puts_spaces = true;  // add_prefix_space says whether a text gets a space first
};

// The class that AutoTokenizer takes for a folder, by its tokenizer_config.json and config.json; null if it knows
// nothing beside the files (TokenizersBackend, which is taken for most). `byte_level`: tokenizer.json has a ByteLevel.
const TokenizerClass* FindTokenizerClass(const nlohmann::json& tokenizer_config, const nlohmann::json& model_config,
                                         bool byte_level);

// The name of the class, as the files say it or as it follows from the type of the model; empty if they do not.
std::string TokenizerClassName(const nlohmann::json& tokenizer_config, const nlohmann::json& model_config);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_TEXT_TOKENIZER_CLASS_H_
