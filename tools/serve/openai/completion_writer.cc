#include "tools/serve/openai/completion_writer.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <string_view>
#include <utility>

#include "tools/serve/openai/json_text.h"
#include "tools/serve/openai/utf8.h"

namespace fastdecode::serve {
namespace {

constexpr float kUnknown = std::numeric_limits<float>::quiet_NaN();
constexpr std::string_view kEventBegin = "data: ";
constexpr std::string_view kEventEnd = "\n\n";

void AppendUsage(const Usage& usage, std::string* out) {
  out->append(R"({"prompt_tokens":)");
  AppendJsonInteger(static_cast<int64_t>(usage.prompt_tokens), out);
  out->append(R"(,"completion_tokens":)");
  AppendJsonInteger(static_cast<int64_t>(usage.completion_tokens), out);
  out->append(R"(,"total_tokens":)");
  AppendJsonInteger(static_cast<int64_t>(usage.prompt_tokens + usage.completion_tokens), out);
  out->push_back('}');
}

void AppendIds(std::span<const int32_t> ids, std::string* out) {
  out->push_back('[');
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) out->push_back(',');
    AppendJsonInteger(ids[i], out);
  }
  out->push_back(']');
}

void AppendStopReason(const Piece& piece, std::string* out) {
  if (piece.deadline) {
    out->append(R"("deadline")");
  } else if (!piece.stop_string.empty()) {
    AppendJsonString(piece.stop_string, out);
  } else if (piece.stop_token >= 0) {
    AppendJsonInteger(piece.stop_token, out);
  } else {
    out->append("null");
  }
}

float LogprobOf(const TokenRun& run, size_t index) {
  return index < run.logprobs.size() ? run.logprobs[index] : kUnknown;
}

// Writes the members of one object, of equal names only the first.
class NamedLogprobs {
 public:
  explicit NamedLogprobs(std::string* out) : out_(out) { out_->push_back('{'); }
  void Add(std::string name, float logprob) {
    if (std::find(names_.begin(), names_.end(), name) != names_.end()) return;
    if (!names_.empty()) out_->push_back(',');
    AppendJsonString(name, out_);
    out_->push_back(':');
    AppendJsonFloat(logprob, out_);
    names_.push_back(std::move(name));
  }
  void End() { out_->push_back('}'); }

 private:
  std::string* const out_;
  std::vector<std::string> names_;
};

}  // namespace

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

CompletionWriter::CompletionWriter(Head head, TokenBytes token_bytes)
    : head_(std::move(head)), token_bytes_(std::move(token_bytes)) {
  prefix_ = R"({"id":)";
  AppendJsonString(head_.id, &prefix_);
  prefix_ += R"(,"object":"text_completion","created":)";
  AppendJsonInteger(static_cast<int64_t>(head_.created), &prefix_);
  prefix_ += R"(,"model":)";
  AppendJsonString(head_.model, &prefix_);
  prefix_ += R"(,"choices":[)";
}

void CompletionWriter::AppendChunk(Piece* piece, const Usage& so_far, std::string* out) const {
  out->append(kEventBegin);
  out->append(prefix_);
  AppendChoice(piece, out);
  out->push_back(']');
  if (head_.continuous_usage) {
    out->append(R"(,"usage":)");
    AppendUsage(so_far, out);
  } else if (head_.usage_in_chunks) {
    out->append(R"(,"usage":null)");
  }
  out->push_back('}');
  out->append(kEventEnd);
}

void CompletionWriter::AppendUsageChunk(const Usage& usage, std::string* out) const {
  out->append(kEventBegin);
  out->append(prefix_);
  out->append(R"(],"usage":)");
  AppendUsage(usage, out);
  out->push_back('}');
  out->append(kEventEnd);
}

void CompletionWriter::AppendDone(std::string* out) {
  out->append(kEventBegin);
  out->append("[DONE]");
  out->append(kEventEnd);
}

