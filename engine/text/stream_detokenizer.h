#ifndef FASTDECODE_ENGINE_TEXT_STREAM_DETOKENIZER_H_
#define FASTDECODE_ENGINE_TEXT_STREAM_DETOKENIZER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "engine/text/decoder.h"
#include "engine/text/text_range.h"
#include "engine/text/tokenizer.h"

namespace fastdecode {

// Tokens to text one at a time, never half a character: all that Push and Finish give, joined, is what
// Tokenizer::Decode gives for the same ids.
//
// Owns: nothing; the tokenizer outlives it. Thread: one caller at a time. Bounded: it holds back a few bytes, and the
// longest run of byte tokens (<0xHH>), which is text only as a whole.
class StreamDetokenizer {
 public:
  // `continues`: the tokens go on from others (a prompt), so that the space at the start of a text, which some
  // tokenizers' decoders take off, stays.
  StreamDetokenizer(const Tokenizer* tokenizer, bool skip_special_tokens, bool continues = false)
      : tokenizer_(tokenizer),
        skip_special_tokens_(skip_special_tokens),
        continues_(continues),
        state_(tokenizer->StartDecoding(continues)) {}

  // Appends the text that has become certain with this token; often nothing. Valid UTF-8. *special, if not null, gets
  // what of *text is a special token's.
  void Push(int32_t id, std::string* text, std::vector<TextRange>* special = nullptr);
  std::string Push(int32_t id);
  // What Finish would give, if that is a run of byte tokens which is text as it stands; else nothing.
  std::string Held() const;
  // The end: what was held back, as U+FFFD where it is half a character. The detokenizer is then as new.
  void Finish(std::string* text);
  std::string Finish();

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_tokens_;
  bool continues_;
  Decoder::State state_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_TEXT_STREAM_DETOKENIZER_H_
