#include "tools/serve/openai/chat_writer.h"

#include <utility>

#include "tools/serve/openai/json_text.h"

namespace fastdecode::serve {

ChatWriter::ChatWriter(Head head, TokenBytes token_bytes, bool include_reasoning)
    : AnswerWriter(std::move(head), std::move(token_bytes), "chat.completion", "chat.completion.chunk"),
      include_reasoning_(include_reasoning) {}

bool ChatWriter::SaysSomething(const Piece& piece) const {
  return piece.first || !piece.text.empty() || (include_reasoning_ && !piece.reasoning.empty()) ||
         !piece.run.tokens.empty() || piece.finish_reason != nullptr;
}

void ChatWriter::AppendChoice(Piece* piece, bool in_chunk, std::string* out) const {
  out->append(R"({"index":)");
  AppendJsonInteger(piece->index, out);
  if (in_chunk) {
    out->append(R"(,"delta":{)");
    AppendDelta(*piece, out);
  } else {
    out->append(R"(,"message":{)");
    AppendMessage(*piece, out);
  }
  out->append(R"(},"logprobs":)");
  if (head_.logprobs && !(in_chunk && piece->run.tokens.empty())) {
    AppendLogprobs(piece->run, out);
  } else {
    out->append("null");
  }
  out->push_back(',');
  AppendEnd(*piece, out);
  if (head_.return_token_ids) {
    out->append(R"(,"token_ids":)");
    AppendIds(piece->run.tokens, out);
  }
  out->push_back('}');
}

void ChatWriter::AppendBesideChoices(const Piece& first, std::string* out) const {
  if (!head_.return_token_ids) return;
  out->append(R"(,"prompt_token_ids":)");
  if (first.prompt_ids == nullptr) {
    out->append("null");
  } else {
    AppendIds(*first.prompt_ids, out);
  }
}

void ChatWriter::AppendDelta(const Piece& piece, std::string* out) const {
  const bool reasons = include_reasoning_ && !piece.reasoning.empty();
  const char* separator = "";
  if (piece.first) {
    out->append(R"("role":"assistant")");
    separator = ",";
  }
  if (!piece.text.empty() || (piece.first && !reasons)) {
    out->append(separator);
    out->append(R"("content":)");
    AppendJsonString(piece.text, out);
    separator = ",";
  }
  if (!reasons) return;
  out->append(separator);
  AppendReasoning(piece, out);
}

void ChatWriter::AppendMessage(const Piece& piece, std::string* out) const {
  out->append(R"("role":"assistant","content":)");
  if (piece.text.empty() && !piece.reasoning.empty()) {
    out->append("null");
  } else {
    AppendJsonString(piece.text, out);
  }
  out->append(R"(,"refusal":null)");
  if (!include_reasoning_ || piece.reasoning.empty()) return;
  out->push_back(',');
  AppendReasoning(piece, out);
}

void ChatWriter::AppendReasoning(const Piece& piece, std::string* out) const {
  out->append(R"("reasoning":)");
  AppendJsonString(piece.reasoning, out);
  out->append(R"(,"reasoning_content":)");
  AppendJsonString(piece.reasoning, out);
}

void ChatWriter::AppendLogprobs(const TokenRun& run, std::string* out) const {
  out->append(R"({"content":[)");
  for (size_t i = 0; i < run.tokens.size(); ++i) {
    if (i > 0) out->push_back(',');
    AppendToken(run.tokens[i], run.Logprob(i), out);
    out->append(R"(,"top_logprobs":[)");
    const char* separator = "";
    for (size_t k = i * run.top_count; k < (i + 1) * run.top_count; ++k) {
      if (run.top[k].token < 0) continue;
      out->append(separator);
      AppendToken(run.top[k].token, run.top[k].logprob, out);
      out->push_back('}');
      separator = ",";
    }
    out->append("]}");
  }
  out->append(R"(],"refusal":null})");
}

// The object is left open.
void ChatWriter::AppendToken(int32_t token, float logprob, std::string* out) const {
  std::string bytes = token_bytes_(token);
  std::string list;
  for (const char byte : bytes) {
    if (!list.empty()) list.push_back(',');
    AppendJsonInteger(static_cast<uint8_t>(byte), &list);
  }
  out->append(R"({"token":)");
  AppendJsonString(TokenName(std::move(bytes)), out);
  out->append(R"(,"logprob":)");
  AppendJsonFloat(logprob, out);
  out->append(R"(,"bytes":[)");
  out->append(list);
  out->push_back(']');
}

}  // namespace fastdecode::serve
