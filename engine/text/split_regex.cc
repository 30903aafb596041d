#include "engine/text/split_regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

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
constexpr uint32_t kMatchLimit = 100'000'000;  // backtracking points of one match: about a second

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

}  // namespace fastdecode
