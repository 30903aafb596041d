#ifndef FASTDECODE_TOOLS_CHAT_CHAT_BACKEND_H_
#define FASTDECODE_TOOLS_CHAT_CHAT_BACKEND_H_

#include <chrono>
#include <cstdint>
#include <fastdecode/fastdecode.hpp>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tools/prompts.h"

namespace fastdecode::chat {

struct Message {
  std::string role;
  std::string content;
};

using Clock = std::chrono::steady_clock;
double SecondsSince(Clock::time_point begin);

// The messages as a JSON array.
std::string MessagesJson(const std::vector<Message>& messages);

// What came of one question. Times are seconds from asking it, to the first and to the last token.
struct Reply {
  std::string content, reasoning;
  bool stopped = false;                     // by is_stopped
  bool cut_off = false;                     // by its length
  std::string error;                        // why it broke off; empty: it did not
  int64_t prompt_tokens = -1, tokens = -1;  // -1: not known
  double first_token_s = -1, seconds = 0;
};

// Who answers: an engine of this process, or a server. Thread: one.
class Backend {
 public:
  // A further piece of the answer: reasoning, then content; either may be empty.
  using Show = std::function<void(std::string_view reasoning, std::string_view content)>;
  using IsStopped = std::function<bool()>;

  virtual ~Backend() = default;
  // Throws Error if the question is not taken. What breaks the answer off is in Reply::error.
  virtual Reply Ask(const std::vector<Message>& messages, const Show& show, const IsStopped& is_stopped) = 0;
  // Tokens that a prompt and its answer may have; -1: not known.
  virtual int64_t context_tokens() const = 0;
};

// `flags`: how to sample. `max_tokens_given`: otherwise an answer may go on to the end of the context. `flags` outlive
// it.
std::unique_ptr<Backend> EngineBackend(std::unique_ptr<InferenceEngine> engine, const RequestFlags& flags,
                                       bool max_tokens_given);

struct ServerFlags {
  std::string url, model, api_key_file;
};
// Throws Error if nobody answers there. What `flags` do not set is left to the server.
std::unique_ptr<Backend> ServerBackend(const ServerFlags& server, const RequestFlags& flags, bool max_tokens_given);

}  // namespace fastdecode::chat

#endif  // FASTDECODE_TOOLS_CHAT_CHAT_BACKEND_H_
