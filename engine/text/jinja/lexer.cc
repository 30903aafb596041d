#include "engine/text/jinja/lexer.h"

#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <charconv>
#include <utility>

#include "engine/text/jinja/operations.h"
#include "engine/text/utf8.h"

namespace fastdecode::jinja {

namespace {

// \r\n and \r become \n, and one at the end goes.
std::string WithPlainLineEnds(std::string_view source) {
  std::string text;
  text.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r') {
      if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
      text += '\n';
    } else {
      text += source[i];
    }
  }
  if (text.ends_with('\n')) text.pop_back();
  return text;
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

bool IsNameStart(char32_t c) {
  return c == '_' || (c < 0x80 ? (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z')
                               : u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_XID_START) != 0);
}

bool IsNamePart(char32_t c) {
  return IsNameStart(c) ||
         (c < 0x80 ? c >= '0' && c <= '9' : u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_XID_CONTINUE) != 0);
}

class Lexer {
 public:
  explicit Lexer(std::string_view source) : source_(WithPlainLineEnds(source)) {}

  std::vector<Token> Run() {
    while (at_ < source_.size()) ReadRoot();
    Add(Token::Kind::kEnd, source_.size(), "");
    return std::move(tokens_);
  }

 private:
  std::string_view Rest() const { return std::string_view(source_).substr(at_); }

  [[noreturn]] void Fail(size_t offset, std::string message) {
    throw Failure{.message = std::move(message), .kind = Failure::Kind::kSyntax, .at = PositionOf(offset)};
  }

  Position PositionOf(size_t offset) {
    if (offset < counted_) {
      counted_ = 0;
      line_ = column_ = 1;
    }
    for (; counted_ < offset; ++counted_) {
      if (source_[counted_] == '\n') {
        ++line_;
        column_ = 1;
      } else if ((static_cast<uint8_t>(source_[counted_]) & 0xc0) != 0x80) {
        ++column_;
      }
    }
    return {line_, column_};
  }

  void Add(Token::Kind kind, size_t offset, std::string text, Value number = Value()) {
    tokens_.push_back({kind, PositionOf(offset), std::move(text), std::move(number)});
  }

  size_t SkipSpace(size_t at) const {
    size_t bytes = 0;
    while (at < source_.size() && IsSpace(CharacterAt(source_, at, &bytes))) at += bytes;
    return at;
  }

  // Where the next tag begins; the end of the source if there is none.
  size_t FindTag() const {
    for (size_t at = source_.find('{', at_); at != std::string::npos; at = source_.find('{', at + 1)) {
      if (at + 1 < source_.size() && std::string_view("{%#").find(source_[at + 1]) != std::string_view::npos) return at;
    }
    return source_.size();
  }

  // Text before a tag at `tag`, whose sign is `sign`: - cuts white space, + keeps it.
  void AddData(size_t begin, size_t tag, char sign, bool strips) {
    std::string_view text = std::string_view(source_).substr(begin, tag - begin);
    if (sign == '-') {
      text = text.substr(0, Stripped(text, nullptr, false, true).end);
    } else if (sign != '+' && strips) {
      const size_t newline = text.rfind('\n');
      const size_t line = newline == std::string_view::npos ? 0 : newline + 1;
      const bool starts_line = newline != std::string_view::npos || line_starting_;
      if (starts_line && Stripped(text.substr(line), nullptr, true, false).begin == text.size() - line) {
        text = text.substr(0, line);
      }
    }
    if (!text.empty()) Add(Token::Kind::kData, begin, std::string(text));
  }

  // If `at` is the end of a tag that `mark` ends, the offset behind it and what it takes along; else 0. `trims`: a
  // line end, too.
  size_t TagEnd(size_t at, std::string_view mark, bool trims, bool plus = true) {
    const std::string_view rest = std::string_view(source_).substr(at);
    if (rest.starts_with('-') && rest.substr(1).starts_with(mark)) return SkipSpace(at + 1 + mark.size());
    if (plus && rest.starts_with('+') && rest.substr(1).starts_with(mark)) return at + 1 + mark.size();
    if (!rest.starts_with(mark)) return 0;
    const size_t end = at + mark.size();
    return trims && end < source_.size() && source_[end] == '\n' ? end + 1 : end;
  }

