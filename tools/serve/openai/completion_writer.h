#ifndef FASTDECODE_TOOLS_SERVE_OPENAI_COMPLETION_WRITER_H_
#define FASTDECODE_TOOLS_SERVE_OPENAI_COMPLETION_WRITER_H_

#include <cstddef>
#include <cstdint>
#include <fastdecode/fastdecode.hpp>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "tools/serve/api_error.h"

namespace fastdecode::serve {

// Tokens of one choice, and what is known of them. Also a prompt's, for echo: its first token's log-probability is NaN.
// Owns: copies of it all. Thread: one.
struct TokenRun {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;        // [tokens], or empty: not asked for
  std::vector<fd_token_logprob> top;  // [tokens][top_count], most likely first; token -1: none
  uint32_t top_count = 0;

  // All events of a run have the same number of most likely tokens; what differs is cut, or filled up with none.
  void Append(const fd_event& event);
  void Clear();  // keeps the memory
};

// What a choice has to say next: a chunk of a stream, or the whole of an answer that is not streamed. Tokens that a
// slow reader has not taken are appended to the piece that waits.
struct Piece {
  uint32_t index = 0;  // of the choice
  std::string text;
  TokenRun run;
  size_t echoed_tokens = 0;             // so many of the run's first tokens are the prompt's
  size_t text_offset = 0;               // characters of the choice's text before this piece, counted by its tokens
  const char* finish_reason = nullptr;  // "stop", "length"; null: it goes on
  std::string stop_string;              // vLLM's stop_reason: the stop string...
  int32_t stop_token = -1;              // ...or the token, if it is not the model's own end; -1: none
  bool deadline = false;                // ...or "deadline"
  const std::vector<int32_t>* prompt_ids = nullptr;  // with return_token_ids, in a choice's first piece; lent
};

// How logprobs call a token of these bytes: their text, or for what is no UTF-8 "bytes:" and the bytes.
std::string TokenName(std::string bytes);

struct Usage {
  uint64_t prompt_tokens = 0;
  uint64_t completion_tokens = 0;
};

// The JSON of one completions answer. Tokens are written as the text that they stand for, or, where that is no UTF-8 by
// itself, as "bytes:\xe2\x80", so that different ones have different names. Owns: the parts that all its chunks have in
// common. Thread: one.
class CompletionWriter {
 public:
  struct Head {
    std::string id;        // "cmpl-..."
    uint64_t created = 0;  // seconds since 1970
    std::string model;
    bool logprobs = false;         // choices have a `logprobs` object
    bool usage_in_chunks = false;  // include_usage: chunks have a `usage`, null unless it is continuous
    bool continuous_usage = false;
    bool return_token_ids = false;
  };
  // The bytes that a token stands for inside of a text, often not UTF-8 by themselves.
  using TokenBytes = std::function<std::string(int32_t)>;

  CompletionWriter(Head head, TokenBytes token_bytes);

  // One event of the stream, "data: {...}\n\n". With logprobs, advances piece->text_offset past its tokens. `so_far`:
  // with continuous usage.
  void AppendChunk(Piece* piece, const Usage& so_far, std::string* out) const;
  // The chunk without choices that ends a stream with include_usage.
  void AppendUsageChunk(const Usage& usage, std::string* out) const;
  static void AppendDone(std::string* out);
  // An error after the first byte: "data: {"error":...}\n\n"; the stream is cut then.
  static void AppendError(const ApiError& error, std::string* out);
  // An answer that is not streamed. `pieces`: of all choices, in order.
  std::string Body(std::span<Piece> pieces, const Usage& usage) const;

 private:
  void AppendChoice(Piece* piece, std::string* out) const;
  void AppendLogprobs(Piece* piece, std::string* out) const;
  void AppendTop(const TokenRun& run, size_t index, const std::string& chosen, std::string* out) const;

  const Head head_;
  const TokenBytes token_bytes_;
  std::string prefix_;  // of every chunk and body, up to the choices
};

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_OPENAI_COMPLETION_WRITER_H_
