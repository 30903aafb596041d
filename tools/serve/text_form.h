#ifndef FASTDECODE_TOOLS_SERVE_TEXT_FORM_H_
#define FASTDECODE_TOOLS_SERVE_TEXT_FORM_H_

#include <memory>
#include <vector>

#include "tools/serve/completion_form.h"
#include "tools/serve/openai/completion_request.h"
#include "tools/serve/serving_context.h"

namespace fastdecode::serve {

// POST /v1/completions: prompts are texts or token ids, and an answer goes on with them. Lends: the context.
class TextForm : public CompletionForm {
 public:
  explicit TextForm(const ServingContext* context) : context_(*context) {}

  AnswerRequest* Read(const JsonBody& body, uint64_t random_seed) override;
  size_t prompts() const override { return request_.prompts.size(); }
  std::vector<int32_t> PromptIds(size_t prompt) override;
  void CheckAnswer(uint64_t prompt_tokens) const override;
  void StartChoice(size_t prompt, const std::vector<int32_t>& ids, Piece* piece) override;
  void DropPrompts() override { std::vector<Prompt>().swap(request_.prompts); }

  void AddPrompt(const fd_event& event, Piece* piece) override;
  void AddText(size_t choice, const fd_event& event, Piece* piece) override;
  std::unique_ptr<AnswerWriter> MakeWriter(AnswerWriter::Head head,
                                           AnswerWriter::TokenBytes token_bytes) const override;

 private:
  const ServingContext& context_;
  CompletionRequest request_;
};

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_TEXT_FORM_H_
