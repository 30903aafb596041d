// What a helper thread does for a completion: it reads the request, tokenises its prompts and submits its sequences.
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
  const uint64_t tokens = prompt_tokens_ * request_->n;
  std::vector<Choice> choices(prompts_.size() * request_->n);
  for (size_t i = 0; i < choices.size(); ++i) {
    choices[i].slot.index = i;
    choices[i].piece.index = static_cast<uint32_t>(i);
    const size_t prompt = i / request_->n;
    if (request_->return_token_ids) choices[i].piece.prompt_ids = &prompts_[prompt];
    form_->StartChoice(prompt, prompts_[prompt], &choices[i].piece);
  }
  choices_ = std::move(choices);
  ThrowIfGone(*exchange_);
  if (std::optional<ApiError> full = context_->admission->Enter(tokens, MonotonicNs(), choices_.size())) throw *full;
  queued_tokens_ = tokens;
  const uint64_t seed = request_->generate.fields.seed;
  for (Choice& choice : choices_) {
    GenerateRequest& generate = request_->generate;
    generate.prompt_ids = prompts_[choice.slot.index / request_->n];
    generate.fields.seed = seed + choice.slot.index % request_->n;
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
