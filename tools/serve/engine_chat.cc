#include "tools/serve/engine_chat.h"

#include <new>
#include <utility>

#include "tools/serve/api_error.h"
#include "tools/serve/engine_text.h"

namespace fastdecode::serve {

namespace {

// What the engine calls the fields of a request, and what the API does.
constexpr std::pair<std::string_view, std::string_view> kFields[] = {
    {"messages", "messages"},
    {"tools", "tools"},
    {"documents", "documents"},
    {"variables", "chat_template_kwargs"},
    {"add_generation_prompt", "add_generation_prompt"},
    {"continue_final_message", "continue_final_message"}};

// A message that begins with a field's name is about that field; anything else is what the template says of messages.
void NameField(ApiError* error) {
  error->param = "messages";
  for (const auto& [engines, apis] : kFields) {
    if (!error->message.starts_with(engines)) continue;
    const char next = error->message.size() > engines.size() ? error->message[engines.size()] : ':';
    if (next != ':' && next != '.' && next != '[') continue;
    error->message.replace(0, engines.size(), apis);
    error->param = apis;
    return;
  }
}

void ThrowChatError(fd_status* status) {
  const fd_code code = fd_status_code(status);
  if (code != FD_INVALID_ARGUMENT && code != FD_FAILED_PRECONDITION && code != FD_RESOURCE_EXHAUSTED) {
    return ThrowApiError(status, "messages");
  }
  ApiError error;
  error.message = fd_status_message(status);
  fd_status_destroy(status);
  if (code == FD_FAILED_PRECONDITION) {
    error.code = "no_chat_template";
  } else {
    NameField(&error);
    if (code == FD_RESOURCE_EXHAUSTED) error.code = "template_limit";
  }
  throw error;
}

}  // namespace

ChatReader::ChatReader(const fd_chat* chat) : reader_(fd_chat_reader_create(chat)) {
  if (reader_ == nullptr) throw std::bad_alloc();
  // Some templates end in the middle of the model's reasoning.
  fd_event nothing = {};
  nothing.struct_size = sizeof(nothing);
  nothing.text = "";
  std::string none;
  Read(nothing, &none, &none);
}

void ChatReader::Read(const fd_event& event, std::string* reasoning, std::string* content) {
  fd_chat_piece piece = {};
  piece.struct_size = sizeof(piece);
  if (fd_chat_read_event(reader_.get(), &event, &piece) != 0) throw std::bad_alloc();
  reasoning->append(piece.reasoning, piece.reasoning_bytes);
  content->append(piece.content, piece.content_bytes);
  in_reasoning_ = piece.in_reasoning != 0;
}

RenderedChat::RenderedChat(const fd_engine* engine, const ChatInput& input) : engine_(engine) {
  fd_chat_input asked;
  fd_chat_input_init(&asked, sizeof(asked));
  asked.add_generation_prompt = input.add_generation_prompt ? 1 : 0;
  asked.continue_final_message = input.continue_final_message ? 1 : 0;
  asked.messages = input.messages.data();
  asked.messages_bytes = input.messages.size();
  const auto lend = [](const std::string& text, const char** at, size_t* bytes) {
    if (text.empty()) return;
    *at = text.data();
    *bytes = text.size();
  };
  lend(input.tools, &asked.tools, &asked.tools_bytes);
  lend(input.documents, &asked.documents, &asked.documents_bytes);
  lend(input.variables, &asked.variables, &asked.variables_bytes);
  fd_chat* chat = nullptr;
  if (fd_status* const status = fd_chat_render(engine, &asked, &chat); status != nullptr) ThrowChatError(status);
  chat_.reset(chat);
  fd_request_init(&fields_, sizeof(fields_));
  fd_chat_set_prompt(chat, &fields_);
}

size_t RenderedChat::text_bytes() const {
  size_t bytes = 0;
  const char* at = reinterpret_cast<const char*>(fields_.parts);
  for (size_t i = 0; i < fields_.part_count; ++i, at += fields_.parts->struct_size) {
    bytes += reinterpret_cast<const fd_prompt_part*>(at)->text_bytes;
  }
  return bytes;
}

std::vector<int32_t> RenderedChat::Tokenize(bool add_special_tokens) const {
  const bool around = add_special_tokens || fields_.add_special_tokens != 0;
  return TokenizeParts(engine_, fields_.parts, fields_.part_count, around, "messages");
}

}  // namespace fastdecode::serve
