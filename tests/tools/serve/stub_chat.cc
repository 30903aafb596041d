// The chat part of the C interface for the stub engine. Its template writes each message as
//
//   <s>ROLE MORE\nCONTENT</s>
//
// where MORE is a JSON object of the message's other members, if there are any, and a content of several parts is their
// texts, one behind the other. Before the messages come tools, documents and variables, each with its name as the role
// and its JSON as the content. The last message's content is written as {play}CONTENT{end}, so that it is what the stub
// plays. The prompt goes on with <s>assistant\n, and with <think> if the variable `thinks` is true; a message that is
// continued ends with its content. All that comes from the request is in parts with special = 0.
//
// In the content of any message, {template-error:TEXT} is an error of the template with this text, and {template-limit}
// takes too long. The variable `show_special` is true: special tokens mark the model's reasoning.
#include <fastdecode/fastdecode.h>

#include <algorithm>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "engine/api/sized_struct.h"
#include "nlohmann/json.hpp"
#include "tests/tools/serve/stub_handles.h"

using fastdecode::InitSized;
using fastdecode::IsStructSize;
using fastdecode::ReadSized;
using fastdecode::WriteSized;
using fastdecode::stub::Invalid;
using fastdecode::stub::StubFailure;
using Json = nlohmann::ordered_json;

struct fd_chat {
  std::deque<std::string> texts;  // what the parts point to
  std::vector<fd_prompt_part> parts;
  bool thinks = false, shows_special = false;
};

struct fd_chat_reader {
  bool thinks;
  std::string held;  // text that may be the beginning of a mark
  std::string reasoning, content;
};

namespace {

constexpr std::string_view kThink = "<think>", kEndOfThought = "</think>";
const char kNoTemplate[] = "this stub was told to have no chat template; leave --stub-chat-template out";

void Append(std::string text, int special, fd_chat* chat) {
  if (text.empty()) return;
  fd_prompt_part part = {};
  part.struct_size = sizeof(part);
  part.special = special;
  part.joins = 1;
  chat->texts.push_back(std::move(text));
  part.text = chat->texts.back().data();
  part.text_bytes = chat->texts.back().size();
  chat->parts.push_back(part);
}

Json Parse(const char* field, const char* text, size_t bytes) {
  Json value = Json::parse(text, text + bytes, nullptr, /*allow_exceptions=*/false);
  if (value.is_discarded()) throw StubFailure{FD_INVALID_ARGUMENT, std::string(field) + ": it is not JSON"};
  return value;
}

std::string ContentOf(const Json& message) {
  const auto content = message.find("content");
  if (content == message.end() || content->is_null()) return "";
  if (content->is_string()) return content->get<std::string>();
  std::string text;
  for (const Json& part : *content) text += part.value(part["type"].get<std::string>(), "");
  return text;
}

std::string OthersOf(Json message) {
  message.erase("role");
  message.erase("content");
  return message.empty() ? "" : " " + message.dump();
}

void CheckDirectives(const std::string& content) {
  constexpr std::string_view kError = "{template-error:";
  if (const size_t at = content.find(kError); at != std::string::npos) {
    const size_t begin = at + kError.size();
    throw StubFailure{FD_INVALID_ARGUMENT, content.substr(begin, content.find('}', begin) - begin)};
  }
  if (content.find("{template-limit}") != std::string::npos) {
    throw StubFailure{FD_RESOURCE_EXHAUSTED, "the chat template needs more than 1000 steps"};
  }
}

void AppendSection(const char* name, const char* text, size_t bytes, fd_chat* chat) {
  if (text == nullptr) return;
  Parse(name, text, bytes);
  Append("<s>" + std::string(name) + "\n", 1, chat);
  Append(std::string(text, bytes), 0, chat);
  Append("</s>", 1, chat);
}

void Render(const fd_chat_input& input, fd_chat* chat) {
  AppendSection("tools", input.tools, input.tools_bytes, chat);
  AppendSection("documents", input.documents, input.documents_bytes, chat);
  AppendSection("variables", input.variables, input.variables_bytes, chat);
  if (input.variables != nullptr) {
    const Json variables = Parse("variables", input.variables, input.variables_bytes);
    chat->thinks = input.add_generation_prompt != 0 && variables.value("thinks", false);
    chat->shows_special = variables.value("show_special", false);
  }
  const Json messages = Parse("messages", input.messages, input.messages_bytes);
  for (size_t i = 0; i < messages.size(); ++i) {
    const bool last = i + 1 == messages.size();
    const std::string content = ContentOf(messages[i]);
    CheckDirectives(content);
    Append("<s>", 1, chat);
    Append(messages[i]["role"].get<std::string>() + OthersOf(messages[i]), 0, chat);
    Append(last ? "\n{play}" : "\n", 1, chat);
    Append(content, 0, chat);
    if (last && input.continue_final_message != 0) return;
    Append(last ? "{end}</s>" : "</s>", 1, chat);
  }
  if (input.add_generation_prompt != 0) Append(chat->thinks ? "<s>assistant\n<think>" : "<s>assistant\n", 1, chat);
}

// So many bytes at the end of `text` may be the beginning of `mark`.
size_t HeldFor(std::string_view text, std::string_view mark) {
  for (size_t n = std::min(text.size(), mark.size() - 1); n > 0; --n) {
    if (text.substr(text.size() - n) == mark.substr(0, n)) return n;
  }
  return 0;
}

void Take(fd_chat_reader* reader, std::string_view text, bool last) {
  reader->held += text;
  for (;;) {
    const std::string_view mark = reader->thinks ? kEndOfThought : kThink;
    std::string& into = reader->thinks ? reader->reasoning : reader->content;
    const size_t at = reader->held.find(mark);
    if (at == std::string::npos) {
      const size_t told = reader->held.size() - (last ? 0 : HeldFor(reader->held, mark));
      into.append(reader->held, 0, told);
      reader->held.erase(0, told);
      return;
    }
    into.append(reader->held, 0, at);
    reader->held.erase(0, at + mark.size());
    reader->thinks = !reader->thinks;
  }
}

// An event's text, less the special tokens that are there for their marks alone: this stub's marks are none.
std::string ShownText(const fd_event& event) {
  std::string text(event.text, event.text_bytes);
  for (uint32_t i = event.hides_special != 0 ? event.special_count : 0; i > 0; --i) {
    const fd_text_range& range = event.special[i - 1];
    text.erase(range.begin, range.end - range.begin);
  }
  return text;
}

int Give(const fd_chat_reader& reader, fd_chat_piece* out) {
  fd_chat_piece piece = {};
  piece.in_reasoning = reader.thinks ? 1 : 0;
  piece.reasoning = reader.reasoning.data();
  piece.reasoning_bytes = reader.reasoning.size();
  piece.content = reader.content.data();
  piece.content_bytes = reader.content.size();
  WriteSized(piece, out->struct_size, out);
  return 0;
}

}  // namespace

