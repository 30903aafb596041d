#include "tools/serve/openai/chat_input.h"

#include <optional>
#include <string_view>

#include "tools/serve/api_error.h"
#include "tools/serve/openai/answer_request.h"
#include "tools/serve/openai/body_fields.h"
#include "tools/serve/openai/json_text.h"

namespace fastdecode::serve {
namespace {

using nlohmann::json;

constexpr size_t kRoleBytesMax = 64;
constexpr size_t kEffortBytesMax = 64;
constexpr char kMessageForm[] = R"(; give a list of messages such as {"role": "user", "content": "Hello"})";

// Fields of a request, or what would make a template's prompt of something else than text.
constexpr std::string_view kReservedVariables[] = {
    "messages", "tools", "documents", "add_generation_prompt", "continue_final_message", "chat_template", "tokenize"};

ApiError BadMessage(const std::string& what, const std::string& why) { return BadField("messages", what + ": " + why); }

// --- Messages

void CheckPart(const json& part, const std::string& what) {
  if (!part.is_object()) {
    throw BadMessage(what, ShowValue(part) + R"( is not an object such as {"type": "text", "text": "Hello"})");
  }
  const auto type = part.find("type");
  if (type == part.end() || type->is_null()) throw BadMessage(what + ".type", "it is missing; give \"text\"");
  for (const char* const known : {"text", "refusal"}) {
    if (*type != known) continue;
    const auto text = part.find(known);
    if (text != part.end() && text->is_string()) return;
    throw BadMessage(what + "." + known,
                     text == part.end() ? "it is missing; give a string" : ShowValue(*text) + " is not a string");
  }
  throw BadMessage(what + ".type", ShowValue(*type) +
                                       " is not supported; contents are text: give parts of the type "
                                       "\"text\"");
}

void CheckContent(const json& content, const std::string& what) {
  if (content.is_null() || content.is_string()) return;
  if (!content.is_array()) {
    throw BadMessage(what, ShowValue(content) + " is neither a string, nor null, nor a list of parts");
  }
  for (size_t i = 0; i < content.size(); ++i) CheckPart(content[i], Numbered(what, i));
}

void CheckRole(const json& message, const std::string& what) {
  const auto role = message.find("role");
  if (role == message.end() || role->is_null()) {
    throw BadMessage(what, R"(it is missing; give "system", "user" or "assistant", say)");
  }
  if (!role->is_string()) throw BadMessage(what, ShowValue(*role) + " is not a string");
  const size_t bytes = role->get_ref<const std::string&>().size();
  if (bytes == 0) throw BadMessage(what, "it is empty");
  if (bytes > kRoleBytesMax) {
    throw BadMessage(what, "it has " + std::to_string(bytes) + " bytes, more than " + std::to_string(kRoleBytesMax));
  }
}

void CheckMessages(const BodyFields& fields) {
  const json* const messages = fields.Find("messages");
  if (messages == nullptr) throw BadMessage("messages", std::string("they are missing") + kMessageForm);
  if (!messages->is_array()) throw BadMessage("messages", ShowValue(*messages) + " is not a list" + kMessageForm);
  if (messages->empty()) throw BadMessage("messages", std::string("the list is empty") + kMessageForm);
  for (size_t i = 0; i < messages->size(); ++i) {
    const json& message = (*messages)[i];
    const std::string what = Numbered("messages", i);
    if (!message.is_object()) throw BadMessage(what, ShowValue(message) + " is not an object" + kMessageForm);
    CheckRole(message, what + ".role");
    const auto content = message.find("content");
    if (content != message.end()) CheckContent(*content, what + ".content");
  }
}

// --- What else the template reads

// The text of a list of objects; empty: there is none, or nothing is in it.
std::string ReadObjects(const char* name, const BodyFields& fields, const JsonBody& body) {
  const json* const list = fields.Find(name);
  if (list == nullptr) return "";
  if (!list->is_array()) throw BadField(name, std::string(name) + ": " + ShowValue(*list) + " is not a list");
  for (size_t i = 0; i < list->size(); ++i) {
    if ((*list)[i].is_object()) continue;
    throw BadField(name, Numbered(name, i) + ": " + ShowValue((*list)[i]) + " is not an object");
  }
  return list->empty() ? "" : std::string(body.texts.find(name)->second);
}

std::string ReadEffort(const BodyFields& fields) {
  const std::optional<std::string> effort = fields.String("reasoning_effort");
  if (!effort) return "";
  if (!effort->empty() && effort->size() <= kEffortBytesMax) return *effort;
  throw BadField("reasoning_effort", "reasoning_effort: " + ShowValue(*effort) + " is not a word of 1 to " +
                                         std::to_string(kEffortBytesMax) + " bytes such as \"low\"");
}

std::string ReadVariables(const BodyFields& fields, const JsonBody& body) {
  constexpr char kName[] = "chat_template_kwargs";
  const std::string effort = ReadEffort(fields);
  std::string variables;
  if (const json* const given = fields.Find(kName); given != nullptr) {
    if (!given->is_object()) throw BadField(kName, std::string(kName) + ": " + ShowValue(*given) + " is not an object");
    for (const std::string_view reserved : kReservedVariables) {
      if (!given->contains(reserved)) continue;
      throw BadField(kName, std::string(kName) + "." + std::string(reserved) +
                                ": a template's variables cannot have this name; leave it out");
    }
    if (!effort.empty() && given->contains("reasoning_effort")) {
      throw BadField("reasoning_effort", "reasoning_effort: it is in chat_template_kwargs, too; give it once");
    }
    if (!given->empty()) variables = body.texts.find(kName)->second;
  }
  if (effort.empty()) return variables;
  if (variables.empty()) {
    variables = "{";
  } else {
    variables.back() = ',';  // in the place of the object's end
  }
  variables += R"("reasoning_effort":)";
  AppendJsonString(effort, &variables);
  return variables + "}";
}

}  // namespace

ChatInput ReadChatInput(const JsonBody& body) {
  const BodyFields fields(body.object);
  CheckMessages(fields);
  if (const json* const chat_template = fields.Find("chat_template"); chat_template != nullptr) {
    throw BadField("chat_template",
                   "chat_template: a template never comes from a request; leave this field out, or start the server "
                   "with --chat-template FILE");
  }
  ChatInput input;
  input.messages = body.texts.find("messages")->second;
  input.tools = ReadObjects("tools", fields, body);
  input.documents = ReadObjects("documents", fields, body);
  input.variables = ReadVariables(fields, body);
  input.add_generation_prompt = fields.Bool("add_generation_prompt", true);
  input.continue_final_message = fields.Bool("continue_final_message", false);
  if (input.continue_final_message && input.add_generation_prompt) {
    throw BadField("continue_final_message",
                   "continue_final_message: it is true, and so is add_generation_prompt, as it is where it is absent; "
                   "send \"add_generation_prompt\": false");
  }
  return input;
}

}  // namespace fastdecode::serve
