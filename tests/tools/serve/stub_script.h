#ifndef FASTDECODE_TESTS_TOOLS_SERVE_STUB_SCRIPT_H_
#define FASTDECODE_TESTS_TOOLS_SERVE_STUB_SCRIPT_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace fastdecode::stub {

// What the stub engine answers to a prompt: the prompt itself, a word a token, with directives in braces. White space
// right before a directive belongs to it.
//
//   {queue:MS}        stays in the queue so long                  {prefill:MS}  is in steps so long before its first
//   token {deaf:MS}         a cancel takes effect so late               {every:MS}    pause before each token from here
//   on {ms:MS}           pause before the next token                 {every-us:US} the same in microseconds
//   {repeat:N:WORD}   the word N times, each a token              {big:N}       one token of N bytes
//   {bytes:HEX}       one token of these bytes                    {id:N}        the token with this id
//   {seed}            the choice's seed, as a token               {field:NAME}  a token such as " top_k=5"
//   {cached:N}        so many of the prompt's tokens had been computed by others, unless the request wants none
//   {stop}            ends with the model's stop token            {length}      ends as if the context were full
//   {error:TEXT}      ends with this error                        {wait}        nothing comes until it is cancelled
//   {hang} {hang:MS}  the engine makes no step, for nobody, until the request is cancelled, or so long
//   {play}            all that is before the last one of these is not played, nor what is behind an {end} after it
//
// Behind the last word it ends with the stop token, as at {stop}. A prompt with other braces has them as text.
struct ScriptStep {
  enum class Kind { kToken, kId, kSeed, kField, kPause, kEvery, kStop, kLength, kError, kWait, kHang };
  Kind kind = Kind::kToken;
  std::string text;     // kToken: bytes; kError: message; kField: name
  uint64_t number = 0;  // kToken: how often; kId: the id; kPause, kEvery, kHang: ns, ~0 being for ever
};

struct Script {
  std::vector<ScriptStep> steps;
  uint64_t queue_ns = 0, prefill_ns = 0, deaf_ns = 0;
  uint64_t cached = 0;
};

Script ReadScript(std::string_view prompt);

}  // namespace fastdecode::stub

#endif  // FASTDECODE_TESTS_TOOLS_SERVE_STUB_SCRIPT_H_
