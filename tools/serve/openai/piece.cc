#include "tools/serve/openai/piece.h"

#include <algorithm>
#include <limits>

#include "tools/serve/openai/utf8.h"

namespace fastdecode::serve {
namespace {

constexpr float kUnknown = std::numeric_limits<float>::quiet_NaN();

}  // namespace

void TokenRun::Append(const fd_event& event) {
  const size_t before = tokens.size();
  if (before == 0) top_count = event.top_logprobs == nullptr ? 0 : event.top_logprob_count;
  tokens.insert(tokens.end(), event.tokens, event.tokens + event.token_count);
  if (event.logprobs != nullptr) {
    logprobs.resize(before, kUnknown);
    logprobs.insert(logprobs.end(), event.logprobs, event.logprobs + event.token_count);
  } else if (!logprobs.empty()) {
    logprobs.resize(tokens.size(), kUnknown);
  }
  top.resize(tokens.size() * top_count, {-1, kUnknown});
  if (event.top_logprobs == nullptr) return;
  const size_t count = std::min(top_count, event.top_logprob_count);
  for (size_t i = 0; i < event.token_count; ++i) {
    std::copy_n(event.top_logprobs + i * event.top_logprob_count, count, top.data() + (before + i) * top_count);
  }
}

void TokenRun::Clear() {
  tokens.clear();
  logprobs.clear();
  top.clear();
  top_count = 0;
}

float TokenRun::Logprob(size_t index) const { return index < logprobs.size() ? logprobs[index] : kUnknown; }

void Piece::StartNext() {
  first = false;
  text.clear();
  reasoning.clear();
  run.Clear();
  echoed_tokens = 0;
  prompt_ids = nullptr;
}

std::string TokenName(std::string bytes) {
  if (IsUtf8(bytes)) return bytes;
  constexpr char kDigits[] = "0123456789abcdef";
  // The escape begins with a backslash, which is escaped itself, so that no two have the same name.
  std::string name = "bytes:";
  for (const char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    if (byte >= 0x20 && byte < 0x7f && c != '\\') {
      name.push_back(c);
    } else {
      name.append({'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]});
    }
  }
  return name;
}

}  // namespace fastdecode::serve
