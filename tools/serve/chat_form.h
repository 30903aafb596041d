#ifndef FASTDECODE_TOOLS_SERVE_CHAT_FORM_H_
#define FASTDECODE_TOOLS_SERVE_CHAT_FORM_H_

#include <memory>
#include <optional>
#include <vector>

#include "tools/serve/completion_form.h"
#include "tools/serve/engine_chat.h"
#include "tools/serve/openai/chat_request.h"
#include "tools/serve/serving_context.h"

namespace fastdecode::serve {

// POST /v1/chat/completions: the model's template makes one prompt of all messages, and an answer is taken apart into
// reasoning and content. Lends: the context.
class ChatForm : public CompletionForm {
 public:
  explicit ChatForm(const ServingContext* context) : context_(*context) {}

  AnswerRequest* Read(const JsonBody& body, uint64_t random_seed) override;
  size_t prompts() const override { return 1; }
  std::vector<int32_t> PromptIds(size_t prompt) override;
  void StartChoice(size_t prompt, const std::vector<int32_t>& ids, Piece* piece) override;
  void DropPrompts() override;

  void AddText(size_t choice, const fd_event& event, Piece* piece) override;
  std::optional<uint64_t> reasoning_tokens() const override { return reasoning_tokens_; }
  std::unique_ptr<AnswerWriter> MakeWriter(AnswerWriter::Head head,
                                           AnswerWriter::TokenBytes token_bytes) const override;

 private:
  const ServingContext& context_;
  ChatRequest request_;
  std::optional<RenderedChat> chat_;
  std::vector<ChatReader> readers_;  // [choice]
  uint64_t reasoning_tokens_ = 0;
};

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_CHAT_FORM_H_
