#ifndef FASTDECODE_ENGINE_TEXT_DECODER_H_
#define FASTDECODE_ENGINE_TEXT_DECODER_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/text/normalizer.h"
#include "engine/text/tokenizer_spec.h"
#include "engine/text/utf8.h"

namespace fastdecode {

// The steps of tokenizer.json's decoder section on a stream of tokens: what comes out, joined, is what Hugging Face's
// decoder makes of all tokens at once, and each piece is whole characters.
//
// Hugging Face's decoder makes U+FFFD of every byte in a run of byte tokens that is not UTF-8 as a whole. Such a run is
// therefore held back until it ends.
//
// Owns: the compiled patterns. Thread: immutable, shared by any number, each with its own State.
class Decoder {
 public:
  // Where a stream is. Bounded: by the longest run of byte tokens, and a few bytes.
  struct State {
    bool first = true;      // no token has come yet
    int strip_left = 0;     // characters that Strip may still take from the start
    int held_back = 0;      // characters at the end that Strip takes if nothing follows
    std::string byte_run;   // of ByteFallback
    LossyUtf8Decoder utf8;  // of ByteLevel
  };

  // Errors, which begin with the field: Unimplemented for an order of steps that needs the whole text at once; a
  // pattern that does not compile or is not supported.
  // `spaced`: a space between each two tokens, if there are no steps.
  static absl::StatusOr<Decoder> Create(const std::vector<DecoderStep>& steps, bool spaced);

  // What is kept of a token for Push: the steps that look at one string at a time are done.
  std::string Prepare(std::string_view token) const;

  // `continues`: the text goes on from another one, so that nothing is taken from its start.
  State Start(bool continues) const;
  // Appends the text that has become certain with one prepared token.
  void Push(std::string_view prepared, State* state, std::string* out) const;
  // Whether a run of byte tokens is held back that is text if it ends here.
  static bool HoldsText(const State& state) { return !state.byte_run.empty() && IsValidUtf8(state.byte_run); }
  // The end of the stream. The state is then of no use.
  void Finish(State* state, std::string* out) const;

  // The bytes that a prepared token stands for inside of a text, often not UTF-8 by themselves.
  std::string TokenBytes(std::string_view prepared) const;

 private:
  struct Step {
    DecoderStep spec;
    std::optional<TextReplacer> replacer;
    bool fused = false;  // it sees one text in pieces and not tokens
  };

  explicit Decoder(std::vector<Step> steps) : steps_(std::move(steps)) {}
  static std::string ApplyToToken(const Step& step, std::string_view token);
  void Feed(size_t step, std::string_view text, State* state, std::string* out) const;
  void FeedFusedStrip(size_t step, std::string_view text, State* state, std::string* out) const;
  void EndByteRun(size_t step, State* state, std::string* out) const;

  std::vector<Step> steps_;
  size_t prepared_steps_ = 0;  // done by Prepare
  bool byte_level_ = false;    // tokens are prepared as bytes
  bool spaced_ = false;        // a space between each two tokens
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_TEXT_DECODER_H_
