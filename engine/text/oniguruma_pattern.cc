#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cctype>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/text/split_regex.h"
#include "engine/text/utf8.h"

namespace fastdecode {
namespace {

constexpr int kClassDepthMax = 16;

bool CompilesInPcre2(const std::string& pattern) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), PCRE2_UTF | PCRE2_UCP,
                                   &error, &offset, nullptr);
  pcre2_code_free(code);
  return code != nullptr;
}

// Reads an Oniguruma (Ruby syntax) pattern from left to right and writes it for PCRE2.
class Translator {
 public:
  explicit Translator(std::string in) : storage_(std::move(in)), in_(storage_) {}

  absl::StatusOr<std::string> Run() {
    while (at_ < in_.size()) {
      const absl::Status status = in_class_ ? TranslateInClass() : TranslateOutside();
      if (!status.ok()) return status;
    }
    return std::move(out_);
  }

 private:
  bool Next(std::string_view text) const { return in_.substr(at_, text.size()) == text; }

  void Copy(size_t bytes) {
    out_.append(in_.substr(at_, bytes));
    at_ += bytes;
  }

  void Replace(size_t bytes, std::string_view with) {
    out_.append(with);
    at_ += bytes;
  }

  absl::Status Refuse(std::string_view what) const {
    return absl::UnimplementedError(absl::StrFormat("%s at byte %u is not supported", std::string(what), at_));
  }

  absl::Status TranslateOutside() {
    if (std::string_view("*+?{").find(in_[at_]) == std::string_view::npos) item_ = out_.size();
    switch (in_[at_]) {
      case '\\':
        return TranslateEscape();
      case '[':
        return TranslateClass();
      case '(':
        groups_.push_back(out_.size());
        return TranslateGroup();
      case ')':
        if (!groups_.empty()) {
          item_ = groups_.back();
          groups_.pop_back();
        }
        Copy(1);
        return absl::OkStatus();
      case '{':
        return TranslateInterval();
      default:
        Copy(NextUtf8(in_.substr(at_)).bytes);
        return absl::OkStatus();
    }
  }

  absl::Status TranslateClass() {
    const size_t end = ClassEnd(in_, at_);
    if (end != std::string_view::npos && HasParts(in_.substr(at_, end + 1 - at_))) {
      const absl::StatusOr<std::string> pattern = ClassByParts(in_.substr(at_, end + 1 - at_), 0);
      if (!pattern.ok()) return pattern.status();
      Replace(end + 1 - at_, *pattern);
      return absl::OkStatus();
    }
    in_class_ = true;
    Copy(Next("[^") ? 2 : 1);
    if (Next("]")) return Refuse("an empty class or a class that starts with ]");
    return absl::OkStatus();
  }

  // Where the ] of the class is that begins at `begin`; npos if it has none.
  static size_t ClassEnd(std::string_view text, size_t begin) {
    int depth = 0;
    for (size_t i = begin; i < text.size(); ++i) {
      if (text[i] == '\\') {
        ++i;
      } else if (text[i] == '[') {
        ++depth;
      } else if (text[i] == ']' && --depth == 0) {
        return i;
      }
    }
    return std::string_view::npos;
  }

  // Whether the class, from its [ to its ], has a negated class or an intersection in it: PCRE2's classes cannot.
  static bool HasParts(std::string_view text) {
    for (size_t i = 1; i + 1 < text.size(); ++i) {
      if (text[i] == '\\') {
        ++i;
      } else if (text.substr(i, 2) == "&&" || text.substr(i, 2) == "[^") {
        return true;
      }
    }
    return false;
  }