void CompletionWriter::AppendError(const ApiError& error, std::string* out) {
  out->append(kEventBegin);
  out->append(ErrorJson(error));
  out->append(kEventEnd);
}

std::string CompletionWriter::Body(std::span<Piece> pieces, const Usage& usage) const {
  std::string body = prefix_;
  for (Piece& piece : pieces) {
    if (&piece != pieces.data()) body.push_back(',');
    AppendChoice(&piece, &body);
  }
  body.append(R"(],"usage":)");
  AppendUsage(usage, &body);
  body.push_back('}');
  return body;
}

void CompletionWriter::AppendChoice(Piece* piece, std::string* out) const {
  out->append(R"({"index":)");
  AppendJsonInteger(piece->index, out);
  out->append(R"(,"text":)");
  AppendJsonString(piece->text, out);
  out->append(R"(,"logprobs":)");
  if (head_.logprobs) {
    AppendLogprobs(piece, out);
  } else {
    out->append("null");
  }
  out->append(R"(,"finish_reason":)");
  if (piece->finish_reason == nullptr) {
    out->append("null");
  } else {
    AppendJsonString(piece->finish_reason, out);
  }
  out->append(R"(,"stop_reason":)");
  AppendStopReason(*piece, out);
  if (head_.return_token_ids) {
    out->append(R"(,"prompt_token_ids":)");
    if (piece->prompt_ids == nullptr) {
      out->append("null");
    } else {
      AppendIds(*piece->prompt_ids, out);
    }
    out->append(R"(,"token_ids":)");
    const std::span<const int32_t> ids = piece->run.tokens;
    AppendIds(ids.subspan(std::min(piece->echoed_tokens, ids.size())), out);
  }
  out->push_back('}');
}

// The four lists are written one after another, so the tokens' bytes are looked up once and kept.
void CompletionWriter::AppendLogprobs(Piece* piece, std::string* out) const {
  const TokenRun& run = piece->run;
  const size_t count = run.tokens.size();
  std::vector<std::string> names;
  names.reserve(count);
  std::string offsets;
  for (size_t i = 0; i < count; ++i) {
    std::string bytes = token_bytes_(run.tokens[i]);
    if (i > 0) offsets.push_back(',');
    AppendJsonInteger(static_cast<int64_t>(piece->text_offset), &offsets);
    piece->text_offset += CountCharacters(bytes);
    names.push_back(TokenName(std::move(bytes)));
  }
  out->append(R"({"tokens":[)");
  for (size_t i = 0; i < count; ++i) {
    if (i > 0) out->push_back(',');
    AppendJsonString(names[i], out);
  }
  out->append(R"(],"text_offset":[)");
  out->append(offsets);
  out->append(R"(],"token_logprobs":[)");
  for (size_t i = 0; i < count; ++i) {
    if (i > 0) out->push_back(',');
    AppendJsonFloat(LogprobOf(run, i), out);
  }
  out->append(R"(],"top_logprobs":[)");
  for (size_t i = 0; i < count; ++i) {
    if (i > 0) out->push_back(',');
    AppendTop(run, i, names[i], out);
  }
  out->append("]}");
}

// The most likely tokens, and the chosen one if it is none of them. Where two have the same text, the more likely one
// counts.
void CompletionWriter::AppendTop(const TokenRun& run, size_t index, const std::string& chosen, std::string* out) const {
  const float logprob = LogprobOf(run, index);
  if (std::isnan(logprob)) return static_cast<void>(out->append("null"));
  NamedLogprobs named(out);
  for (size_t i = index * run.top_count; i < (index + 1) * run.top_count; ++i) {
    const fd_token_logprob& one = run.top[i];
    if (one.token < 0) continue;
    named.Add(one.token == run.tokens[index] ? chosen : TokenName(token_bytes_(one.token)), one.logprob);
  }
  named.Add(chosen, logprob);
  named.End();
}

}  // namespace fastdecode::serve
