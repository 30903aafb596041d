#ifndef FASTDECODE_TESTS_TOOLS_SERVE_OPENAI_TOKENS_H_
#define FASTDECODE_TESTS_TOOLS_SERVE_OPENAI_TOKENS_H_

#include <limits>
#include <string>
#include <vector>

#include "tools/serve/openai/completion_writer.h"

namespace fastdecode::serve {

// A made-up vocabulary, with parts of characters, and a text that two tokens have.
inline std::string TokenBytesOf(int32_t token) {
  static const std::vector<std::string> kTokens = {"<s>",  "a",  " b",       "\u00e9", "\xe2\x80",
                                                   "\x99", "\n", "x\\\xe2y", "\u2028", "same",
                                                   "same", "",   "\xe2",     "\"",     "\U0001F600"};
  return kTokens.at(static_cast<size_t>(token));
}
enum Token : int32_t {
  kBos,
  kA,
  kB,
  kE,
  kHalf,
  kOtherHalf,
  kNewline,
  kMixed,
  kLineSeparator,
  kSame,
  kSameToo,
  kEmpty,
  kThird,
  kQuote,
  kSmile
};

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kNever = -std::numeric_limits<float>::infinity();

inline CompletionWriter::Head HeadOf(bool logprobs) {
  CompletionWriter::Head head;
  head.id = "cmpl-7";
  head.created = 1767225600;
  head.model = "tiny";
  head.logprobs = logprobs;
  return head;
}

// An event's tokens with what is known of them; `top`: [tokens][top_count].
struct MadeEvent {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs = {};
  std::vector<fd_token_logprob> top = {};

  fd_event View() const {
    fd_event event = {};
    event.struct_size = sizeof(event);
    event.kind = FD_EVENT_TOKEN;
    event.tokens = tokens.data();
    event.token_count = static_cast<uint32_t>(tokens.size());
    event.logprobs = logprobs.empty() ? nullptr : logprobs.data();
    event.top_logprob_count = tokens.empty() ? 0 : static_cast<uint32_t>(top.size() / tokens.size());
    event.top_logprobs = top.empty() ? nullptr : top.data();
    return event;
  }
};

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TESTS_TOOLS_SERVE_OPENAI_TOKENS_H_