  // The class as a pattern of its parts, each of which matches one character: a character of one part of an
  // intersection that is seen to be one of the others, too.
  absl::StatusOr<std::string> ClassByParts(std::string_view text, int depth) const {
    if (depth == kClassDepthMax) return Refuse("a class intersection (&&) so deep in others");
    const bool negated = text.substr(0, 2) == "[^";
    std::vector<std::string> operands(1);
    const size_t inside_end = text.size() - 1;
    size_t flat = negated ? 2 : 1;  // where the characters begin that stand in no class within
    const auto add = [&](std::string_view part) -> absl::Status {
      if (part.empty()) return absl::OkStatus();
      const bool is_class = part[0] == '[';
      if (part[0] == '^' || part.starts_with("[:")) return Refuse("this part of a class");
      const std::string whole = is_class ? std::string(part) : absl::StrCat("[", std::string(part), "]");
      absl::StatusOr<std::string> pattern = HasParts(whole) ? ClassByParts(whole, depth + 1) : Translator(whole).Run();
      if (!pattern.ok()) return pattern.status();
      absl::StrAppend(&operands.back(), operands.back().empty() ? "" : "|", *pattern);
      return absl::OkStatus();
    };
    for (size_t i = flat; i < inside_end; ++i) {
      absl::Status bad;
      if (text[i] == '\\') {
        ++i;
      } else if (text[i] == '[') {
        bad = add(text.substr(flat, i - flat));
        const size_t end = ClassEnd(text, i);
        if (bad.ok()) bad = add(text.substr(i, end + 1 - i));
        i = end;
        flat = end + 1;
      } else if (text.substr(i, 2) == "&&") {
        bad = add(text.substr(flat, i - flat));
        operands.emplace_back();
        flat = ++i + 1;
      }
      if (!bad.ok()) return bad;
    }
    if (absl::Status bad = add(text.substr(flat, inside_end - flat)); !bad.ok()) return bad;
    std::string pattern;
    for (size_t i = operands.size(); i-- > 0;) {
      if (operands[i].empty()) return Refuse("a class intersection (&&) with nothing");
      absl::StrAppend(&pattern, i == 0 ? "(?:" : "(?=", operands[i], ")");
    }
    return negated ? absl::StrCat("(?:(?!", pattern, ")(?s:.))") : absl::StrCat("(?:", pattern, ")");
  }

  absl::Status TranslateInClass() {
    if (in_[at_] == '\\') return TranslateEscape();
    if (Next("[^") || Next("[:") || Next("[]")) return Refuse("a negated, POSIX or empty class in a class");
    if (in_[at_] == '[') {  // a class in a class adds its characters
      ++nested_classes_;
      Replace(1, "");
    } else if (in_[at_] == ']' && nested_classes_ > 0) {
      --nested_classes_;
      Replace(1, "");
    } else {
      if (in_[at_] == ']') in_class_ = false;
      Copy(1);
    }
    return absl::OkStatus();
  }

