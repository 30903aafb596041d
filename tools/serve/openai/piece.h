#ifndef FASTDECODE_TOOLS_SERVE_OPENAI_PIECE_H_
#define FASTDECODE_TOOLS_SERVE_OPENAI_PIECE_H_

#include <fastdecode/fastdecode.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

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
  void Clear();                       // keeps the memory
  float Logprob(size_t index) const;  // NaN: not known
};

// What a choice has to say next: a chunk of a stream, or the whole of an answer that is not streamed. Tokens that a
// slow reader has not taken are appended to the piece that waits.
struct Piece {
  uint32_t index = 0;  // of the choice
  bool first = true;   // nothing of the choice has been written
  std::string text;
  std::string reasoning;  // of a chat: what the model said to itself before the text
  TokenRun run;
  size_t echoed_tokens = 0;             // so many of the run's first tokens are the prompt's
  size_t text_offset = 0;               // characters of the choice's text before this piece, counted by its tokens
  const char* finish_reason = nullptr;  // "stop", "length"; null: it goes on
  std::string stop_string;              // vLLM's stop_reason: the stop string...
  int32_t stop_token = -1;              // ...or the token, if it is not the model's own end; -1: none
  bool deadline = false;                // ...or "deadline"
  const std::vector<int32_t>* prompt_ids = nullptr;  // with return_token_ids, in a choice's first piece; lent

  // It has been written: what comes next is another chunk. Keeps the memory.
  void StartNext();
};

struct Usage {
  uint64_t prompt_tokens = 0;
  uint64_t completion_tokens = 0;
  std::optional<uint64_t> reasoning_tokens = std::nullopt;  // of the completion's; nothing: not said
  std::optional<uint64_t> cached_tokens = std::nullopt;     // of the prompts'; nothing: not known yet
};

// How logprobs call a token of these bytes: their text, or for what is no UTF-8 "bytes:" and the bytes.
std::string TokenName(std::string bytes);

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_OPENAI_PIECE_H_
