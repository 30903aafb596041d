#include "engine/text/chat/chat_messages.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/model/json_fields.h"
#include "engine/text/jinja/failure.h"
#include "engine/text/jinja/formatting.h"
#include "engine/text/jinja/operations.h"

namespace fastdecode {

namespace {

using jinja::Dict;
using jinja::Failure;
using jinja::Text;
using jinja::Value;
using Kind = jinja::Value::Kind;

// Noncharacters around a name: no tokenizer and no template knows them. The space at the end shows whether the template
// cuts white space.
constexpr std::string_view kFinalMark = "\ufdd0end of the final message\ufdd1 ";

constexpr size_t kShownBytesMax = 300;

[[noreturn]] void Fail(std::string message) { throw Failure{.message = std::move(message)}; }

Value Keyed(const char* name) { return Value::String(name); }

// {"type": "text", "text": ...}
Value TextPart(Value text) {
  Dict part;
  part.Set(Keyed("type"), Value::String("text"));
  part.Set(Keyed("text"), std::move(text));
  return Value::OfDict(std::move(part));
}

// The text of a part of a content.
Value PartText(const Value& part, const std::string& where) {
  if (!part.Is(Kind::kDict)) Fail(where + " is not an object");
  const Value* const type = part.dict().Find("type");
  if (type == nullptr || !type->Is(Kind::kString)) Fail(where + ".type is missing");
  const std::string& name = type->bytes();
  if (name != "text" && name != "refusal")
    Fail(where + ".type: '" + name.substr(0, 64) + "' is not text, which is all that is served");
  const Value* const text = part.dict().Find(name);
  if (text == nullptr || !text->Is(Kind::kString)) Fail(where + "." + name + " is not a string");
  return *text;
}

Value PrepareContent(const Value& content, const MessageForm& form, const std::string& where) {
  if (content.Is(Kind::kString)) return form.takes_text ? content : Value::List({TextPart(content)});
  if (!content.Is(Kind::kList)) Fail(where + " is neither a string nor an array of parts");
  std::vector<Value> parts;
  Text joined;
  for (size_t i = 0; i < content.items().size(); ++i) {
    const Value text = PartText(content.items()[i], where + "[" + std::to_string(i) + "]");
    if (i > 0) joined.Append("\n", /*foreign=*/true);
    joined.Append(text.text());
    parts.push_back(TextPart(text));
  }
  return form.takes_parts ? Value::List(std::move(parts)) : Value::String(std::move(joined));
}

// What a template takes as the arguments of a call: JSON in a string becomes what it says, if that is an object, and
// nothing becomes an object without fields.
Value PrepareArguments(const Value& arguments) {
  if (arguments.Is(Kind::kNone)) return Value::OfDict(Dict());
  if (!arguments.Is(Kind::kString)) return arguments;
  if (arguments.text().empty()) return Value::OfDict(Dict());
  try {
    const Value parsed = jinja::LoadJson(arguments.bytes(), /*foreign=*/true);
    return parsed.Is(Kind::kDict) ? parsed : arguments;
  } catch (const Failure& failure) {
    if (failure.kind == Failure::Kind::kLimit) throw;
    return arguments;
  }
}

Value PrepareToolCalls(const Value& calls, const std::string& where) {
  if (!calls.Is(Kind::kList)) Fail(where + " is not an array");
  std::vector<Value> prepared;
  for (const Value& call : calls.items()) {
    const Value* const function = call.Is(Kind::kDict) ? call.dict().Find("function") : nullptr;
    const Value* const arguments =
        function != nullptr && function->Is(Kind::kDict) ? function->dict().Find("arguments") : nullptr;
    if (arguments == nullptr) {
      prepared.push_back(call);
      continue;
    }
    Dict changed_function = function->dict();
    changed_function.Set(Keyed("arguments"), PrepareArguments(*arguments));
    Dict changed = call.dict();
    changed.Set(Keyed("function"), Value::OfDict(std::move(changed_function)));
    prepared.push_back(Value::OfDict(std::move(changed)));
  }
  return Value::List(std::move(prepared));
}

// The roles that every model's chats are made of count as the template's own words: some templates compose the mark of
// a turn from them, such as '<|' + message.role + '|>'. Any other role is text like the rest of the request.
Value PrepareRole(const Value& role, const MessageForm& form) {
  static constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool", "function"};
  const std::string& name = role.bytes();
  if (name == "developer" && !form.knows_developer) return Value::String("system");
  return std::find(std::begin(kRoles), std::end(kRoles), name) == std::end(kRoles) ? role : Value::String(name);
}

Value PrepareMessage(const Value& message, const MessageForm& form, const std::string& where) {
  Dict fields;
  for (const auto& [key, value] : message.dict().items) {
    if (!value.Is(Kind::kNone)) fields.Set(key, value);
  }
  const Value* const role = fields.Find("role");
  if (role == nullptr || !role->Is(Kind::kString) || role->bytes().empty())
    Fail(where + ".role is missing, or not a string");
  fields.Set(Keyed("role"), PrepareRole(*role, form));
  if (const Value* const content = fields.Find("content")) {
    fields.Set(Keyed("content"), PrepareContent(*content, form, where + ".content"));
  }
  if (const Value* const calls = fields.Find("tool_calls")) {
    fields.Set(Keyed("tool_calls"), PrepareToolCalls(*calls, where + ".tool_calls"));
  }
  for (const char* const name : {"reasoning_content", "thinking", "reasoning"}) {
    const Value* const found = fields.Find(name);
    if (found == nullptr) continue;
    const Value reasoning = *found;
    Dict aliased;
    aliased.Set(Keyed("thinking"), reasoning);
    for (const auto& [key, value] : fields.items) aliased.Set(key, value);
    aliased.Set(Keyed("reasoning_content"), reasoning);
    return Value::OfDict(std::move(aliased));
  }
  return Value::OfDict(std::move(fields));
}

}  // namespace

Value ReadChatJson(const char* field, std::string_view json) {
  try {
    return jinja::LoadJson(json, /*foreign=*/true);
  } catch (const Failure& failure) {
    // A message quotes what was read last.
    throw Failure{.message = std::string(field) + ": " + ShowText(failure.message, kShownBytesMax),
                  .kind = failure.kind};
  }
}

void CheckObjects(const char* field, const Value& value) {
  if (!value.Is(Kind::kList)) Fail(std::string(field) + ": it is not an array of objects");
  for (size_t i = 0; i < value.items().size(); ++i) {
    if (!value.items()[i].Is(Kind::kDict)) Fail(std::string(field) + "[" + std::to_string(i) + "] is not an object");
  }
}

Value PrepareMessages(const Value& messages, const MessageForm& form) {
  CheckObjects("messages", messages);
  if (messages.items().empty()) Fail("messages: there is none; give at least one");
  std::vector<Value> prepared;
  for (size_t i = 0; i < messages.items().size(); ++i) {
    const std::string where = "messages[" + std::to_string(i) + "]";
    try {
      prepared.push_back(PrepareMessage(messages.items()[i], form, where));
    } catch (Failure& failure) {
      if (failure.kind == Failure::Kind::kLimit) failure.message = where + ": " + failure.message;
      throw;
    }
  }
  return Value::List(std::move(prepared));
}

std::string MarkFinalMessage(Value* messages) {
  std::vector<Value> changed = messages->items();
  const std::string where = "messages[" + std::to_string(changed.size() - 1) + "]";
  Dict last = changed.back().dict();
  const Value* const content = last.Find("content");
  if (content == nullptr) Fail("continue_final_message: " + where + " has no content to go on with");
  const auto marked = [](const Value& text) {
    Text out = text.text();
    out.Append(kFinalMark, /*foreign=*/true);
    return Value::String(std::move(out));
  };
  std::string text;
  if (content->Is(Kind::kString)) {
    text = content->bytes();
    last.Set(Keyed("content"), marked(*content));
  } else {
    std::vector<Value> parts = content->items();
    if (parts.empty()) Fail("continue_final_message: " + where + ".content has no text to go on with");
    const Value last_text = *parts.back().dict().Find("text");
    text = last_text.bytes();
    parts.back() = TextPart(marked(last_text));
    last.Set(Keyed("content"), Value::List(std::move(parts)));
  }
  changed.back() = Value::OfDict(std::move(last));
  *messages = Value::List(std::move(changed));
  return text;
}

Text UpToFinalMark(const Text& text) {
  const std::string_view without_space = kFinalMark.substr(0, kFinalMark.size() - 1);
  const size_t at = text.bytes().rfind(without_space);
  if (at == std::string::npos) {
    Fail("continue_final_message: the model's template does not render the last message's text as it is");
  }
  if (text.bytes().compare(at, kFinalMark.size(), kFinalMark) == 0) return text.Slice(0, at);
  const Text before = text.Slice(0, at);
  return before.Slice(0, jinja::Stripped(before.bytes(), nullptr, false, true).end);
}

}  // namespace fastdecode
