#include "tools/serve/openai/completion_writer.h"

#include <algorithm>
#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "tools/serve/openai/json_text.h"
#include "tools/serve/openai/utf8.h"

namespace fastdecode::serve {
namespace {

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

void CompletionWriter::AppendChoice(Piece* piece, bool in_chunk, std::string* out) const {
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
  out->push_back(',');
  AppendEnd(*piece, out);
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
    AppendJsonFloat(run.Logprob(i), out);
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
  const float logprob = run.Logprob(index);
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
