#include "engine/text/normalizer.h"

#include <unicode/bytestream.h>
#include <unicode/locid.h>
#include <unicode/normalizer2.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/text/byte_alphabet.h"
#include "engine/text/utf8.h"
#include "numa/check.h"

namespace fastdecode {
namespace {

const icu::Normalizer2& UnicodeForm(NormalizerStep::Kind kind) {
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* form = kind == NormalizerStep::Kind::kNfc    ? icu::Normalizer2::getNFCInstance(error)
                                 : kind == NormalizerStep::Kind::kNfd  ? icu::Normalizer2::getNFDInstance(error)
                                 : kind == NormalizerStep::Kind::kNfkc ? icu::Normalizer2::getNFKCInstance(error)
                                                                       : icu::Normalizer2::getNFKDInstance(error);
  FD_CHECK(U_SUCCESS(error), "ICU has the data of Unicode's forms built in");
  return *form;
}

std::string ToUnicodeForm(NormalizerStep::Kind kind, std::string_view text) {
  UErrorCode error = U_ZERO_ERROR;
  std::string out;
  icu::StringByteSink<std::string> sink(&out, static_cast<int32_t>(text.size()));
  UnicodeForm(kind).normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<int32_t>(text.size())), sink, nullptr,
                                  error);
  FD_CHECK(U_SUCCESS(error), "valid UTF-8 can be normalized");
  return out;
}

// What `keep_or_change(character, bytes, &out)` makes of each character.
std::string MapCharacters(std::string_view text, auto keep_or_change) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const size_t bytes = NextUtf8(text).bytes;
    keep_or_change(Utf8Character(text, bytes), text.substr(0, bytes), &out);
    text.remove_prefix(bytes);
  }
  return out;
}

// Each character for itself, without regard to what stands around it: a sigma never becomes a final one.
std::string ToLowercase(std::string_view text) {
  return MapCharacters(text, [](char32_t character, std::string_view spelling, std::string* out) {
    if (character < 0x80) {
      out->push_back(character >= 'A' && character <= 'Z' ? static_cast<char>(character + 32) : spelling[0]);
      return;
    }
    icu::UnicodeString one(static_cast<UChar32>(character));
    one.toLower(icu::Locale::getRoot());
    one.toUTF8String(*out);
  });
}

std::string WithoutMarks(std::string_view text) {
  return MapCharacters(text, [](char32_t character, std::string_view spelling, std::string* out) {
    if ((U_GET_GC_MASK(static_cast<UChar32>(character)) & U_GC_M_MASK) == 0) out->append(spelling);
  });
}

bool IsSpace(std::string_view character) {
  return u_isUWhiteSpace(static_cast<UChar32>(Utf8Character(character, character.size())));
}

std::string_view WithoutSpaces(std::string_view text, bool left, bool right) {
  while (left && !text.empty()) {
    const size_t bytes = NextUtf8(text).bytes;
    if (!IsSpace(text.substr(0, bytes))) break;
    text.remove_prefix(bytes);
  }
  while (right && !text.empty()) {
    const std::string_view last = LastUtf8(text);
    if (!IsSpace(last)) break;
    text.remove_suffix(last.size());
  }
  return text;
}

constexpr size_t kAddedBytesMax = 1 << 20;

// How many times as long a step may make a text: by Unicode's stability policy and tables for its forms (U+FDFA for
// NFKC and NFKD), by U+0130 and the like for lower case.
size_t StepGrowth(NormalizerStep::Kind kind, const std::optional<TextReplacer>& replacer) {
  switch (kind) {
    case NormalizerStep::Kind::kNfc:
    case NormalizerStep::Kind::kNfd:
    case NormalizerStep::Kind::kLowercase:
      return 3;
    case NormalizerStep::Kind::kNfkc:
    case NormalizerStep::Kind::kNfkd:
      return 11;
    case NormalizerStep::Kind::kReplace:
      return replacer->growth();
    case NormalizerStep::Kind::kByteLevel:
      return 2;
    case NormalizerStep::Kind::kStripAccents:
    case NormalizerStep::Kind::kStrip:
    case NormalizerStep::Kind::kPrepend:
      return 1;
  }
  return 1;
}

}  // namespace

