#ifndef FASTDECODE_TOOLS_SERVE_COMPLETION_FORM_H_
#define FASTDECODE_TOOLS_SERVE_COMPLETION_FORM_H_

#include <fastdecode/fastdecode.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "tools/serve/openai/answer_request.h"
#include "tools/serve/openai/answer_writer.h"
#include "tools/serve/openai/json_reader.h"
#include "tools/serve/openai/piece.h"

namespace fastdecode::serve {

// What endpoints differ in: how the body of one request is read, what its prompts are, and how its answer is written. A
// Completion owns one, and does all that they have in common. Its calls come in the order in which they stand here.
class CompletionForm {
 public:
  virtual ~CompletionForm() = default;

  // --- Thread: a helper. All of these throw ApiError.

  // Reads the body. What is returned is the form's, and lives as long.
  virtual AnswerRequest* Read(const JsonBody& body, uint64_t random_seed) = 0;
  virtual size_t prompts() const = 0;
  // The tokens of a prompt, which leave room for its answer in the model's context.
  virtual std::vector<int32_t> PromptIds(size_t prompt) = 0;
  // The prompts have so many tokens. Whether the answer is one that can be given.
  virtual void CheckAnswer(uint64_t prompt_tokens) const {}
  // Called for one choice after another, before the first is submitted. `ids`: its prompt's, as PromptIds gave them.
  virtual void StartChoice(size_t prompt, const std::vector<int32_t>& ids, Piece* piece) = 0;
  // No call of those above follows.
  virtual void DropPrompts() = 0;

  // --- Thread: the I/O thread. An event of a choice may come before DropPrompts has been called.

  // Adds what a PROMPT event says to the piece of each choice of its prompt.
  virtual void AddPrompt(const fd_event& event, Piece* piece) {}
  // Adds the text of a TOKEN or FINISHED event to the piece of a choice.
  virtual void AddText(size_t choice, const fd_event& event, Piece* piece) = 0;
  // Tokens that were part of a model's reasoning so far; nothing: this endpoint's usage does not say.
  virtual std::optional<uint64_t> reasoning_tokens() const { return std::nullopt; }
  // `head.id` has no prefix yet.
  virtual std::unique_ptr<AnswerWriter> MakeWriter(AnswerWriter::Head head,
                                                   AnswerWriter::TokenBytes token_bytes) const = 0;
};

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_COMPLETION_FORM_H_
