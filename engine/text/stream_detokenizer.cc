#include "engine/text/stream_detokenizer.h"

namespace fastdecode {

void StreamDetokenizer::Push(int32_t id, std::string* text, std::vector<TextRange>* special) {
  const bool is_special = tokenizer_->IsSpecial(id);
  if (skip_special_tokens_ && is_special) return;
  const size_t before = text->size();
  tokenizer_->DecodeNext(id, &state_, text);
  if (!is_special || special == nullptr) return;
  // Before the token's own text may come what was held back, or a space.
  const std::string own = tokenizer_->TokenBytes(id);
  const bool is_last = std::string_view(*text).substr(before).ends_with(own);
  AddRange({is_last ? text->size() - own.size() : before, text->size()}, special);
}

std::string StreamDetokenizer::Push(int32_t id) {
  std::string text;
  Push(id, &text);
  return text;
}

std::string StreamDetokenizer::Held() const {
  std::string text;
  if (!Decoder::HoldsText(state_)) return text;
  Decoder::State copy = state_;
  tokenizer_->EndDecoding(&copy, &text);
  return text;
}

void StreamDetokenizer::Finish(std::string* text) {
  tokenizer_->EndDecoding(&state_, text);
  state_ = tokenizer_->StartDecoding(continues_);
}

std::string StreamDetokenizer::Finish() {
  std::string text;
  Finish(&text);
  return text;
}

}  // namespace fastdecode
