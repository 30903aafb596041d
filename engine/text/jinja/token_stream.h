#ifndef FASTDECODE_ENGINE_TEXT_JINJA_TOKEN_STREAM_H_
#define FASTDECODE_ENGINE_TEXT_JINJA_TOKEN_STREAM_H_

#include <string>
#include <string_view>
#include <vector>

#include "engine/text/jinja/lexer.h"

namespace fastdecode::jinja {

// The tokens that a parser has before it.
class TokenStream {
 public:
  explicit TokenStream(std::vector<Token> tokens) : tokens_(std::move(tokens)) {}

  const Token& current() const { return tokens_[at_]; }
  const Token& next() const { return tokens_[at_ + 1 < tokens_.size() ? at_ + 1 : at_]; }
  // The current token; the one behind it is current then. The end stays.
  const Token& Take() {
    const Token& token = tokens_[at_];
    if (token.kind != Token::Kind::kEnd) ++at_;
    return token;
  }

  bool Is(Token::Kind kind) const { return current().kind == kind; }
  bool IsName(std::string_view name) const { return Is(Token::Kind::kName) && current().text == name; }
  bool IsOperator(std::string_view op) const { return Is(Token::Kind::kOperator) && current().text == op; }
  bool TakeName(std::string_view name) { return IsName(name) && (Take(), true); }
  bool TakeOperator(std::string_view op) { return IsOperator(op) && (Take(), true); }

  void ExpectOperator(std::string_view op) {
    if (!TakeOperator(op)) FailExpected("'" + std::string(op) + "'");
  }
  void ExpectName(std::string_view name) {
    if (!TakeName(name)) FailExpected("'" + std::string(name) + "'");
  }
  std::string ExpectAnyName() {
    if (!Is(Token::Kind::kName)) FailExpected("a name");
    return Take().text;
  }
  void Expect(Token::Kind kind) {
    if (!Is(kind)) FailExpected(Describe({.kind = kind, .at = {}, .text = "", .number = Value()}));
    Take();
  }

  [[noreturn]] void FailExpected(const std::string& what) const {
    Fail("expected " + what + ", got " + Describe(current()), current().at);
  }
  [[noreturn]] static void Fail(std::string message, Position at) {
    throw Failure{.message = std::move(message), .kind = Failure::Kind::kSyntax, .at = at};
  }

  static std::string Describe(const Token& token) {
    switch (token.kind) {
      case Token::Kind::kData:
        return "text";
      case Token::Kind::kVariableBegin:
        return "'{{'";
      case Token::Kind::kVariableEnd:
        return "'}}'";
      case Token::Kind::kBlockBegin:
        return "'{%'";
      case Token::Kind::kBlockEnd:
        return "'%}'";
      case Token::Kind::kString:
        return "a string";
      case Token::Kind::kEnd:
        return "the end of the template";
      default:
        return "'" + token.text + "'";
    }
  }

 private:
  const std::vector<Token> tokens_;
  size_t at_ = 0;
};

}  // namespace fastdecode::jinja

#endif  // FASTDECODE_ENGINE_TEXT_JINJA_TOKEN_STREAM_H_
