#include "tools/serve/openai/answer_writer.h"

#include <string_view>
#include <utility>

#include "tools/serve/openai/json_text.h"

namespace fastdecode::serve {
namespace {

constexpr std::string_view kEventBegin = "data: ";
constexpr std::string_view kEventEnd = "\n\n";

void AppendUsage(const Usage& usage, std::string* out) {
  out->append(R"({"prompt_tokens":)");
  AppendJsonInteger(static_cast<int64_t>(usage.prompt_tokens), out);
  out->append(R"(,"completion_tokens":)");
  AppendJsonInteger(static_cast<int64_t>(usage.completion_tokens), out);
  out->append(R"(,"total_tokens":)");
  AppendJsonInteger(static_cast<int64_t>(usage.prompt_tokens + usage.completion_tokens), out);
  if (usage.cached_tokens) {
    out->append(R"(,"prompt_tokens_details":{"cached_tokens":)");
    AppendJsonInteger(static_cast<int64_t>(*usage.cached_tokens), out);
    out->push_back('}');
  }
  if (usage.reasoning_tokens) {
    out->append(R"(,"completion_tokens_details":{"reasoning_tokens":)");
    AppendJsonInteger(static_cast<int64_t>(*usage.reasoning_tokens), out);
    out->push_back('}');
  }
  out->push_back('}');
}

}  // namespace

AnswerWriter::AnswerWriter(Head head, TokenBytes token_bytes, const char* object, const char* chunk_object)
    : head_(std::move(head)),
      token_bytes_(std::move(token_bytes)),
      body_prefix_(Prefix(object)),
      chunk_prefix_(Prefix(chunk_object)) {}

std::string AnswerWriter::Prefix(const char* object) const {
  std::string prefix = R"({"id":)";
  AppendJsonString(head_.id, &prefix);
  prefix += R"(,"object":)";
  AppendJsonString(object, &prefix);
  prefix += R"(,"created":)";
  AppendJsonInteger(static_cast<int64_t>(head_.created), &prefix);
  prefix += R"(,"model":)";
  AppendJsonString(head_.model, &prefix);
  return prefix + R"(,"choices":[)";
}

void AnswerWriter::AppendChunk(Piece* piece, const Usage& so_far, std::string* out) const {
  if (!SaysSomething(*piece)) return;
  out->append(kEventBegin);
  out->append(chunk_prefix_);
  AppendChoice(piece, /*in_chunk=*/true, out);
  out->push_back(']');
  AppendBesideChoices(*piece, out);
  if (head_.continuous_usage) {
    out->append(R"(,"usage":)");
    AppendUsage(so_far, out);
  } else if (head_.usage_in_chunks) {
    out->append(R"(,"usage":null)");
  }
  out->push_back('}');
  out->append(kEventEnd);
}

void AnswerWriter::AppendUsageChunk(const Usage& usage, std::string* out) const {
  out->append(kEventBegin);
  out->append(chunk_prefix_);
  out->append(R"(],"usage":)");
  AppendUsage(usage, out);
  out->push_back('}');
  out->append(kEventEnd);
}

void AnswerWriter::AppendDone(std::string* out) {
  out->append(kEventBegin);
  out->append("[DONE]");
  out->append(kEventEnd);
}

void AnswerWriter::AppendError(const ApiError& error, std::string* out) {
  out->append(kEventBegin);
  out->append(ErrorJson(error));
  out->append(kEventEnd);
}

std::string AnswerWriter::Body(std::span<Piece> pieces, const Usage& usage) const {
  std::string body = body_prefix_;
  for (Piece& piece : pieces) {
    if (&piece != pieces.data()) body.push_back(',');
    AppendChoice(&piece, /*in_chunk=*/false, &body);
  }
  body.push_back(']');
  AppendBesideChoices(pieces.front(), &body);
  body.append(R"(,"usage":)");
  AppendUsage(usage, &body);
  body.push_back('}');
  return body;
}

void AnswerWriter::AppendEnd(const Piece& piece, std::string* out) {
  out->append(R"("finish_reason":)");
  if (piece.finish_reason == nullptr) {
    out->append("null");
  } else {
    AppendJsonString(piece.finish_reason, out);
  }
  out->append(R"(,"stop_reason":)");
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

void AnswerWriter::AppendIds(std::span<const int32_t> ids, std::string* out) {
  out->push_back('[');
  for (size_t i = 0; i < ids.size(); ++i) {
    if (i > 0) out->push_back(',');
    AppendJsonInteger(ids[i], out);
  }
  out->push_back(']');
}

}  // namespace fastdecode::serve