  void MoveTo(size_t offset) {
    at_ = offset;
    line_starting_ = at_ > 0 && source_[at_ - 1] == '\n';
  }

  void ReadRoot() {
    const size_t tag = FindTag();
    if (tag == source_.size()) {
      Add(Token::Kind::kData, at_, std::string(Rest()));
      at_ = tag;
      return;
    }
    const char kind = source_[tag + 1];
    const char after = tag + 2 < source_.size() ? source_[tag + 2] : 0;
    const bool is_signed = after == '-' || after == '+';
    AddData(at_, tag, is_signed ? after : 0, kind != '{');
    const size_t inside = tag + 2 + (is_signed ? 1 : 0);
    if (kind == '#') return ReadComment(tag, inside);
    if (kind == '%') {
      if (const size_t raw = RawBegin(inside)) return ReadRaw(raw);
    }
    Add(kind == '{' ? Token::Kind::kVariableBegin : Token::Kind::kBlockBegin, tag, "");
    MoveTo(inside);
    ReadTag(kind == '{');
  }

  void ReadComment(size_t tag, size_t inside) {
    for (size_t at = inside; at < source_.size(); ++at) {
      if (const size_t end = TagEnd(at, "#}", true)) return MoveTo(end);
    }
    Fail(tag, "Missing end of comment tag");
  }

  bool HasWord(size_t* at, std::string_view word) const {
    if (!std::string_view(source_).substr(*at).starts_with(word)) return false;
    *at += word.size();
    return true;
  }

  // Behind {% raw %}; 0: it is none.
  size_t RawBegin(size_t inside) {
    size_t at = SkipSpace(inside);
    if (!HasWord(&at, "raw")) return 0;
    return TagEnd(SkipSpace(at), "%}", /*trims=*/false, /*plus=*/false);
  }

  void ReadRaw(size_t begin) {
    MoveTo(begin);
    if (begin == source_.size()) return;  // as Jinja has it
    for (size_t tag = source_.find("{%", begin); tag != std::string::npos; tag = source_.find("{%", tag + 1)) {
      const char after = tag + 2 < source_.size() ? source_[tag + 2] : 0;
      const bool is_signed = after == '-' || after == '+';
      size_t at = SkipSpace(tag + 2 + (is_signed ? 1 : 0));
      if (!HasWord(&at, "endraw")) continue;
      const size_t end = TagEnd(SkipSpace(at), "%}", true);
      if (end == 0) continue;
      AddData(begin, tag, is_signed ? after : 0, true);
      return MoveTo(end);
    }
    Fail(begin, "Missing end of raw directive");
  }

  void ReadTag(bool is_variable) {
    const std::string_view mark = is_variable ? "}}" : "%}";
    std::string open;  // brackets that wait for their end
    while (true) {
      at_ = SkipSpace(at_);
      if (at_ >= source_.size()) return Add(Token::Kind::kEnd, at_, "");
      if (open.empty()) {
        if (const size_t end = TagEnd(at_, mark, !is_variable, !is_variable)) {
          Add(is_variable ? Token::Kind::kVariableEnd : Token::Kind::kBlockEnd, at_, "");
          return MoveTo(end);
        }
      }
      ReadToken(&open);
    }
  }

  void ReadToken(std::string* open) {
    size_t bytes = 0;
    const char32_t c = CharacterAt(source_, at_, &bytes);
    if (IsDigit(source_[at_])) return ReadNumber();
    if (c == '"' || c == '\'') return ReadString();
    if (IsNameStart(c)) {
      size_t end = at_;
      while (end < source_.size() && IsNamePart(CharacterAt(source_, end, &bytes))) end += bytes;
      Add(Token::Kind::kName, at_, source_.substr(at_, end - at_));
      at_ = end;
      return;
    }
    static constexpr std::string_view kTwo[] = {"//", "**", "==", "!=", ">=", "<="};
    std::string op = source_.substr(at_, 2);
    if (std::find(std::begin(kTwo), std::end(kTwo), op) == std::end(kTwo)) op.resize(1);
    if (op.size() == 1 && std::string_view("+-/*%~[](){}><=.:|,;").find(op[0]) == std::string_view::npos) {
      Fail(at_, "unexpected char '" + source_.substr(at_, bytes) + "'");
    }
    Balance(op[0], open);
    Add(Token::Kind::kOperator, at_, op);
    at_ += op.size();
  }

