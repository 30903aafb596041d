#include <string>
#include <vector>

#include "engine/text/jinja/lexer.h"
#include "engine/text/utf8.h"
#include "numa/check.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/jinja_seeds.h"

namespace fastdecode {

// The input: a template.
bool FuzzOne(const std::string& input) {
  if (!IsValidUtf8(input)) return false;
  try {
    const std::vector<jinja::Token> tokens = jinja::Tokenize(input);
    FD_CHECK(!tokens.empty() && tokens.back().kind == jinja::Token::Kind::kEnd, "a template has an end");
    size_t bytes = 0;
    for (const jinja::Token& token : tokens) {
      FD_CHECK(token.at.line > 0 && token.at.column > 0, "a token has a place");
      FD_CHECK(IsValidUtf8(token.text), "a token is text");
      bytes += token.text.size();
    }
    // A backslash before a character of four bytes becomes ten, and no other token is longer than it is written.
    FD_CHECK(bytes <= 3 * input.size(), "tokens are not longer than the template");
    return true;
  } catch (const jinja::Failure& failure) {
    FD_CHECK(failure.kind == jinja::Failure::Kind::kSyntax && failure.at.line > 0, "an error has a place");
    FD_CHECK(!failure.message.empty(), "an error has a message");
    return false;
  }
}

std::vector<std::string> FuzzSeeds() { return JinjaSeeds(); }

}  // namespace fastdecode
