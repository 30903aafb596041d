#include "engine/text/stream_detokenizer.h"

namespace fastdecode {

void StreamDetokenizer::Push(int32_t id, std::string* text) {
  if (!skip_special_tokens_ || !tokenizer_->IsSpecial(id)) tokenizer_->DecodeNext(id, &state_, text);
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
