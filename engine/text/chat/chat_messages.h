#ifndef FASTDECODE_ENGINE_TEXT_CHAT_CHAT_MESSAGES_H_
#define FASTDECODE_ENGINE_TEXT_CHAT_CHAT_MESSAGES_H_

#include <string>
#include <string_view>

#include "engine/text/jinja/value.h"

namespace fastdecode {

// What a template takes as a message.
struct MessageForm {
  bool takes_text = true, takes_parts = false;
  bool knows_developer = false;
};

// The value of a JSON text that came with a request; `field` is its name. Throws jinja::Failure that begins with it.
jinja::Value ReadChatJson(const char* field, std::string_view json);
// Throws unless the value is an array of objects.
void CheckObjects(const char* field, const jinja::Value& value);

// Messages as a template of this form takes them. Throws jinja::Failure that names the message and its field.
jinja::Value PrepareMessages(const jinja::Value& messages, const MessageForm& form);

// Marks the end of the last message's text, and returns that text. Throws if there is none.
std::string MarkFinalMessage(jinja::Value* messages);
// The text up to that mark, and without the white space that the template has cut there. Throws if it is not there.
jinja::Text UpToFinalMark(const jinja::Text& text);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_TEXT_CHAT_CHAT_MESSAGES_H_
