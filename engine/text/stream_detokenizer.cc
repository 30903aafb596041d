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
