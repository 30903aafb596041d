#include "engine/text/utf8.h"

#include <cstdint>

namespace fastdecode {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// What may follow a lead byte: the number of continuation bytes and the range of the first one (Unicode, table 3-7).
struct LeadByte {
  uint8_t continuations;
  uint8_t first_min;
  uint8_t first_max;
};

constexpr LeadByte ClassifyLead(uint8_t byte) {
  if (byte >= 0xC2 && byte <= 0xDF) return {1, 0x80, 0xBF};
  if (byte == 0xE0) return {2, 0xA0, 0xBF};
  if (byte == 0xED) return {2, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {2, 0x80, 0xBF};
  if (byte == 0xF0) return {3, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {3, 0x80, 0xBF};
  if (byte == 0xF4) return {3, 0x80, 0x8F};
  return {0, 0, 0};
}

// Appends all that is decided in `text` and returns how many bytes that was.
size_t AppendDecided(std::string_view text, std::string* out) {
  size_t position = 0;
  size_t copied = 0;  // text[copied, position) is valid and not yet in *out
  while (position < text.size()) {
    if (static_cast<uint8_t>(text[position]) < 0x80) {
      ++position;
      continue;
    }
    const Utf8Step step = NextUtf8(text.substr(position));
    if (step.kind == Utf8Step::Kind::kIncomplete) break;
    if (step.kind == Utf8Step::Kind::kInvalid) {
      out->append(text.substr(copied, position - copied));
      out->append(kReplacement);
      copied = position + step.bytes;
    }
    position += step.bytes;
  }
  out->append(text.substr(copied, position - copied));
  return position;
}

}  // namespace

Utf8Step NextUtf8(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[i]); };
  if (byte(0) < 0x80) return {Utf8Step::Kind::kValid, 1};
  const LeadByte lead = ClassifyLead(byte(0));
  if (lead.continuations == 0) return {Utf8Step::Kind::kInvalid, 1};
  for (size_t i = 1; i <= lead.continuations; ++i) {
    if (i == text.size()) return {Utf8Step::Kind::kIncomplete, i};
    const uint8_t min = i == 1 ? lead.first_min : 0x80;
    const uint8_t max = i == 1 ? lead.first_max : 0xBF;
    if (byte(i) < min || byte(i) > max) return {Utf8Step::Kind::kInvalid, i};
  }
  return {Utf8Step::Kind::kValid, size_t{1} + lead.continuations};
}

char32_t Utf8Character(std::string_view text, size_t bytes) {
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<uint8_t>(text[i])); };
  if (bytes == 1) return byte(0);
  char32_t character = byte(0) & (0xFFu >> (bytes + 1));
  for (size_t i = 1; i < bytes; ++i) character = character << 6 | (byte(i) & 0x3F);
  return character;
}

std::string_view LastUtf8(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
  return text.substr(begin);
}

void AppendUtf8(char32_t c, std::string* out) {
  const auto put = [&](char32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6);
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

void LossyUtf8Decoder::Append(std::string_view bytes, std::string* out) {
  if (held_.empty()) {
    held_ = bytes.substr(AppendDecided(bytes, out));
    return;
  }
  held_.append(bytes);
  held_.erase(0, AppendDecided(held_, out));
}

void LossyUtf8Decoder::Finish(std::string* out) {
  if (!held_.empty()) out->append(kReplacement);
  held_.clear();
}

std::string ReplaceInvalidUtf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  LossyUtf8Decoder decoder;
  decoder.Append(bytes, &out);
  decoder.Finish(&out);
  return out;
}

bool IsValidUtf8(std::string_view bytes) {
  while (!bytes.empty()) {
    const Utf8Step step = NextUtf8(bytes);
    if (step.kind != Utf8Step::Kind::kValid) return false;
    bytes.remove_prefix(step.bytes);
  }
  return true;
}

}  // namespace fastdecode
