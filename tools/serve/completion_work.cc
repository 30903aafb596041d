// What a helper thread does for a completion: it reads the request, tokenises its prompts and submits them.
#include <random>

#include "tools/serve/answers.h"
#include "tools/serve/completion.h"
#include "tools/serve/engine_text.h"
#include "tools/serve/openai/json_reader.h"

namespace fastdecode::serve {

namespace {

uint64_t RandomSeed() {
  thread_local std::mt19937_64 random{(static_cast<uint64_t>(std::random_device()()) << 32) | std::random_device()()};
  return random();
}

void ThrowIfGone(const Exchange& exchange) {
  if (exchange.gone()) throw ApiError{.status = 499, .message = "the client has gone"};
}

}  // namespace

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
  form_->DropPrompts();
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
  request_ = form_->Read(ReadJsonBody(exchange_->request.body), RandomSeed());
  model_ = CheckModelName(*context_, request_->model);
  CheckIds();
  for (size_t i = 0; i < form_->prompts(); ++i) {
    ThrowIfGone(*exchange_);
    prompts_.push_back(form_->PromptIds(i));
    prompt_tokens_ += prompts_.back().size();
  }
  form_->CheckAnswer(prompt_tokens_);
}

// Ids beside the prompt's, which the engine would refuse without saying which field they are of.
void Completion::CheckIds() const {
  CheckTokenIds(context_->engine, "stop_token_ids", request_->generate.stop_token_ids);
  const int32_t vocab = fd_vocab_size(context_->engine);
  for (const fd_logit_bias& bias : request_->generate.logit_bias) {
    if (bias.token >= 0 && bias.token < vocab) continue;
    throw BadField("logit_bias", "logit_bias: " + std::to_string(bias.token) + " is no token id; the vocabulary has " +
                                     std::to_string(vocab));
  }
}

void Completion::Submit() {
  std::vector<Choice> choices(prompts_.size() * request_->n);
  for (size_t i = 0; i < choices.size(); ++i) {
    choices[i].piece.index = static_cast<uint32_t>(i);
    const size_t prompt = i / request_->n;
    if (request_->return_token_ids) choices[i].piece.prompt_ids = &prompts_[prompt];
    form_->StartChoice(prompt, prompts_[prompt], &choices[i].piece);
  }
  choices_ = std::move(choices);
  asks_.resize(prompts_.size());
  ThrowIfGone(*exchange_);
  // A prompt is computed once for all of its choices, each of which waits for its first token.
  if (std::optional<ApiError> full = context_->admission->Enter(prompt_tokens_, MonotonicNs(), choices_.size())) {
    throw *full;
  }
  queued_tokens_ = prompt_tokens_;
  GenerateRequest& generate = request_->generate;
  generate.fields.n = request_->n;
  for (size_t i = 0; i < prompts_.size(); ++i) {
    Ask& ask = asks_[i];
    ask.slot.index = i;
    ask.left = request_->n;
    generate.prompt_ids = prompts_[i];
    generate.fields.user = &ask.slot;
    const RequestView view(generate);
    ask.slot.owner = shared_from_this();
    fd_status* const status = fd_submit(context_->engine, view.get(), &ask.id);
    if (status != nullptr) {
      ask.slot.owner.reset();
      ThrowApiError(status, "");
    }
    submitted_ += request_->n;
  }
}

}  // namespace fastdecode::serve
