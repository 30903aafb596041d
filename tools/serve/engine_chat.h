#ifndef FASTDECODE_TOOLS_SERVE_ENGINE_CHAT_H_
#define FASTDECODE_TOOLS_SERVE_ENGINE_CHAT_H_

#include <fastdecode/fastdecode.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tools/serve/openai/chat_input.h"

namespace fastdecode::serve {

// Tells the reasoning in one answer to a chat from its content. Thread: one at a time.
class ChatReader {
 public:
  // Throws std::bad_alloc. The chat is not needed any more then.
  explicit ChatReader(const fd_chat* chat);

  // Appends what an event adds to either. Throws std::bad_alloc.
  void Read(const fd_event& event, std::string* reasoning, std::string* content);
  bool in_reasoning() const { return in_reasoning_; }  // at the end of what has been read

 private:
  struct Destroy {
    void operator()(fd_chat_reader* reader) const { fd_chat_reader_destroy(reader); }
  };
  std::unique_ptr<fd_chat_reader, Destroy> reader_;
  bool in_reasoning_ = false;
};

// A chat as the engine has rendered it, with errors as the API has them. Thread: any, one at a time. Lends: the engine.
class RenderedChat {
 public:
  // Throws ApiError.
  RenderedChat(const fd_engine* engine, const ChatInput& input);

  size_t text_bytes() const;
  // The prompt's tokens. `add_special_tokens`: also where the template does not ask for them.
  std::vector<int32_t> Tokenize(bool add_special_tokens) const;
  // fd_request's show_special for those who do not ask for special tokens: they may mark the model's reasoning.
  int show_special() const { return fields_.show_special; }
  ChatReader NewReader() const { return ChatReader(chat_.get()); }

 private:
  struct Destroy {
    void operator()(fd_chat* chat) const { fd_chat_destroy(chat); }
  };
  const fd_engine* const engine_;
  std::unique_ptr<fd_chat, Destroy> chat_;
  fd_request fields_;  // what the chat says of a request: it points into the chat
};

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_ENGINE_CHAT_H_
