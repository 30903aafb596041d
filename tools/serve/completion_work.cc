// What a helper thread does for a completion: it reads the request, tokenises its prompts and submits its sequences.
#include <algorithm>
#include <random>

#include "tools/serve/answers.h"
#include "tools/serve/completion.h"
#include "tools/serve/engine_text.h"
#include "tools/serve/openai/json_reader.h"

namespace fastdecode::serve {

namespace {

// Bytes of a prompt that are tokenised whatever the model's context is.
constexpr size_t kLongText = 64 << 10;
// Log-probabilities of prompts in one answer: some 40 MB of JSON.
constexpr uint64_t kEchoedEntriesMax = 1 << 20;

std::string ListOf(const std::vector<std::string>& names) {
  std::string list;
  for (const std::string& name : names) list += (list.empty() ? "'" : ", '") + name + "'";
  return list;
}

uint64_t RandomSeed() {
  thread_local std::mt19937_64 random{(static_cast<uint64_t>(std::random_device()()) << 32) | std::random_device()()};
  return random();
}

void ThrowIfGone(const Exchange& exchange) {
  if (exchange.gone()) throw ApiError{.status = 499, .message = "the client has gone"};
}

}  // namespace

std::string CheckModelName(const ServingContext& context, const std::string& name) {
  if (name.empty()) return context.names.front();
  if (std::find(context.names.begin(), context.names.end(), name) != context.names.end()) return name;
  throw ApiError{.status = 404,
                 .message = "model: '" + name + "' is not served here; use " + ListOf(context.names),
                 .param = "model",
                 .code = "model_not_found"};
}

void Completion::Work() {
  std::optional<ApiError> refusal;
  try {
    ReadRequest();
    Submit();
  } catch (const ApiError& error) {
    refusal = error;
  } catch (const std::exception& error) {
    refusal = HelperError(error);
  }
  // Neither is needed any more.
  exchange_->DropBody();
  std::vector<Prompt>().swap(request_.prompts);
  asio::post(*context_->io, [self = Self(), refusal = std::move(refusal)] {
    if (refusal) {
      self->OnRefused(*refusal);
    } else {
      self->OnSubmitted();
    }
  });
}

void Completion::ReadRequest() {
  ThrowIfGone(*exchange_);
  request_ = ReadCompletionRequest(ReadJsonObject(exchange_->request.body), context_->limits, context_->defaults,
                                   RandomSeed());
  model_ = CheckModelName(*context_, request_.model);
  CheckIds();
  for (size_t i = 0; i < request_.prompts.size(); ++i) {
    ThrowIfGone(*exchange_);
    prompts_.push_back(PromptIds(i));
    prompt_tokens_ += prompts_.back().size();
  }
  CheckAnswerSize();
}

// Ids beside the prompt's, which the engine would refuse without saying which field they are of.
void Completion::CheckIds() const {
  CheckTokenIds(context_->engine, "stop_token_ids", request_.generate.stop_token_ids);
  const int32_t vocab = fd_vocab_size(context_->engine);
  for (const fd_logit_bias& bias : request_.generate.logit_bias) {
    if (bias.token >= 0 && bias.token < vocab) continue;
    throw BadField("logit_bias", "logit_bias: " + std::to_string(bias.token) + " is no token id; the vocabulary has " +
                                     std::to_string(vocab));
  }
}

// Log-probabilities of prompts are the one part of an answer that a small request makes large.
void Completion::CheckAnswerSize() const {
  const fd_request& fields = request_.generate.fields;
  if (!request_.echo || fields.logprobs < 0) return;
  const uint64_t entries = prompt_tokens_ * request_.n * static_cast<uint64_t>(1 + fields.logprobs);
  if (entries <= kEchoedEntriesMax) return;
  throw BadField("logprobs", "logprobs: with echo, " + std::to_string(prompt_tokens_ * request_.n) +
                                 " tokens of prompts and " + std::to_string(fields.logprobs) +
                                 " alternatives each are " + std::to_string(entries) +
                                 " log-probabilities, and a request gets at most " + std::to_string(kEchoedEntriesMax) +
                                 "; send fewer prompts at a time");
}

std::vector<int32_t> Completion::PromptIds(size_t index) const {
  const Prompt& prompt = request_.prompts[index];
  const std::string field = request_.prompts.size() == 1 ? "prompt" : "prompt[" + std::to_string(index) + "]";
  const auto room = static_cast<uint64_t>(fd_max_context(context_->engine));
  if (const size_t longest = context_->token_bytes_max;
      longest != 0 && prompt.text.size() > std::max(kLongText, room * longest)) {
    // To find out how many they are would take a while.
    throw ApiError{.message = field + ": " + std::to_string(prompt.text.size()) + " bytes are at least " +
                              std::to_string(prompt.text.size() / longest) + " tokens, and the model's context has " +
                              std::to_string(room) + "; shorten the prompt",
                   .param = "prompt",
                   .code = "context_length_exceeded"};
  }
  const bool around = request_.generate.fields.add_special_tokens != 0;
  std::vector<int32_t> ids = prompt.is_ids ? prompt.ids : Tokenize(context_->engine, prompt.text, around);
  if (ids.empty()) throw BadField("prompt", field + ": it has no tokens, and the model needs at least one");
  CheckTokenIds(context_->engine, field, ids);
  const uint64_t answer = request_.generate.fields.max_tokens;
  if (ids.size() >= room || ids.size() + answer > room) {
    const std::string lengths = std::to_string(ids.size()) + " tokens";
    const std::string what = ids.size() >= room
                                 ? lengths + " leave no room"
                                 : lengths + " and max_tokens " + std::to_string(answer) + " are too many";
    throw ApiError{.message = field + ": " + what + " in the model's context of " + std::to_string(room) +
                              " tokens; shorten the prompt" + (ids.size() >= room ? "" : " or lower max_tokens"),
                   .param = ids.size() >= room ? "prompt" : "max_tokens",
                   .code = "context_length_exceeded"};
  }
  return ids;
}

void Completion::Submit() {
  const uint64_t tokens = prompt_tokens_ * request_.n;
  const bool show_special = request_.generate.fields.show_special != 0;
  std::vector<Choice> choices(prompts_.size() * request_.n);
  for (size_t i = 0; i < choices.size(); ++i) {
    choices[i].slot.index = i;
    choices[i].piece.index = static_cast<uint32_t>(i);
    const size_t p = i / request_.n;
    if (request_.return_token_ids) choices[i].piece.prompt_ids = &prompts_[p];
    if (!request_.echo) continue;
    const Prompt& prompt = request_.prompts[p];
    choices[i].piece.text =
        prompt.is_ids ? Detokenize(context_->engine, prompts_[p], show_special, "echo") : prompt.text;
  }
  choices_ = std::move(choices);
  ThrowIfGone(*exchange_);
  if (std::optional<ApiError> full = context_->admission->Enter(tokens, MonotonicNs(), choices_.size())) throw *full;
  queued_tokens_ = tokens;
  const uint64_t seed = request_.generate.fields.seed;
  for (Choice& choice : choices_) {
    GenerateRequest& generate = request_.generate;
    generate.prompt_ids = prompts_[choice.slot.index / request_.n];
    generate.fields.seed = seed + choice.slot.index % request_.n;
    generate.fields.user = &choice.slot;
    const RequestView view(generate);
    choice.slot.owner = shared_from_this();
    fd_status* const status = fd_submit(context_->engine, view.get(), &choice.id);
    if (status != nullptr) {
      choice.slot.owner.reset();
      ThrowApiError(status, "");
    }
    ++submitted_;
  }
}

}  // namespace fastdecode::serve
