#include "engine/text/split_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <cctype>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/model/json_fields.h"
#include "engine/text/utf8.h"
#include "numa/check.h"

namespace fastdecode {
namespace {

constexpr size_t kPatternBytesMax = 64 * 1024;
constexpr int kIntersectionsMax = 16;
constexpr uint32_t kMatchLimit = 100'000'000;  // backtracking points of one match: about a second

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
  explicit Translator(std::string in, int depth = 0) : storage_(std::move(in)), in_(storage_), depth_(depth) {}

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
    switch (in_[at_]) {
      case '\\':
        return TranslateEscape();
      case '[':
        if (const std::vector<std::string_view> operands = IntersectedClasses(); operands.size() > 1) {
          return TranslateIntersection(operands);
        }
        in_class_ = true;
        Copy(Next("[^") ? 2 : 1);
        if (Next("]")) return Refuse("an empty class or a class that starts with ]");
        return absl::OkStatus();
      case '(':
        return TranslateGroup();
      case '{':
        return TranslateInterval();
      default:
        Copy(1);
        return absl::OkStatus();
    }
  }

  // The end of the class that begins at `begin`, before its ]; npos if it has none.
  size_t ClassEnd(size_t begin) const {
    int depth = 0;
    for (size_t i = begin; i < in_.size(); ++i) {
      if (in_[i] == '\\') {
        ++i;
      } else if (in_[i] == '[') {
        ++depth;
      } else if (in_[i] == ']' && --depth == 0) {
        return i;
      }
    }
    return std::string_view::npos;
  }

  // What the class here is the intersection of: [a-z&&[^x]] of "a-z" and "[^x]".
  std::vector<std::string_view> IntersectedClasses() const {
    std::vector<std::string_view> operands;
    const size_t end = ClassEnd(at_);
    if (end == std::string_view::npos) return operands;
    size_t begin = at_ + 1;
    for (size_t i = begin; i < end; ++i) {
      if (in_[i] == '\\') {
        ++i;
      } else if (in_[i] == '[') {
        i = ClassEnd(i);
      } else if (in_.substr(i, 2) == "&&") {
        operands.push_back(in_.substr(begin, i - begin));
        begin = ++i + 1;
      }
    }
    operands.push_back(in_.substr(begin, end - begin));
    return operands;
  }

  // PCRE2 has no intersections: a character of one class that is seen to be one of the others, too.
  absl::Status TranslateIntersection(const std::vector<std::string_view>& operands) {
    if (Next("[^")) return Refuse("a class intersection (&&) in a class that is negated");
    if (depth_ == kIntersectionsMax) return Refuse("a class intersection (&&) so deep in others");
    std::string classes;
    for (size_t i = operands.size(); i-- > 0;) {
      const std::string_view operand = operands[i];
      if (operand.empty()) return Refuse("a class intersection (&&) with nothing");
      const bool is_class = operand[0] == '[';
      absl::StatusOr<std::string> translated =
          Translator(is_class ? std::string(operand) : absl::StrCat("[", std::string(operand), "]"), depth_ + 1).Run();
      if (!translated.ok()) return translated.status();
      absl::StrAppend(&classes, i == 0 ? "" : "(?=", *translated, i == 0 ? "" : ")");
    }
    Replace(ClassEnd(at_) + 1 - at_, absl::StrCat("(?:", classes, ")"));
    return absl::OkStatus();
  }

