#ifndef FASTDECODE_ENGINE_TEXT_JINJA_LEXER_H_
#define FASTDECODE_ENGINE_TEXT_JINJA_LEXER_H_

#include <string>
#include <string_view>
#include <vector>

#include "engine/text/jinja/failure.h"
#include "engine/text/jinja/value.h"

namespace fastdecode::jinja {

struct Token {
  enum class Kind {
    kData,           // text between tags
    kVariableBegin,  // {{
    kVariableEnd,
    kBlockBegin,  // {%
    kBlockEnd,
    kName,
    kString,  // without its quotes and escapes
    kNumber,
    kOperator,
    kEnd,  // of the template
  };
  Kind kind;
  Position at;
  std::string text;
  Value number;
};

// A template's tokens, by the rules of Jinja with trim_blocks and lstrip_blocks: a line end behind a tag, and white
// space before a tag that begins a line, are no part of the text. The last line end of a template is cut.
// Throws Failure of kind kSyntax. REQUIRES: valid UTF-8.
std::vector<Token> Tokenize(std::string_view source);

}  // namespace fastdecode::jinja

#endif  // FASTDECODE_ENGINE_TEXT_JINJA_LEXER_H_
