#include "engine/text/tiktoken_kinds.h"

#include <initializer_list>

#include "absl/strings/str_cat.h"

namespace fastdecode {
namespace {

// Llama 3's (llama_models/llama3/tokenizer.py), and the one that cl100k was published with. tiktoken has since written
// cl100k's otherwise, to match the same in less time.
constexpr char kCl100kPattern[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Qwen's tokenization_qwen.py: the same, but for digits one by one.
constexpr char kQwenPattern[] =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// tiktoken_ext/openai_public.py, and Llama 4's (llama_models/llama4/tokenizer.py).
constexpr char kO200kPattern[] =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Kimi's tokenization_kimi.py: o200k's, but for runs of Chinese characters that are pieces of their own.
constexpr char kKimiPattern[] =
    R"([\p{Han}]+|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*)"
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?|)"
    R"(\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// Gives special tokens ids one after the other.
class Names {
 public:
  Names(TiktokenKind* kind, int32_t first_id) : kind_(kind), next_id_(first_id) {}

  void Add(std::string content) { kind_->special_tokens.emplace_back(next_id_++, std::move(content)); }
  void AddAll(std::initializer_list<const char*> contents) {
    for (const char* content : contents) Add(content);
  }
  // `count` tokens "<|NAME_N|>", N from `start` on.
  void AddNumbered(const char* name, int start, int count) {
    for (int i = start; i < start + count; ++i) Add(absl::StrCat("<|", name, "_", i, "|>"));
  }
  int32_t next_id() const { return next_id_; }

 private:
  TiktokenKind* const kind_;
  int32_t next_id_;
};

// tiktoken_ext/openai_public.py
TiktokenKind Cl100k() {
  TiktokenKind kind;
  kind.pattern = kCl100kPattern;
  Names(&kind, 100257).AddAll({"<|endoftext|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>"});
  Names(&kind, 100276).Add("<|endofprompt|>");
  kind.eos_id = 100257;
  return kind;
}

// llama_models/llama3/tokenizer.py
TiktokenKind Llama3() {
  TiktokenKind kind;
  kind.pattern = kCl100kPattern;
  Names names(&kind, 128000);
  names.AddAll({"<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>",
                "<|finetune_right_pad_id|>", "<|step_id|>", "<|start_header_id|>", "<|end_header_id|>", "<|eom_id|>",
                "<|eot_id|>", "<|python_tag|>", "<|image|>"});
  names.AddNumbered("reserved_special_token", 2, 244);
  kind.bos_id = 128000;
  kind.eos_id = 128001;
  kind.add_bos = true;
  return kind;
}

// Qwen's tokenization_qwen.py
TiktokenKind Qwen() {
  TiktokenKind kind;
  kind.pattern = kQwenPattern;
  Names names(&kind, 151643);
  names.AddAll({"<|endoftext|>", "<|im_start|>", "<|im_end|>"});
  names.AddNumbered("extra", 0, 205);
  kind.eos_id = 151643;
  return kind;
}

// Kimi's tokenization_kimi.py
TiktokenKind Kimi() {
  TiktokenKind kind;
  kind.pattern = kKimiPattern;
  Names names(&kind, 163584);
  names.AddAll({"[BOS]", "[EOS]"});
  names.AddNumbered("reserved_token", 163586, 254);
  kind.bos_id = 163584;
  kind.eos_id = 163585;
  return kind;
}

// tiktoken_ext/openai_public.py, o200k_harmony. It has two names for 200018, of which gpt-oss's files have this one.
TiktokenKind O200k() {
  TiktokenKind kind;
  kind.pattern = kO200kPattern;
  Names names(&kind, 199998);
  names.AddAll({"<|startoftext|>", "<|endoftext|>", "<|reserved_200000|>", "<|reserved_200001|>", "<|return|>",
                "<|constrain|>", "<|reserved_200004|>", "<|channel|>", "<|start|>", "<|end|>", "<|message|>",
                "<|reserved_200009|>", "<|reserved_200010|>", "<|reserved_200011|>", "<|call|>"});
  names.AddNumbered("reserved", names.next_id(), 5);
  names.Add("<|endofprompt|>");
  names.AddNumbered("reserved", names.next_id(), 1069);
  kind.bos_id = 199998;
  kind.eos_id = 199999;
  return kind;
}

// llama_models/llama4/tokenizer.py
TiktokenKind Llama4() {
  TiktokenKind kind;
  kind.pattern = kO200kPattern;
  Names names(&kind, 200000);
  names.AddAll({"<|begin_of_text|>", "<|end_of_text|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>",
                "<|header_start|>", "<|header_end|>", "<|eom|>", "<|eot|>", "<|step|>"});
  names.AddNumbered("text_post_train_reserved_special_token", 0, 6);
  names.AddAll({"<|python_start|>", "<|python_end|>", "<|finetune_right_pad|>"});
  names.AddNumbered("text_post_train_reserved_special_token", 8, 61);
  names.AddAll({"<|image_start|>", "<|image_end|>"});
  names.AddNumbered("vision_reserved_special_token", 0, 2);
  names.AddAll({"<|tile_x_separator|>", "<|tile_y_separator|>"});
  names.AddNumbered("vision_reserved_special_token", 2, 4);
  names.AddAll({"<|image|>", "<|vision_reserved_special_token_6|>", "<|patch|>"});
  names.AddNumbered("vision_reserved_special_token", 7, 1041);
  names.AddNumbered("reasoning_reserved_special_token", 0, 8);
  names.AddAll({"<|reasoning_thinking_start|>", "<|reasoning_thinking_end|>"});
  names.AddNumbered("reserved_special_token", 0, 2048 - (names.next_id() - 200000));
  kind.bos_id = 200000;
  kind.eos_id = 200001;
  kind.add_bos = true;
  return kind;
}

}  // namespace

std::optional<TiktokenKind> FindTiktokenKind(size_t ranks) {
  switch (ranks) {
    case 100256:
      return Cl100k();
    case 128000:
      return Llama3();
    case 151643:
      return Qwen();
    case 163584:
      return Kimi();
    case 199998:
      return O200k();
    case 200000:
      return Llama4();
    default:
      return std::nullopt;
  }
}

}  // namespace fastdecode
