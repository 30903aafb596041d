#include "engine/text/stream_detokenizer.h"

namespace fastdecode {

std::string StreamDetokenizer::Push(int32_t id) {
  std::string text;
  if (!skip_special_tokens_ || !tokenizer_->IsSpecial(id)) decoder_.Append(tokenizer_->Bytes(id), &text);
  return text;
}

std::string StreamDetokenizer::Finish() {
  std::string text;
  decoder_.Finish(&text);
  return text;
}

}  // namespace fastdecode
