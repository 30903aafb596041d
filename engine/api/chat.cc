// The chat part of the C interface.
#include <fastdecode/fastdecode.h>

#include <ctime>
#include <exception>
#include <memory>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "engine/api/handles.h"
#include "engine/api/sized_struct.h"
#include "engine/api/status.h"
#include "engine/text/chat/chat_template.h"
#include "engine/text/jinja/failure.h"
#include "engine/text/jinja/formatting.h"

using fastdecode::AnswerText;
using fastdecode::CopyString;
using fastdecode::IsStructSize;
using fastdecode::ReasoningReader;
using fastdecode::RenderedChat;
using fastdecode::ToStatus;
using fastdecode::WriteSized;

struct fd_chat {
  RenderedChat rendered;
  std::vector<fd_prompt_part> parts;  // of rendered.parts
};

struct fd_chat_reader {
  const std::shared_ptr<const fastdecode::ReasoningMarks> marks;
  ReasoningReader reader;
  std::string reasoning, content;
};

namespace {

fd_status* NoMemory() { return new fd_status{FD_RESOURCE_EXHAUSTED, "out of memory for a chat"}; }

fd_chat_input DefaultChatInput() {
  fd_chat_input input = {};
  input.add_generation_prompt = 1;
  input.now_s = -1;
  return input;
}

// JSON in memory that may be absent.
fd_status* ReadText(const char* name, const char* text, size_t bytes, std::string_view* out) {
  if (text == nullptr && bytes > 0)
    return new fd_status{FD_INVALID_ARGUMENT, std::string(name) + " is NULL, and has bytes"};
  *out = text == nullptr ? std::string_view() : std::string_view(text, bytes);
  return nullptr;
}

int64_t Now(int64_t given_s) { return given_s < 0 ? std::time(nullptr) : given_s; }

std::unique_ptr<fd_chat> MakeChat(RenderedChat rendered) {
  auto chat = std::make_unique<fd_chat>();
  chat->rendered = std::move(rendered);
  for (const RenderedChat::Part& part : chat->rendered.parts) {
    fd_prompt_part one = {};
    one.struct_size = sizeof(one);
    one.special = part.special ? 1 : 0;
    one.text = part.text.data();
    one.text_bytes = part.text.size();
    one.joins = 1;
    chat->parts.push_back(one);
  }
  return chat;
}

fd_status* Render(const fd_engine* engine, const fd_chat_input& given, fd_chat** out) {
  const fastdecode::ChatTemplate* const chat_template = engine->engine->chat_template();
  if (chat_template == nullptr) {
    return new fd_status{FD_FAILED_PRECONDITION, "no chat template: " + engine->engine->chat_template_missing_reason()};
  }
  fastdecode::ChatInput input;
  const struct {
    const char* name;
    const char* text;
    size_t bytes;
    std::string_view* out;
  } texts[] = {{"messages", given.messages, given.messages_bytes, &input.messages},
               {"tools", given.tools, given.tools_bytes, &input.tools},
               {"documents", given.documents, given.documents_bytes, &input.documents},
               {"variables", given.variables, given.variables_bytes, &input.variables}};
  for (const auto& [name, text, bytes, place] : texts) {
    if (fd_status* bad = ReadText(name, text, bytes, place); bad != nullptr) return bad;
  }
  if (given.reserved != 0) return new fd_status{FD_INVALID_ARGUMENT, "fd_chat_input.reserved is not 0"};
  input.add_generation_prompt = given.add_generation_prompt != 0;
  input.continue_final_message = given.continue_final_message != 0;
  input.now_s = Now(given.now_s);
  absl::StatusOr<RenderedChat> rendered = chat_template->Render(input);
  if (!rendered.ok()) return ToStatus(rendered.status());
  *out = MakeChat(*std::move(rendered)).release();
  return nullptr;
}

fd_status* RenderTemplate(const char* name, std::string_view source, std::string_view context, int64_t now_s,
                          std::string* out) {
  const auto parsed = fastdecode::jinja::Template::Parse(name, source);
  if (!parsed.ok()) return ToStatus(parsed.status());
  fastdecode::jinja::Value variables;
  try {
    variables = fastdecode::jinja::LoadJson(context, /*foreign=*/true);
  } catch (const fastdecode::jinja::Failure& failure) {
    return new fd_status{FD_INVALID_ARGUMENT, "context: " + failure.message};
  }
  if (!variables.Is(fastdecode::jinja::Value::Kind::kDict)) {
    return new fd_status{FD_INVALID_ARGUMENT, "context: it is not an object of variables"};
  }
  const absl::StatusOr<fastdecode::jinja::Text> text = (*parsed)->Render(variables.dict(), Now(now_s));
  if (!text.ok()) return ToStatus(text.status());
  *out = text->bytes();
  return nullptr;
}

int Read(fd_chat_reader* reader, const AnswerText& answer, bool last, fd_chat_piece* out) {
  if (!IsStructSize(out->struct_size)) return FD_BAD_STRUCT_SIZE;
  try {
    reader->reasoning.clear();
    reader->content.clear();
    reader->reader.Read(answer, last, &reader->reasoning, &reader->content);
  } catch (const std::bad_alloc&) {
    return FD_NO_MEMORY;
  } catch (const std::exception&) {
    return FD_INTERNAL;
  }
  fd_chat_piece piece = {};
  piece.in_reasoning = reader->reader.in_reasoning() ? 1 : 0;
  piece.reasoning = reader->reasoning.c_str();
  piece.reasoning_bytes = reader->reasoning.size();
  piece.content = reader->content.c_str();
  piece.content_bytes = reader->content.size();
  WriteSized(piece, out->struct_size, out);
  return 0;
}

}  // namespace