extern "C" {

int fd_has_chat_template(const fd_engine* engine) {
  return engine->engine->options().has_chat_template && fd_has_tokenizer(engine) ? 1 : 0;
}
const char* fd_chat_template_missing_reason(const fd_engine* engine) {
  return fd_has_chat_template(engine) ? "" : kNoTemplate;
}

void fd_chat_input_init(fd_chat_input* input, size_t bytes) {
  fd_chat_input defaults = {};
  defaults.add_generation_prompt = 1;
  defaults.now_s = -1;
  InitSized(defaults, bytes, input);
}

fd_status* fd_chat_render(const fd_engine* engine, const fd_chat_input* input, fd_chat** out) {
  fd_chat_input known = {};
  const std::string wrong = ReadSized("fd_chat_input", input, &known);
  if (!wrong.empty()) return Invalid(wrong);
  if (!fd_has_chat_template(engine)) return new fd_status{FD_FAILED_PRECONDITION, kNoTemplate};
  auto chat = std::make_unique<fd_chat>();
  try {
    Render(known, chat.get());
  } catch (const StubFailure& failure) {
    return new fd_status{failure.code, failure.message};
  }
  *out = chat.release();
  return nullptr;
}
void fd_chat_destroy(fd_chat* chat) { delete chat; }

const fd_prompt_part* fd_chat_parts(const fd_chat* chat, size_t* count) {
  *count = chat->parts.size();
  return chat->parts.data();
}
int fd_chat_set_prompt(const fd_chat* chat, fd_request* request) {
  if (!IsStructSize(request->struct_size)) return FD_BAD_STRUCT_SIZE;
  request->parts = chat->parts.data();
  request->part_count = chat->parts.size();
  request->add_special_tokens = 0;
  if (chat->shows_special && request->show_special == 0) request->show_special = 2;
  return 0;
}

fd_chat_reader* fd_chat_reader_create(const fd_chat* chat) { return new fd_chat_reader{chat->thinks, "", "", ""}; }
void fd_chat_reader_destroy(fd_chat_reader* reader) { delete reader; }
int fd_chat_read(fd_chat_reader* reader, const char* text, size_t text_bytes, int last, fd_chat_piece* out) {
  if (!IsStructSize(out->struct_size)) return FD_BAD_STRUCT_SIZE;
  reader->reasoning.clear();
  reader->content.clear();
  Take(reader, {text, text_bytes}, last != 0);
  return Give(*reader, out);
}
int fd_chat_read_event(fd_chat_reader* reader, const fd_event* event, fd_chat_piece* out) {
  if (!IsStructSize(out->struct_size)) return FD_BAD_STRUCT_SIZE;
  reader->reasoning.clear();
  reader->content.clear();
  Take(reader, ShownText(*event), event->kind == FD_EVENT_FINISHED);
  return Give(*reader, out);
}

}  // extern "C"
