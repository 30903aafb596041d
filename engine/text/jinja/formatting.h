#ifndef FASTDECODE_ENGINE_TEXT_JINJA_FORMATTING_H_
#define FASTDECODE_ENGINE_TEXT_JINJA_FORMATTING_H_

#include "engine/text/jinja/value.h"

// Texts made of values, as Python and MarkupSafe make them.
namespace fastdecode::jinja {

// & < > " ' become HTML's entities.
Text Escaped(const Text& text);
// "..." % arguments.
Value PercentFormat(const Value& format, const Value& arguments);
// "...".format(arguments).
Value BraceFormat(Interpreter& interpreter, const Value& format, const Arguments& arguments);

struct JsonStyle {
  bool ensure_ascii = false;
  bool sort_keys = false;
  bool indented = false;
  Text indent;  // of one level
  Text item_separator = Text(", ", /*foreign=*/true);
  Text key_separator = Text(": ", /*foreign=*/true);
};
// json.dumps. What it adds to texts counts as foreign, and is no part of a special token.
Text DumpJson(const Value& value, const JsonStyle& style);

// The value of a JSON text, all of it foreign or none. Failure: what is wrong with the text, and where; or, of kind
// kLimit, that it takes more than the rendering of this thread may.
Value LoadJson(std::string_view json, bool foreign);

}  // namespace fastdecode::jinja

#endif  // FASTDECODE_ENGINE_TEXT_JINJA_FORMATTING_H_