  absl::Status TranslateGroup() {
    if (Next("(*")) return Refuse("a verb (*...)");
    if (!Next("(?")) {
      Copy(1);
      return absl::OkStatus();
    }
    for (const std::string_view start : {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!", "(?i:", "(?-i:"}) {
      if (Next(start)) {
        Copy(start.size());
        return absl::OkStatus();
      }
    }
    if (at_ == 0 && Next("(?i)")) {
      Copy(4);
      return absl::OkStatus();
    }
    return Refuse("this kind of group (?...)");
  }

  // {n}, {n,} and {n,m} mean the same in both. {,m} is {0,m}. A + after any of them, and a ? after {n}, does not make
  // them possessive or lazy, but repeats what they repeat.
  absl::Status TranslateInterval() {
    size_t end = at_ + 1;
    while (end < in_.size() && std::isdigit(static_cast<unsigned char>(in_[end]))) ++end;
    const bool has_min = end > at_ + 1;
    const bool has_comma = end < in_.size() && in_[end] == ',';
    if (has_comma) ++end;
    const size_t max = end;
    while (has_comma && end < in_.size() && std::isdigit(static_cast<unsigned char>(in_[end]))) ++end;
    if (end >= in_.size() || in_[end] != '}') return Refuse("a { that opens no interval; write \\{");
    if (!has_min && end == max) return Refuse("an interval without numbers");
    const char after = end + 1 < in_.size() ? in_[end + 1] : '\0';
    const bool repeats = after == '+' || (after == '?' && !has_comma);
    if (repeats && item_ == out_.size()) return Refuse("an interval of nothing");
    if (repeats) out_.insert(item_, "(?:");
    if (!has_min) Replace(1, "{0");
    Copy(end + 1 - at_);
    if (repeats) out_.append(")");
    return absl::OkStatus();
  }

  absl::Status TranslateEscape() {
    if (at_ + 1 == in_.size()) return absl::InvalidArgumentError("the pattern ends in a backslash");
    const unsigned char c = static_cast<unsigned char>(in_[at_ + 1]);
    if (c >= 0x80 || !std::isalnum(c)) {
      Copy(2);  // the rest of a longer character follows as itself
      return absl::OkStatus();
    }
    constexpr char kWord[] = "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}";
    // Outside of a class, Oniguruma's \w has Latin-1's superscript digits and fractions besides.
    constexpr char kMoreWord[] = "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}";
    switch (c) {
      case 'd':
      case 'D':
      case 'n':
      case 'r':
      case 't':
      case 'f':
      case 'a':
      case 'e':
        Copy(2);
        return absl::OkStatus();
      case 's':  // PCRE2's own \s has U+180E besides
        Replace(2, "\\p{White_Space}");
        return absl::OkStatus();
      case 'S':
        Replace(2, "\\P{White_Space}");
        return absl::OkStatus();
      case 'w':
        Replace(2, in_class_ ? kWord : absl::StrCat("[", kWord, kMoreWord, "]"));
        return absl::OkStatus();
      case 'W':
        if (in_class_) return Refuse("\\W in a class");
        Replace(2, absl::StrCat("[^", kWord, kMoreWord, "]"));
        return absl::OkStatus();
      case 'b':
      case 'B': {
        if (in_class_) return Refuse(absl::StrFormat("\\%c in a class", c));
        const std::string word = absl::StrCat("[", kWord, kMoreWord, "]");
        Replace(2, c == 'b' ? absl::StrFormat("(?:(?<=%s)(?!%s)|(?<!%s)(?=%s))", word, word, word, word)
                            : absl::StrFormat("(?:(?<=%s)(?=%s)|(?<!%s)(?!%s))", word, word, word, word));
        return absl::OkStatus();
      }
      case 'v':
        Replace(2, "\\x0B");
        return absl::OkStatus();
      case 'p':
      case 'P':
        return TranslateProperty();
      case 'x':
      case 'u':
        return TranslateCodePoint();
      case 'A':
      case 'z':
      case 'Z':
        if (in_class_) return Refuse(absl::StrFormat("\\%c in a class", c));
        Copy(2);
        return absl::OkStatus();
      default:
        return Refuse(absl::StrFormat("the escape \\%c", c));
    }
  }

  // \p{Han} is the script in Oniguruma, but the script extensions in PCRE2.
  absl::Status TranslateProperty() {
    const size_t close = in_.find('}', at_);
    if (at_ + 2 >= in_.size() || in_[at_ + 2] != '{' || close == std::string_view::npos) {
      return Refuse("a \\p without {NAME}");
    }
    std::string name(in_.substr(at_ + 3, close - at_ - 3));
    const bool inverted = !name.empty() && name[0] == '^';
    if (inverted) name.erase(0, 1);
    const bool is_script = name.size() > 2 && CompilesInPcre2(absl::StrCat("\\p{sc:", name, "}"));
    const bool outer_inverted = in_[at_ + 1] == 'P';
    Replace(close + 1 - at_,
            absl::StrCat(inverted != outer_inverted ? "\\P{" : "\\p{", is_script ? "sc:" : "", name, "}"));
    return absl::OkStatus();
  }

  // \xHH, \x{H...} and \uHHHH. Oniguruma's \xHH is a byte, PCRE2's a character: the same below 0x80 only.
  absl::Status TranslateCodePoint() {
    const bool braces = in_[at_ + 1] == 'x' && at_ + 2 < in_.size() && in_[at_ + 2] == '{';
    const size_t digits_max = braces ? 8 : in_[at_ + 1] == 'u' ? 4 : 2;
    size_t end = at_ + 2 + braces;
    uint32_t value = 0;
    size_t digits = 0;
    for (; end < in_.size() && digits < digits_max && std::isxdigit(static_cast<unsigned char>(in_[end]));
         ++end, ++digits) {
      const int c = std::tolower(static_cast<unsigned char>(in_[end]));
      value = value << 4 | static_cast<uint32_t>(c <= '9' ? c - '0' : c - 'a' + 10);
    }
    const bool closed = !braces || (end < in_.size() && in_[end] == '}');
    if (!closed || digits == 0 || (!braces && digits != digits_max)) {
      return Refuse("this code point escape");
    }
    if (!braces && in_[at_ + 1] == 'x' && value >= 0x80) return Refuse("\\xHH above 7F");
    Replace(end + braces - at_, absl::StrFormat("\\x{%X}", value));
    return absl::OkStatus();
  }

  const std::string storage_;
  const std::string_view in_;
  size_t at_ = 0;
  bool in_class_ = false;
  int nested_classes_ = 0;  // that are open in the class
  std::string out_;
  size_t item_ = 0;             // where in out_ that begins which a quantifier would repeat
  std::vector<size_t> groups_;  // and where the groups do that are open
};

}  // namespace

absl::StatusOr<std::string> TranslateOnigurumaPattern(std::string_view pattern) {
  return Translator(std::string(pattern)).Run();
}

}  // namespace fastdecode
