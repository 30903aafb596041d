#ifndef FASTDECODE_ENGINE_TEXT_STREAM_DETOKENIZER_H_
#define FASTDECODE_ENGINE_TEXT_STREAM_DETOKENIZER_H_

#include <cstdint>
#include <string>

#include "engine/text/tokenizer.h"
#include "engine/text/utf8.h"

namespace fastdecode {

// Tokens to text one at a time, never half a character: all that Push and Finish return, joined, is what
// Tokenizer::Decode gives for the same ids.
//
// Owns: nothing; the tokenizer outlives it. Thread: one caller at a time. Bounded: holds back at most 3 bytes.
class StreamDetokenizer {
 public:
  StreamDetokenizer(const Tokenizer* tokenizer, bool skip_special_tokens)
      : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens) {}

  // The text that has become certain with this token; often empty. Valid UTF-8.
  std::string Push(int32_t id);
  // The end: what was held back, as U+FFFD. The detokenizer is then as new.
  std::string Finish();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  LossyUtf8Decoder decoder_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_TEXT_STREAM_DETOKENIZER_H_