  void Balance(char c, std::string* open) {
    if (c == '(') open->push_back(')');
    if (c == '[') open->push_back(']');
    if (c == '{') open->push_back('}');
    if (c != ')' && c != ']' && c != '}') return;
    if (open->empty()) Fail(at_, std::string("unexpected '") + c + "'");
    if (open->back() != c) Fail(at_, std::string("unexpected '") + c + "', expected '" + open->back() + "'");
    open->pop_back();
  }

  // Digits with single underlines between them.
  size_t DigitsEnd(size_t at, int base = 10) const {
    const auto is_digit = [&](size_t i) {
      if (i >= source_.size()) return false;
      const char c = source_[i];
      if (base == 16 && ((c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F'))) return true;
      return c >= '0' && c < '0' + std::min(base, 10);
    };
    while (is_digit(at) || (at < source_.size() && source_[at] == '_' && is_digit(at + 1))) ++at;
    return at;
  }

  static std::string WithoutUnderlines(std::string text) {
    std::erase(text, '_');
    return text;
  }

  void ReadNumber() {
    const size_t begin = at_;
    size_t end = DigitsEnd(begin);
    bool is_float = false;
    const bool after_dot = begin > 0 && source_[begin - 1] == '.';
    if (!after_dot) {
      size_t at = end;
      if (at + 1 < source_.size() && source_[at] == '.' && IsDigit(source_[at + 1])) {
        at = end = DigitsEnd(at + 1);
        is_float = true;
      }
      if (at < source_.size() && (source_[at] == 'e' || source_[at] == 'E')) {
        size_t exponent = at + 1;
        if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) ++exponent;
        if (exponent < source_.size() && IsDigit(source_[exponent])) {
          end = DigitsEnd(exponent);
          is_float = true;
        }
      }
    }
    if (is_float) {
      const std::string text = WithoutUnderlines(source_.substr(begin, end - begin));
      Add(Token::Kind::kNumber, begin, text, Value::Float(std::strtod(text.c_str(), nullptr)));
      at_ = end;
      return;
    }
    ReadInteger(begin);
  }

  void ReadInteger(size_t begin) {
    int base = 10;
    size_t digits = begin;
    if (source_[begin] == '0' && begin + 1 < source_.size()) {
      const char mark = static_cast<char>(source_[begin + 1] | 0x20);
      base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
      if (base != 10) digits = begin + 2;
    }
    size_t end = DigitsEnd(digits, base);
    if (end == digits && base != 10) {
      base = 10;
      digits = begin;
      end = begin + 1;
    }
    // Zeros before a number are a number of their own.
    if (base == 10 && source_[begin] == '0') {
      end = begin + 1;
      while (end < source_.size() &&
             (source_[end] == '0' || (source_[end] == '_' && source_.substr(end + 1, 1) == "0"))) {
        ++end;
      }
    }
    Integer value = 0;
    for (const char c : WithoutUnderlines(source_.substr(digits, end - digits))) {
      const int digit = IsDigit(c) ? c - '0' : (c | 0x20) - 'a' + 10;
      if (__builtin_mul_overflow(value, Integer{base}, &value) ||
          __builtin_add_overflow(value, Integer{digit}, &value)) {
        Fail(begin, "an integer needs more than 128 bits");
      }
    }
    Add(Token::Kind::kNumber, begin, source_.substr(begin, end - begin), Value::Int(value));
    at_ = end;
  }

  void ReadString() {
    const char quote = source_[at_];
    size_t end = at_ + 1;
    while (end < source_.size() && source_[end] != quote) end += source_[end] == '\\' ? 2 : 1;
    if (end >= source_.size()) Fail(at_, std::string("unexpected char ") + quote + ": the string has no end");
    Add(Token::Kind::kString, at_, Unescaped(at_ + 1, end));
    at_ = end + 1;
  }

  // Python's escapes; unknown ones stay as they are.
  std::string Unescaped(size_t begin, size_t end) {
    std::string text;
    for (size_t at = begin; at < end; ++at) {
      if (source_[at] != '\\') {
        text += source_[at];
        continue;
      }
      const char c = source_[++at];
      static constexpr std::string_view kLetters = "abfnrtv\\'\"", kBytes = "\a\b\f\n\r\t\v\\'\"";
      const size_t place = kLetters.find(c);
      if (place != std::string_view::npos) {
        text += kBytes[place];
      } else if (c == 'x' || c == 'u' || c == 'U') {
        const size_t count = c == 'x' ? 2 : c == 'u' ? 4 : 8;
        AppendCharacter(HexNumber(at + 1, std::min(at + 1 + count, end), count), at, &text);
        at += count;
      } else if (c >= '0' && c <= '7') {
        char32_t octal = 0;
        size_t count = 0;
        for (; count < 3 && at + count < end && source_[at + count] >= '0' && source_[at + count] <= '7'; ++count) {
          octal = octal * 8 + static_cast<char32_t>(source_[at + count] - '0');
        }
        AppendCharacter(octal, at, &text);
        at += count - 1;
      } else if (c == 'N') {
        at = AppendNamed(at, end, &text);
      } else if (static_cast<uint8_t>(c) >= 0x80) {
        at = AppendEscapedAgain(at, &text);
      } else if (c != '\n') {
        text += '\\';
        text += c;
      }
    }
    return text;
  }

  // Jinja writes characters beyond ASCII as escapes before it reads escapes, so that a backslash in front of one leaves
  // the text of that escape.
  size_t AppendEscapedAgain(size_t at, std::string* text) {
    size_t bytes = 0;
    *text += HexEscape(CharacterAt(source_, at, &bytes));
    return at + bytes - 1;
  }

  char32_t HexNumber(size_t begin, size_t end, size_t digits) {
    uint32_t number = 0;
    const std::from_chars_result parsed = std::from_chars(source_.data() + begin, source_.data() + end, number, 16);
    if (end - begin != digits || parsed.ptr != source_.data() + end) {
      Fail(begin, "truncated \\" + std::string(digits == 2 ? "xXX" : digits == 4 ? "uXXXX" : "UXXXXXXXX") + " escape");
    }
    return number;
  }

  void AppendCharacter(char32_t c, size_t at, std::string* text) {
    if (c > 0x10ffff) Fail(at, "illegal Unicode character");
    if (c >= 0xd800 && c < 0xe000) Fail(at, "half of a surrogate pair is no character");
    AppendUtf8(c, text);
  }

  size_t AppendNamed(size_t at, size_t end, std::string* text) {
    const size_t close = source_.find('}', at);
    if (at + 1 >= end || source_[at + 1] != '{' || close >= end) Fail(at, "malformed \\N character escape");
    UErrorCode error = U_ZERO_ERROR;
    const std::string name = source_.substr(at + 2, close - at - 2);
    const UChar32 c = u_charFromName(U_EXTENDED_CHAR_NAME, name.c_str(), &error);
    if (U_FAILURE(error)) Fail(at, "unknown Unicode character name");
    AppendUtf8(static_cast<char32_t>(c), text);
    return close;
  }

  const std::string source_;
  size_t at_ = 0;
  bool line_starting_ = true;  // the last tag took a line end along
  std::vector<Token> tokens_;
  size_t counted_ = 0;  // the offset that is at...
  uint32_t line_ = 1, column_ = 1;
};

}  // namespace

std::vector<Token> Tokenize(std::string_view source) { return Lexer(source).Run(); }

}  // namespace fastdecode::jinja