TextReplacer::TextReplacer(std::string literal, std::optional<SplitRegex> regex, std::string content)
    : literal_(std::move(literal)), regex_(std::move(regex)), content_(std::move(content)) {}

absl::StatusOr<TextReplacer> TextReplacer::Create(const TextPattern& pattern, std::string content) {
  if (pattern.is_literal && !pattern.pattern.empty()) return TextReplacer(pattern.pattern, {}, std::move(content));
  absl::StatusOr<SplitRegex> regex = CompilePattern(pattern);
  if (!regex.ok()) return regex.status();
  return TextReplacer("", *std::move(regex), std::move(content));
}

size_t TextReplacer::growth() const {
  // A regular expression may match before each byte and leave that as it is.
  if (regex_.has_value()) return 1 + content_.size();
  return std::max(size_t{1}, (content_.size() + literal_.size() - 1) / literal_.size());
}

std::string TextReplacer::Run(std::string_view text) const {
  std::string out;
  out.reserve(text.size() + text.size() / 2);
  if (!regex_.has_value()) {
    for (size_t found = 0; (found = text.find(literal_)) != std::string_view::npos;) {
      out.append(text.substr(0, found));
      out.append(content_);
      text.remove_prefix(found + literal_.size());
    }
    out.append(text);
    return out;
  }
  std::vector<RegexSpan> spans;
  regex_->Partition(text, &spans);
  for (const RegexSpan& span : spans) {
    out.append(span.matched ? std::string_view(content_) : text.substr(span.begin, span.end - span.begin));
  }
  return out;
}

absl::StatusOr<Normalizer> Normalizer::Create(const std::vector<NormalizerStep>& steps) {
  std::vector<Step> compiled;
  for (const NormalizerStep& step : steps) {
    std::optional<TextReplacer> replacer;
    if (step.kind == NormalizerStep::Kind::kReplace) {
      absl::StatusOr<TextReplacer> created = TextReplacer::Create(step.pattern, step.content);
      if (!created.ok()) return created.status();
      replacer = *std::move(created);
    }
    compiled.push_back({step, std::move(replacer)});
  }
  Normalizer result(std::move(compiled));
  for (const Step& step : result.steps_) {
    const size_t growth = StepGrowth(step.spec.kind, step.replacer);
    result.growth_ *= growth;
    result.added_bytes_ = result.added_bytes_ * growth + step.spec.content.size();
    if (result.growth_ > kGrowthMax || result.added_bytes_ > kAddedBytesMax) {
      return absl::UnimplementedError("normalizer: its steps may make a text thousands of times as long: not built");
    }
  }
  return result;
}

std::string Normalizer::Run(std::string_view text, bool continues) const {
  std::string out(text);
  for (const Step& step : steps_) {
    switch (step.spec.kind) {
      case NormalizerStep::Kind::kNfc:
      case NormalizerStep::Kind::kNfd:
      case NormalizerStep::Kind::kNfkc:
      case NormalizerStep::Kind::kNfkd:
        out = ToUnicodeForm(step.spec.kind, out);
        break;
      case NormalizerStep::Kind::kLowercase:
        out = ToLowercase(out);
        break;
      case NormalizerStep::Kind::kStripAccents:
        out = WithoutMarks(out);
        break;
      case NormalizerStep::Kind::kStrip:
        out = WithoutSpaces(out, step.spec.left, step.spec.right);
        break;
      case NormalizerStep::Kind::kPrepend:
        if (!out.empty() && !continues) out.insert(0, step.spec.content);
        break;
      case NormalizerStep::Kind::kReplace:
        out = step.replacer->Run(out);
        break;
      case NormalizerStep::Kind::kByteLevel: {
        std::string spelled;
        spelled.reserve(out.size() * 2);
        AppendByteLevel(out, &spelled);
        out = std::move(spelled);
        break;
      }
    }
  }
  return out;
}

}  // namespace fastdecode
