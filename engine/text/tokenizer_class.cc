#include "engine/text/tokenizer_class.h"

#include <algorithm>

namespace fastdecode {
namespace {

using nlohmann::json;

constexpr char kQwen2Pattern[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

const std::vector<TokenizerClass>& Classes() {
  static const auto* const classes = new std::vector<TokenizerClass>{
      {"GPT2Tokenizer",
       {{"bos_token", "<|endoftext|>"}, {"eos_token", "<|endoftext|>"}, {"unk_token", "<|endoftext|>"}},
       ""},
      {"CodeGenTokenizer",
       {{"bos_token", "<|endoftext|>"}, {"eos_token", "<|endoftext|>"}, {"unk_token", "<|endoftext|>"}},
       ""},
      {"Qwen2Tokenizer",
       {{"eos_token", "<|endoftext|>"}, {"unk_token", "<|endoftext|>"}, {"pad_token", "<|endoftext|>"}},
       kQwen2Pattern,
       true},
      {"Qwen3_5Tokenizer",
       {{"eos_token", "<|endoftext|>"}, {"unk_token", "<|endoftext|>"}, {"pad_token", "<|endoftext|>"}}},
      {"GPTNeoXTokenizer",
       {{"bos_token", "<|endoftext|>"},
        {"eos_token", "<|endoftext|>"},
        {"unk_token", "<|endoftext|>"},
        {"pad_token", "<|padding|>"}},
       "",
       true},
      {"LlamaTokenizer", {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}}},
      {"CodeLlamaTokenizer", {{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"unk_token", "<unk>"}}},
      {"GemmaTokenizer",
       {{"bos_token", "<bos>"},
        {"eos_token", "<eos>"},
        {"unk_token", "<unk>"},
        {"pad_token", "<pad>"},
        {"mask_token", "<mask>"}},
       nullptr,
       false,
       false},
      {"CohereTokenizer",
       {{"bos_token", "<BOS_TOKEN>"},
        {"eos_token", "<|END_OF_TURN_TOKEN|>"},
        {"unk_token", "<UNK>"},
        {"sep_token", "<SEP>"},
        {"pad_token", "<PAD>"},
        {"cls_token", "<CLS>"},
        {"mask_token", "<MASK_TOKEN>"}}}};
  return *classes;
}

// What transformers 5 registers for a type of model, of those that are served here; empty for one that it does not list
// (llama).
std::string_view ClassOfModelType(std::string_view type) {
  static constexpr std::pair<std::string_view, std::string_view> kClasses[] = {
      {"qwen2", "Qwen2Tokenizer"},       {"qwen3", "Qwen2Tokenizer"},        {"gemma", "GemmaTokenizer"},
      {"gemma2", "GemmaTokenizer"},      {"gemma3", "GemmaTokenizer"},       {"gemma3_text", "GemmaTokenizer"},
      {"cohere", "CohereTokenizer"},     {"cohere2", "CohereTokenizer"},     {"gpt2", "GPT2Tokenizer"},
      {"opt", "GPT2Tokenizer"},          {"phi", "GPT2Tokenizer"},           {"starcoder2", "GPT2Tokenizer"},
      {"gpt_neox", "GPTNeoXTokenizer"},  {"olmo", "GPTNeoXTokenizer"},       {"mistral", "TokenizersBackend"},
      {"mistral3", "TokenizersBackend"}, {"ministral", "TokenizersBackend"}, {"ministral3", "TokenizersBackend"},
      {"granite", "TokenizersBackend"},  {"olmo2", "TokenizersBackend"},     {"olmo3", "TokenizersBackend"},
      {"glm", "TokenizersBackend"},      {"glm4", "TokenizersBackend"},      {"nemotron", "TokenizersBackend"},
      {"phi3", "TokenizersBackend"},
  };
  for (const auto& [name, of_type] : kClasses) {
    if (name == type) return of_type;
  }
  return "";
}

std::string TextField(const json& object, const char* name) {
  if (!object.is_object()) return "";
  const auto found = object.find(name);
  return found != object.end() && found->is_string() ? found->get<std::string>() : "";
}

// Without the "Fast" that transformers 4 put behind.
std::string GivenClass(const json& tokenizer_config, const json& model_config) {
  std::string name = TextField(tokenizer_config, "tokenizer_class");
  if (name.empty()) name = TextField(model_config, "tokenizer_class");
  if (name.ends_with("Fast")) name.resize(name.size() - 4);
  return name;
}

}  // namespace

std::string TokenizerClassName(const json& tokenizer_config, const json& model_config) {
  const std::string given = GivenClass(tokenizer_config, model_config);
  const std::string type = TextField(model_config, "model_type");
  const std::string_view registered = ClassOfModelType(type);
  if (given.empty()) return std::string(registered);
  // transformers takes the names in files of Qwen 2 for wrong.
  const bool overruled = registered == "TokenizersBackend" || type == "qwen2";
  return overruled ? std::string(registered) : given;
}

const TokenizerClass* FindTokenizerClass(const json& tokenizer_config, const json& model_config, bool byte_level) {
  const std::string name = TokenizerClassName(tokenizer_config, model_config);
  if (name == "LlamaTokenizer" && byte_level) return nullptr;  // Llama 3's files name it, but mean another
  const auto found =
      std::find_if(Classes().begin(), Classes().end(), [&](const TokenizerClass& known) { return known.name == name; });
  return found == Classes().end() ? nullptr : &*found;
}

}  // namespace fastdecode