extern "C" {

int fd_has_chat_template(const fd_engine* engine) { return engine->engine->chat_template() != nullptr; }
const char* fd_chat_template_missing_reason(const fd_engine* engine) {
  return engine->engine->chat_template_missing_reason().c_str();
}

void fd_chat_input_init(fd_chat_input* input, size_t bytes) { fastdecode::InitSized(DefaultChatInput(), bytes, input); }

fd_status* fd_chat_render(const fd_engine* engine, const fd_chat_input* given, fd_chat** out) {
  *out = nullptr;
  fd_chat_input input = DefaultChatInput();
  try {
    if (fd_status* bad = ToStatus(fastdecode::ReadSized("fd_chat_input", given, &input)); bad != nullptr) return bad;
    return Render(engine, input, out);
  } catch (const std::bad_alloc&) {
    return NoMemory();
  } catch (const std::exception& error) {
    return new fd_status{FD_INTERNAL, error.what()};
  }
}

void fd_chat_destroy(fd_chat* chat) { delete chat; }

const fd_prompt_part* fd_chat_parts(const fd_chat* chat, size_t* count) {
  *count = chat->parts.size();
  return chat->parts.data();
}

int fd_chat_set_prompt(const fd_chat* chat, fd_request* request) {
  fd_request known = {};
  if (!IsStructSize(request->struct_size)) return FD_BAD_STRUCT_SIZE;
  try {
    if (!fastdecode::ReadSized("fd_request", request, &known).empty()) return FD_BAD_STRUCT_SIZE;
  } catch (const std::bad_alloc&) {
    return FD_NO_MEMORY;
  } catch (const std::exception&) {
    return FD_INTERNAL;
  }
  known.parts = chat->parts.data();
  known.part_count = chat->parts.size();
  known.add_special_tokens = 0;
  if (chat->rendered.marks->shows_special && known.show_special == 0) known.show_special = 2;
  WriteSized(known, request->struct_size, request);
  return 0;
}

fd_chat_reader* fd_chat_reader_create(const fd_chat* chat) {
  const RenderedChat& rendered = chat->rendered;
  try {
    return new fd_chat_reader{rendered.marks, ReasoningReader(rendered.marks.get(), rendered.open), {}, {}};
  } catch (const std::exception&) {
    return nullptr;
  }
}

int fd_chat_read(fd_chat_reader* reader, const char* text, size_t text_bytes, int last, fd_chat_piece* out) {
  AnswerText answer = {text == nullptr ? std::string_view() : std::string_view(text, text_bytes)};
  answer.of_others = AnswerText::kUnknown;
  return Read(reader, answer, last != 0, out);
}

int fd_chat_read_event(fd_chat_reader* reader, const fd_event* event, fd_chat_piece* out) {
  fd_event known = {};
  try {
    if (!fastdecode::ReadSized("fd_event", event, &known).empty()) return FD_BAD_STRUCT_SIZE;
  } catch (const std::bad_alloc&) {
    return FD_NO_MEMORY;
  } catch (const std::exception&) {
    return FD_INTERNAL;
  }
  AnswerText answer = {known.text == nullptr ? std::string_view() : std::string_view(known.text, known.text_bytes)};
  answer.special = {reinterpret_cast<const fastdecode::TextRange*>(known.special), known.special_count};
  answer.of_special = known.hides_special != 0 ? AnswerText::kHidden : AnswerText::kSpecial;
  return Read(reader, answer, known.kind == FD_EVENT_FINISHED, out);
}

void fd_chat_reader_destroy(fd_chat_reader* reader) { delete reader; }

fd_status* fd_template_render(const char* name, const char* source, size_t source_bytes, const char* context_json,
                              size_t context_bytes, int64_t now_s, char** text, size_t* text_bytes) {
  *text = nullptr;
  *text_bytes = 0;
  try {
    std::string_view template_text, context;
    if (fd_status* bad = ReadText("source", source, source_bytes, &template_text); bad != nullptr) return bad;
    if (fd_status* bad = ReadText("context_json", context_json, context_bytes, &context); bad != nullptr) return bad;
    std::string rendered;
    if (fd_status* bad = RenderTemplate(name == nullptr ? "template" : name, template_text, context, now_s, &rendered);
        bad != nullptr) {
      return bad;
    }
    *text = CopyString(rendered);
    if (*text == nullptr) return NoMemory();
    *text_bytes = rendered.size();
    return nullptr;
  } catch (const std::bad_alloc&) {
    return NoMemory();
  } catch (const std::exception& error) {
    return new fd_status{FD_INTERNAL, error.what()};
  }
}

}  // extern "C"
