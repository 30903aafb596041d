#include "tools/serve/openai/refused_fields.h"

#include <span>
#include <string>
#include <string_view>

#include "tools/serve/api_error.h"
#include "tools/serve/openai/body_fields.h"

namespace fastdecode::serve {
namespace {

// The value of a field, beside null, that asks for nothing.
enum class Idle {
  kNone,
  kFalse,
  kTrue,
  kZero,
  kOne,
  kMinusOne,
  kEmpty,
  kWordAuto,
  kWordNone,
  kTextFormat,
  kTextModality
};

struct UnservedField {
  std::string_view name;
  Idle idle;
  std::string_view advice = {};  // what to do instead
};

// Of every endpoint.
constexpr UnservedField kUnserved[] = {
    // Other names of fields that are served.
    {"max_new_tokens", Idle::kNone, "give max_tokens"},
    {"n_predict", Idle::kNone, "give max_tokens"},
    {"num_predict", Idle::kNone, "give max_tokens"},
    {"max_length", Idle::kNone, "give max_tokens, which does not count the prompt"},
    {"min_new_tokens", Idle::kNone, "give min_tokens"},
    {"num_return_sequences", Idle::kOne, "give n"},
    {"return_full_text", Idle::kFalse, "give echo"},
    {"options", Idle::kEmpty, "give its fields beside this one"},
    {"repeat_penalty", Idle::kOne, "give repetition_penalty"},
    {"stop_sequences", Idle::kEmpty, "give stop"},
    {"no_stop_trim", Idle::kFalse, "give include_stop_str_in_output"},
    // What the text would follow.
    {"truncate_prompt_tokens", Idle::kNone, "cut the prompt before it is sent; POST /tokenize counts its tokens"},
    {"audio", Idle::kNone, "answers are text"},
    {"modalities", Idle::kTextModality, "answers are text"},
    {"web_search_options", Idle::kNone, "nothing is searched"},
    {"moderation", Idle::kNone, "nothing is moderated"},
    {"lora_request", Idle::kNone, "there are no adapters"},
    {"lora_path", Idle::kNone, "there are no adapters"},
    {"kv_transfer_params", Idle::kNone},
    {"ec_transfer_params", Idle::kNone},
    {"vllm_xargs", Idle::kEmpty},
    // What the text would be limited to.
    {"response_format", Idle::kTextFormat, "only {\"type\": \"text\"} is served"},
    {"structured_outputs", Idle::kNone, "only free text is served"},
    {"guided_json", Idle::kNone, "only free text is served"},
    {"guided_regex", Idle::kNone, "only free text is served"},
    {"guided_choice", Idle::kNone, "only free text is served"},
    {"guided_grammar", Idle::kNone, "only free text is served"},
    {"guided_decoding_backend", Idle::kNone, "only free text is served"},
    {"guided_whitespace_pattern", Idle::kNone, "only free text is served"},
    {"structural_tag", Idle::kNone, "only free text is served"},
    {"grammar", Idle::kEmpty, "only free text is served"},
    {"json_schema", Idle::kEmpty, "only free text is served"},
    {"regex", Idle::kEmpty, "only free text is served"},
    {"ebnf", Idle::kEmpty, "only free text is served"},
    {"allowed_token_ids", Idle::kNone, "raise or lower tokens with logit_bias"},
    {"bad_words", Idle::kEmpty, "lower tokens with logit_bias, or give stop"},
    {"logits_processors", Idle::kEmpty, "raise or lower tokens with logit_bias"},
    {"custom_logit_processor", Idle::kNone, "raise or lower tokens with logit_bias"},
    {"stop_regex", Idle::kEmpty, "give strings in stop"},
    {"repetition_detection", Idle::kNone, "give repetition_penalty or frequency_penalty"},
    {"thinking_token_budget", Idle::kMinusOne, "give max_tokens"},
    // How it would be chosen.
    {"do_sample", Idle::kTrue, "give temperature 0"},
    {"use_beam_search", Idle::kFalse, "tokens are sampled"},
    {"num_beams", Idle::kOne, "tokens are sampled"},
    {"length_penalty", Idle::kOne, "this goes with beam search, which is not served"},
    {"early_stopping", Idle::kFalse, "this goes with beam search, which is not served"},
    {"repeat_last_n", Idle::kMinusOne, "give repetition_penalty, which counts all tokens"},
    {"samplers", Idle::kEmpty, "give temperature, top_k, top_p and min_p"},
    {"typical_p", Idle::kOne, "give top_p or min_p"},
    {"tfs_z", Idle::kOne, "give top_p or min_p"},
    {"top_a", Idle::kZero, "give min_p"},
    {"top_n_sigma", Idle::kMinusOne, "give top_k or min_p"},
    {"xtc_probability", Idle::kZero},
    {"dynatemp_range", Idle::kZero, "give temperature"},
    {"mirostat", Idle::kZero, "give temperature and top_p"},
    {"dry_multiplier", Idle::kZero, "give repetition_penalty or frequency_penalty"},
    {"no_repeat_ngram_size", Idle::kZero, "give repetition_penalty or frequency_penalty"},
    {"watermark", Idle::kFalse},
    {"watermarking", Idle::kFalse},
    {"priority", Idle::kZero, "requests are served in the order in which they come"},
    // How it would be written.
    {"spaces_between_special_tokens", Idle::kTrue, "special tokens are joined as the tokenizer does it"},
    {"return_tokens_as_token_ids", Idle::kFalse, "give return_token_ids"},
};

constexpr UnservedField kUnservedInCompletions[] = {
    {"max_completion_tokens", Idle::kNone, "give max_tokens; this name is one of chat completions"},
    {"top_logprobs", Idle::kNone, "give logprobs, the number of most likely tokens"},
    {"n_probs", Idle::kZero, "give logprobs"},
    {"prompt_logprobs", Idle::kNone, "give echo with logprobs"},
    {"logprob_token_ids", Idle::kNone, "give logprobs, the number of most likely tokens"},
    {"messages", Idle::kNone, "give prompt; POST /v1/chat/completions takes messages"},
    {"prompt_embeds", Idle::kNone, "give the prompt as text or token ids"},
    {"suffix", Idle::kEmpty, "text is only written at the end of a prompt"},
    {"tools", Idle::kEmpty, "completions call no tools"},
    {"functions", Idle::kEmpty, "completions call no functions"},
};

constexpr UnservedField kUnservedInChat[] = {
    {"n_probs", Idle::kZero, "give logprobs and top_logprobs"},
    {"prompt_logprobs", Idle::kNone, "POST /v1/completions has log-probabilities of prompts"},
    {"logprob_token_ids", Idle::kNone, "give logprobs and top_logprobs"},
    {"prompt", Idle::kNone, "give messages; POST /v1/completions takes a prompt"},
    {"prompt_embeds", Idle::kNone, "give messages"},
    {"suffix", Idle::kEmpty, "give messages"},
    {"echo", Idle::kFalse, "POST /v1/completions repeats prompts"},
    {"best_of", Idle::kOne, "answers are not ranked"},
    {"functions", Idle::kEmpty, "calls of functions are not read from answers"},
    {"function_call", Idle::kWordNone, "calls of functions are not read from answers"},
    // Reasoning under other servers' names.
    {"reasoning", Idle::kNone, "give reasoning_effort, or chat_template_kwargs"},
    {"thinking", Idle::kNone, "give reasoning_effort, or chat_template_kwargs"},
    {"enable_thinking", Idle::kNone, "give it in chat_template_kwargs"},
    {"reasoning_format", Idle::kWordAuto,
     "reasoning is told apart from the answer where the model's template shows how"},
    {"separate_reasoning", Idle::kTrue, "reasoning is told apart from the answer; include_reasoning leaves it out"},
    {"stream_reasoning", Idle::kTrue, "reasoning comes as it is generated"},
};

bool IsNumber(const nlohmann::json& value, int64_t number) { return AsInteger(value) == number; }

bool IsIdle(const nlohmann::json& value, Idle idle) {
  switch (idle) {
    case Idle::kNone:
      return false;
    case Idle::kFalse:
      return value == false;
    case Idle::kTrue:
      return value == true;
    case Idle::kZero:
      return IsNumber(value, 0);
    case Idle::kOne:
      return IsNumber(value, 1);
    case Idle::kMinusOne:
      return IsNumber(value, -1);
    case Idle::kEmpty:
      return (value.is_string() && value.get_ref<const std::string&>().empty()) ||
             (value.is_structured() && value.empty());
    case Idle::kWordAuto:
      return value == "auto";
    case Idle::kWordNone:
      return value == "none";
    case Idle::kTextFormat:
      return value.is_object() && value.value("type", nlohmann::json()) == "text";
    case Idle::kTextModality:
      return value.is_array() && value.size() == 1 && value[0] == "text";
  }
  return false;
}

void Refuse(std::span<const UnservedField> table, const nlohmann::json& body) {
  for (const UnservedField& field : table) {
    const auto found = body.find(field.name);
    if (found == body.end() || found->is_null() || IsIdle(*found, field.idle)) continue;
    std::string message = std::string(field.name) + ": " + ShowValue(*found) + " is not supported; ";
    if (!field.advice.empty()) message += std::string(field.advice) + ", and ";
    throw BadField(field.name, message + "leave this field out");
  }
}

}  // namespace

void RefuseUnservedFields(Endpoint endpoint, const nlohmann::json& body) {
  if (endpoint == Endpoint::kCompletions) {
    Refuse(kUnservedInCompletions, body);
  } else {
    Refuse(kUnservedInChat, body);
  }
  Refuse(kUnserved, body);
}

}  // namespace fastdecode::serve
