#include "tests/tools/serve/stub_tokenizer.h"

#include <algorithm>

namespace fastdecode::stub {

namespace {

constexpr size_t kWordBytesMax = 64;
constexpr int32_t kFirstWord = kEos + 1;

bool IsWhite(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

}  // namespace

std::string_view FirstWord(std::string_view text) {
  size_t end = text[0] == ' ' ? 1 : 0;
  while (end < text.size() && !IsWhite(text[end])) ++end;
  return text.substr(0, std::max<size_t>(end, 1));
}

void StubTokenizer::Append(std::string_view text, bool special, std::vector<int32_t>* ids) {
  while (special) {
    const size_t bos = text.find("<s>"), eos = text.find("</s>");
    const size_t at = std::min(bos, eos);
    if (at == std::string_view::npos) break;
    AppendPlain(text.substr(0, at), ids);
    ids->push_back(bos < eos ? kBos : kEos);
    text.remove_prefix(at + (bos < eos ? 3 : 4));
  }
  AppendPlain(text, ids);
}

void StubTokenizer::AppendPlain(std::string_view text, std::vector<int32_t>* ids) {
  while (!text.empty()) {
    const std::string_view word = FirstWord(text);
    text.remove_prefix(word.size());
    const int32_t id = word.size() > kWordBytesMax ? -1 : IdOf(word);
    if (id >= 0) {
      ids->push_back(id);
    } else {
      for (const char byte : word) ids->push_back(static_cast<unsigned char>(byte));
    }
  }
}

int32_t StubTokenizer::IdOf(std::string_view bytes) {
  if (bytes.size() == 1) return static_cast<unsigned char>(bytes[0]);
  const std::lock_guard lock(mutex_);
  const auto found = ids_.find(bytes);
  if (found != ids_.end()) return found->second;
  const int32_t id = kFirstWord + static_cast<int32_t>(words_.size());
  if (id >= kVocab) return -1;
  words_.emplace_back(bytes);
  ids_.emplace(bytes, id);
  return id;
}

std::string StubTokenizer::BytesOf(int32_t id) const {
  if (id < 0) return "";
  if (id < 256) return std::string(1, static_cast<char>(id));
  if (id == kBos) return "<s>";
  if (id == kEos) return "</s>";
  const std::lock_guard lock(mutex_);
  const size_t index = static_cast<size_t>(id - kFirstWord);
  return index < words_.size() ? words_[index] : "";
}

std::string StubTokenizer::Decode(std::span<const int32_t> ids, bool with_special) const {
  std::string text;
  for (const int32_t id : ids) {
    if (with_special || !IsSpecial(id)) text += BytesOf(id);
  }
  return text;
}

}  // namespace fastdecode::stub
