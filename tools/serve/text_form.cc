#include "tools/serve/text_form.h"

#include <string>
#include <utility>

#include "tools/serve/api_error.h"
#include "tools/serve/engine_text.h"
#include "tools/serve/openai/completion_writer.h"

namespace fastdecode::serve {

namespace {

// Log-probabilities of prompts in one answer: some 40 MB of JSON.
constexpr uint64_t kEchoedEntriesMax = 1 << 20;

}  // namespace

AnswerRequest* TextForm::Read(const JsonBody& body, uint64_t random_seed) {
  request_ = ReadCompletionRequest(body.object, context_.limits, context_.defaults, random_seed);
  return &request_;
}

std::vector<int32_t> TextForm::PromptIds(size_t index) {
  const Prompt& prompt = request_.prompts[index];
  const std::string field = request_.prompts.size() == 1 ? "prompt" : Numbered("prompt", index);
  CheckTextLength(context_, field, prompt.text.size());
  const bool around = request_.generate.fields.add_special_tokens != 0;
  std::vector<int32_t> ids = prompt.is_ids ? prompt.ids : Tokenize(context_.engine, prompt.text, around);
  if (ids.empty()) throw BadField("prompt", field + ": it has no tokens, and the model needs at least one");
  CheckTokenIds(context_.engine, field, ids);
  CheckLength(context_, field, ids.size(), &request_);
  return ids;
}

// Log-probabilities of prompts are the one part of an answer that a small request makes large.
void TextForm::CheckAnswer(uint64_t prompt_tokens) const {
  const fd_request& fields = request_.generate.fields;
  if (!request_.echo || fields.logprobs < 0) return;
  const uint64_t tokens = prompt_tokens * request_.n;
  const uint64_t entries = tokens * static_cast<uint64_t>(1 + fields.logprobs);
  if (entries <= kEchoedEntriesMax) return;
  throw BadField("logprobs", "logprobs: with echo, " + std::to_string(tokens) + " tokens of prompts and " +
                                 std::to_string(fields.logprobs) + " alternatives each are " + std::to_string(entries) +
                                 " log-probabilities, and a request gets at most " + std::to_string(kEchoedEntriesMax) +
                                 "; send fewer prompts at a time");
}

void TextForm::StartChoice(size_t prompt, const std::vector<int32_t>& ids, Piece* piece) {
  if (!request_.echo) return;
  const bool show_special = request_.generate.fields.show_special != 0;
  const Prompt& given = request_.prompts[prompt];
  piece->text = given.is_ids ? Detokenize(context_.engine, ids, show_special, "echo") : given.text;
}

void TextForm::AddPrompt(const fd_event& event, Piece* piece) {
  if (!request_.echo || request_.generate.fields.logprobs < 0) return;
  piece->run.Append(event);
  piece->echoed_tokens = event.token_count;
}

void TextForm::AddText(size_t choice, const fd_event& event, Piece* piece) {
  piece->text.append(event.text, event.text_bytes);
}

std::unique_ptr<AnswerWriter> TextForm::MakeWriter(AnswerWriter::Head head,
                                                   AnswerWriter::TokenBytes token_bytes) const {
  head.id.insert(0, CompletionWriter::kIdPrefix);
  return std::make_unique<CompletionWriter>(std::move(head), std::move(token_bytes));
}

}  // namespace fastdecode::serve