  absl::Status TranslateInClass() {
    if (in_[at_] == '\\') return TranslateEscape();
    if (Next("[^") || Next("[:") || Next("[]")) return Refuse("a negated, POSIX or empty class in a class");
    if (Next("&&")) return Refuse("a class intersection (&&) in a class");
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

  // {n}, {n,} and {n,m} mean the same in both; {,m}, {n}? and {n,m}+ do not.
  absl::Status TranslateInterval() {
    size_t end = at_ + 1;
    while (end < in_.size() && std::isdigit(static_cast<unsigned char>(in_[end]))) ++end;
    const bool has_min = end > at_ + 1;
    const bool has_comma = end < in_.size() && in_[end] == ',';
    if (has_comma) ++end;
    while (has_comma && end < in_.size() && std::isdigit(static_cast<unsigned char>(in_[end]))) ++end;
    if (end >= in_.size() || in_[end] != '}') return Refuse("a { that opens no interval; write \\{");
    if (!has_min) return Refuse("an interval without a minimum");
    const char after = end + 1 < in_.size() ? in_[end + 1] : '\0';
    if (after == '+' || (after == '?' && !has_comma)) return Refuse("this suffix of an interval");
    Copy(end + 1 - at_);
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
  const int depth_;  // of class intersections around this one
  size_t at_ = 0;
  bool in_class_ = false;
  int nested_classes_ = 0;  // that are open in the class
  std::string out_;
};

struct FreeMatchData {
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
struct FreeCompileContext {
  void operator()(pcre2_compile_context* context) const { pcre2_compile_context_free(context); }
};

}  // namespace

struct SplitRegex::Code {
  ~Code() {
    pcre2_match_context_free(context);
    pcre2_code_free(compiled);
  }
  // One match at or after `start`; false if there is none or a limit was hit.
  bool Find(std::string_view text, size_t start, pcre2_match_data* data) const {
    const auto subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    int rc = pcre2_match(compiled, subject, text.size(), start, PCRE2_NO_UTF_CHECK, data, context);
    if (rc == PCRE2_ERROR_JIT_STACKLIMIT) {  // the interpreter keeps its stack on the heap
      rc = pcre2_match(compiled, subject, text.size(), start, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, context);
    }
    return rc >= 0;  // 0: the pattern has groups, for which `data` has no room
  }

  pcre2_code* compiled = nullptr;
  pcre2_match_context* context = nullptr;
};

SplitRegex::SplitRegex(std::unique_ptr<Code> code) : code_(std::move(code)) {}
SplitRegex::SplitRegex(SplitRegex&&) noexcept = default;
SplitRegex& SplitRegex::operator=(SplitRegex&&) noexcept = default;
SplitRegex::~SplitRegex() = default;

absl::StatusOr<SplitRegex> SplitRegex::CompilePcre2(const std::string& pattern, unsigned options) {
  std::unique_ptr<pcre2_compile_context, FreeCompileContext> context(pcre2_compile_context_create(nullptr));
  FD_CHECK(context != nullptr, "out of memory");
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  auto code = std::make_unique<Code>();
  code->compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options, &error, &offset,
                                 context.get());
  if (code->compiled == nullptr) {
    char message[256];
    pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(message), sizeof(message));
    return absl::UnimplementedError(absl::StrFormat("%s (byte %u of %s)", message, offset, ShowText(pattern, 300)));
  }
  pcre2_jit_compile(code->compiled, PCRE2_JIT_COMPLETE);  // a machine without JIT interprets
  code->context = pcre2_match_context_create(nullptr);
  FD_CHECK(code->context != nullptr, "out of memory");
  pcre2_set_match_limit(code->context, kMatchLimit);
  return SplitRegex(std::move(code));
}

absl::StatusOr<SplitRegex> SplitRegex::Compile(std::string_view pattern) {
  if (pattern.size() > kPatternBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("the pattern has ", pattern.size(), " bytes, more than 65536"));
  }
  absl::StatusOr<std::string> translated = TranslateOnigurumaPattern(pattern);
  if (!translated.ok()) return translated.status();
  // Ruby's ^ and $ always mean lines.
  return CompilePcre2(*translated, PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C);
}

absl::StatusOr<SplitRegex> SplitRegex::CompileLiteral(std::string_view text) {
  if (text.empty() || text.size() > kPatternBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("the string has ", text.size(), " bytes, not 1 to 65536"));
  }
  return CompilePcre2(std::string(text), PCRE2_UTF | PCRE2_LITERAL);
}

void SplitRegex::Partition(std::string_view text, std::vector<RegexSpan>* spans) const {
  spans->clear();
  std::unique_ptr<pcre2_match_data, FreeMatchData> data(pcre2_match_data_create(1, nullptr));
  FD_CHECK(data != nullptr, "out of memory");
  size_t covered = 0;  // end of the last span
  size_t search = 0;
  bool has_match = false;  // if so, the last one ended at `covered`
  while (search <= text.size() && code_->Find(text, search, data.get())) {
    const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(data.get());
    const size_t begin = offsets[0];
    const size_t end = offsets[1];
    if (begin == end && has_match && begin == covered) {  // nothing new right after a match: look one character on
      if (search == text.size()) break;
      search += NextUtf8(text.substr(search)).bytes;
      continue;
    }
    if (covered < begin) spans->push_back({covered, begin, false});
    spans->push_back({begin, end, true});
    covered = search = end;
    has_match = true;
  }
  if (covered < text.size()) spans->push_back({covered, text.size(), false});
}

absl::StatusOr<SplitRegex> CompilePattern(const TextPattern& pattern) {
  absl::StatusOr<SplitRegex> regex =
      pattern.is_literal ? SplitRegex::CompileLiteral(pattern.pattern) : SplitRegex::Compile(pattern.pattern);
  if (regex.ok()) return regex;
  return absl::Status(regex.status().code(), absl::StrCat(pattern.field, ": ", regex.status().message()));
}

absl::StatusOr<std::string> TranslateOnigurumaPattern(std::string_view pattern) {
  return Translator(std::string(pattern)).Run();
}

}  // namespace fastdecode
