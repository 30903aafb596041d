#ifndef FASTDECODE_ENGINE_TEXT_JINJA_PARSER_H_
#define FASTDECODE_ENGINE_TEXT_JINJA_PARSER_H_

#include <string_view>

#include "engine/text/jinja/ast.h"

namespace fastdecode::jinja {

// The statements of a template. Throws Failure of kind kSyntax. REQUIRES: valid UTF-8.
Block Parse(std::string_view source);

}  // namespace fastdecode::jinja

#endif  // FASTDECODE_ENGINE_TEXT_JINJA_PARSER_H_
