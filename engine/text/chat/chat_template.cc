#include "engine/text/chat/chat_template.h"

#include <algorithm>
#include <ctime>

#include "absl/strings/str_cat.h"
#include "engine/text/added_tokens.h"
#include "engine/text/chat/chat_messages.h"
#include "engine/text/jinja/budget.h"
#include "engine/text/jinja/failure.h"
#include "engine/text/utf8.h"

namespace fastdecode {

namespace {

using jinja::Dict;
using jinja::Failure;
using jinja::Text;
using jinja::Value;

void Set(Dict* dict, const std::string& name, Value value) { dict->Set(Value::String(name), std::move(value)); }

// A user's message with this content.
Value ProbeMessages(Value content) {
  Dict message;
  Set(&message, "role", Value::String("user"));
  Set(&message, "content", std::move(content));
  return Value::List({Value::OfDict(std::move(message))});
}

std::vector<RenderedChat::Part> PartsOf(const Text& text) {
  std::vector<RenderedChat::Part> parts;
  size_t at = 0;
  const auto add = [&](size_t end, bool special) {
    if (end > at) parts.push_back({text.bytes().substr(at, end - at), special});
    at = end;
  };
  for (const Text::Span& span : text.foreign()) {
    add(span.begin, true);
    add(span.end, false);
  }
  add(text.size(), true);
  return parts;
}

// What of a text are special tokens.
std::vector<TextRange> SpecialIn(const std::string& text, const Tokenizer& tokenizer) {
  std::vector<TextRange> special;
  size_t at = 0;
  for (const int32_t id : tokenizer.Encode(text, /*add_special_tokens=*/false)) {
    if (!tokenizer.IsSpecial(id)) continue;
    const std::string name = tokenizer.TokenBytes(id);
    const size_t found = text.find(name, at);
    if (found == std::string::npos) continue;  // the unknown token
    at = found + name.size();
    AddRange({found, at}, &special);
  }
  return special;
}

// Names that a request may not set: those that are the input's own fields, and the model's tokens.
void CheckVariables(const Value& variables, const std::vector<std::pair<std::string, std::string>>& special_tokens) {
  if (!variables.Is(Value::Kind::kDict)) throw Failure{.message = "variables: they are not an object"};
  for (const auto& [key, value] : variables.dict().items) {
    const std::string& name = key.bytes();
    const bool taken = name == "messages" || name == "tools" || name == "documents" ||
                       name == "add_generation_prompt" ||
                       std::any_of(special_tokens.begin(), special_tokens.end(),
                                   [&](const auto& token) { return token.first == name; });
    if (taken) throw Failure{.message = "variables: " + name + " cannot be set here"};
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<const ChatTemplate>> ChatTemplate::Create(const ChatFiles& files,
                                                                         const Tokenizer& tokenizer) {
  std::unique_ptr<ChatTemplate> chat(new ChatTemplate);
  chat->special_tokens_ = files.special_tokens;
  for (const auto& [name, text] : tokenizer.named_tokens()) {
    const auto has_name = [&name](const auto& token) { return token.first == name; };
    if (std::none_of(files.special_tokens.begin(), files.special_tokens.end(), has_name)) {
      chat->special_tokens_.emplace_back(name, text);
    }
  }
  chat->control_tokens_ = files.control_tokens;
  chat->has_control_tokens_ = files.has_control_tokens;
  std::vector<std::string> literals;
  std::string where;  // the templates come from
  for (const ChatTemplateSource& source : files.templates) {
    absl::StatusOr<std::unique_ptr<const jinja::Template>> parsed = jinja::Template::Parse(source.file, source.text);
    where += (where.empty() ? "" : ", ") + source.file;
    Known& known = chat->templates_.emplace_back();
    known.name = source.name;
    if (!parsed.ok()) {
      known.broken = parsed.status();
      chat->warnings_.push_back(
          absl::StrCat(parsed.status().message(), " (chats that need the template ", source.name, " are refused)"));
      continue;
    }
    known.rendered_by = *std::move(parsed);
    const std::vector<std::string>& own = known.rendered_by->literals();
    literals.insert(literals.end(), own.begin(), own.end());
  }
  const auto is_broken = [](const Known& known) { return !known.broken.ok(); };
  if (!chat->templates_.empty() && std::all_of(chat->templates_.begin(), chat->templates_.end(), is_broken)) {
    return chat->templates_.front().broken;
  }
  const bool usable =
      chat->templates_.size() == 1 || std::any_of(chat->templates_.begin(), chat->templates_.end(),
                                                  [](const Known& known) { return known.name == "default"; });
  if (!usable) {
    return absl::InvalidArgumentError(absl::StrCat(
        where, ": none of the templates is named default; choose one and pass it with --chat-template FILE"));
  }
  const auto special_in = [&](const std::string& text) { return SpecialIn(text, tokenizer); };
  chat->marks_ = std::make_shared<const ReasoningMarks>(FindReasoningMarks(literals, special_in));
  for (Known& known : chat->templates_) {
    if (known.broken.ok()) Probe(*chat, &known);
  }
  if (const absl::Status& probed = chat->Chosen(/*has_tools=*/false).probed; !probed.ok()) {
    chat->warnings_.push_back(absl::StrCat(probed.message(), " (of a chat with one message of a user)"));
  }
  return chat;
}

// Shows the template a message of either form, and sees what it makes of it.
void ChatTemplate::Probe(const ChatTemplate& chat, Known* known) {
  constexpr char kNeedle[] = "needle in a message";
  const auto renders = [&](Value content, absl::Status* status) {
    jinja::Budget budget(jinja::Limits{});
    const jinja::Spending spending(&budget);
    Dict variables;
    Set(&variables, "messages", ProbeMessages(std::move(content)));
    Set(&variables, "tools", Value::None());
    Set(&variables, "documents", Value::None());
    Set(&variables, "add_generation_prompt", Value::Bool(true));
    const absl::StatusOr<Text> text = chat.RenderValues(*known, std::move(variables), 0);
    *status = text.status();
    // A list that is printed as such shows its names.
    return text.ok() && text->bytes().find(kNeedle) != std::string::npos &&
           text->bytes().find("'type'") == std::string::npos && text->bytes().find("\"type\"") == std::string::npos;
  };
  Dict part;
  Set(&part, "type", Value::String("text"));
  Set(&part, "text", Value::String(kNeedle));
  absl::Status of_parts;
  known->takes_parts = renders(Value::List({Value::OfDict(std::move(part))}), &of_parts);
  // A template that renders neither is given texts.
  known->takes_text = renders(Value::String(kNeedle), &known->probed) || !known->takes_parts;
  if (of_parts.ok()) known->probed = absl::OkStatus();
  known->knows_developer = known->rendered_by->Mentions("developer");
}

const ChatTemplate::Known& ChatTemplate::Chosen(bool has_tools) const {
  const auto named = [&](std::string_view name) {
    return std::find_if(templates_.begin(), templates_.end(), [&](const Known& known) { return known.name == name; });
  };
  if (has_tools && named("tool_use") != templates_.end()) return *named("tool_use");
  return named("default") == templates_.end() ? templates_.front() : *named("default");
}

absl::StatusOr<Text> ChatTemplate::RenderValues(const Known& known, Dict variables, int64_t now_s) const {
  for (const auto& [name, text] : special_tokens_) Set(&variables, name, Value::String(text));
  return known.rendered_by->RenderWithin(variables, now_s);
}

const ReasoningMarks::Pair* ChatTemplate::OpenReasoning(const Text& text, const std::string& continued) const {
  const size_t end = jinja::Stripped(text.bytes(), nullptr, false, true).end;
  for (const ReasoningMarks::Pair& pair : marks_->pairs) {
    const std::string_view bytes = std::string_view(text.bytes()).substr(0, end);
    const bool by_template = bytes.ends_with(pair.begin.text) && !text.IsForeign(end - 1);
    const bool by_message =
        continued.starts_with(pair.begin.text) && continued.find(pair.end.text) == std::string::npos;
    if (by_template || by_message) return &pair;
  }
  return nullptr;
}

absl::StatusOr<RenderedChat> ChatTemplate::Render(const ChatInput& input) const {
  // What is read counts, too: a request's JSON takes many times its size as values.
  jinja::Budget budget(
      jinja::LimitsFor(input.messages.size() + input.tools.size() + input.documents.size() + input.variables.size()));
  const jinja::Spending spending(&budget);
  try {
    if (input.add_generation_prompt && input.continue_final_message) {
      throw Failure{
          .message = "add_generation_prompt and continue_final_message exclude each other; set one of them to false"};
    }
    Dict variables;
    const Value tools = input.tools.empty() ? Value::None() : ReadChatJson("tools", input.tools);
    if (!tools.Is(Value::Kind::kNone)) CheckObjects("tools", tools);
    const Known& known = Chosen(!tools.Is(Value::Kind::kNone));
    if (!known.broken.ok()) return known.broken;
    Value messages = PrepareMessages(ReadChatJson("messages", input.messages),
                                     {known.takes_text, known.takes_parts, known.knows_developer});
    std::string continued;
    if (input.continue_final_message) continued = MarkFinalMessage(&messages);
    Set(&variables, "messages", messages);
    Set(&variables, "tools", tools);
    Set(&variables, "documents", Value::None());
    if (!input.documents.empty()) {
      const Value documents = ReadChatJson("documents", input.documents);
      if (!documents.Is(Value::Kind::kNone)) CheckObjects("documents", documents);
      Set(&variables, "documents", documents);
    }
    Set(&variables, "add_generation_prompt", Value::Bool(input.add_generation_prompt));
    if (!input.variables.empty()) {
      const Value more = ReadChatJson("variables", input.variables);
      CheckVariables(more, special_tokens_);
      for (const auto& [key, value] : more.dict().items) variables.Set(key, value);
    }
    absl::StatusOr<Text> text = RenderValues(known, std::move(variables), input.now_s);
    if (!text.ok()) return text.status();
    if (input.continue_final_message) text = UpToFinalMark(*text);
    return RenderedChat{.parts = PartsOf(*text), .marks = marks_, .open = OpenReasoning(*text, continued)};
  } catch (const Failure& failure) {
    if (failure.kind == Failure::Kind::kLimit) return absl::ResourceExhaustedError(failure.message);
    return absl::InvalidArgumentError(failure.message);
  }
}

std::vector<std::string> ChatTemplate::GuardedTexts() const {
  if (has_control_tokens_) return control_tokens_;
  std::vector<std::string> texts;
  for (const Known& known : templates_) {
    if (!known.broken.ok()) continue;
    const std::vector<std::string>& own = known.rendered_by->literals();
    texts.insert(texts.end(), own.begin(), own.end());
  }
  return texts;
}

std::optional<int32_t> ChatTemplate::TurnEnd(const Tokenizer& tokenizer) const {
  constexpr std::string_view kAnswer = "needle in an answer";
  constexpr char kMessages[] =
      R"([{"role": "user", "content": "x"}, {"role": "assistant", "content": "needle in an answer"}])";
  ChatInput input;
  input.messages = kMessages;
  input.add_generation_prompt = false;
  const absl::StatusOr<RenderedChat> chat = Render(input);
  if (!chat.ok()) return std::nullopt;
  std::string text;
  for (const RenderedChat::Part& part : chat->parts) text += part.text;
  const size_t answer = text.rfind(kAnswer);
  if (answer == std::string::npos) return std::nullopt;
  for (const int32_t id : tokenizer.Encode(text.substr(answer + kAnswer.size()), /*add_special_tokens=*/false)) {
    if (tokenizer.IsSpecial(id)) return id;
    if (!IsOnlyWhiteSpace(ReplaceInvalidUtf8(tokenizer.TokenBytes(id)))) return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace fastdecode
