#include "tools/serve/chat_form.h"

#include <utility>

#include "tools/serve/api_error.h"
#include "tools/serve/openai/chat_writer.h"

namespace fastdecode::serve {

AnswerRequest* ChatForm::Read(const JsonBody& body, uint64_t random_seed) {
  request_ = ReadChatRequest(body, context_.limits, context_.defaults, random_seed);
  return &request_;
}

std::vector<int32_t> ChatForm::PromptIds(size_t prompt) {
  chat_.emplace(context_.engine, request_.input);
  fd_request& fields = request_.generate.fields;
  if (fields.show_special == 0) fields.show_special = chat_->show_special();
  CheckTextLength(context_, "messages", chat_->text_bytes());
  std::vector<int32_t> ids = chat_->Tokenize(fields.add_special_tokens != 0);
  if (ids.empty()) throw BadField("messages", "messages: the model's template makes no token of them");
  CheckLength(context_, "messages", ids.size(), &request_);
  return ids;
}

void ChatForm::StartChoice(size_t prompt, const std::vector<int32_t>& ids, Piece* piece) {
  readers_.push_back(chat_->NewReader());
}

void ChatForm::DropPrompts() {
  chat_.reset();
  request_.input = {};
}

// A token is one of the model's reasoning if the text was in it before the token or is afterwards: the mark that ends
// it counts, and so does the last token of the one that begins it.
void ChatForm::AddText(size_t choice, const fd_event& event, Piece* piece) {
  ChatReader& reader = readers_[choice];
  const bool reasoned = reader.in_reasoning();
  reader.Read(event, &piece->reasoning, &piece->text);
  if (reasoned || reader.in_reasoning()) reasoning_tokens_ += event.token_count;
}

std::unique_ptr<AnswerWriter> ChatForm::MakeWriter(AnswerWriter::Head head,
                                                   AnswerWriter::TokenBytes token_bytes) const {
  head.id.insert(0, ChatWriter::kIdPrefix);
  return std::make_unique<ChatWriter>(std::move(head), std::move(token_bytes), request_.include_reasoning);
}

}  // namespace fastdecode::serve
