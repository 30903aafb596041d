#ifndef FASTDECODE_TOOLS_SERVE_OPENAI_CHAT_WRITER_H_
#define FASTDECODE_TOOLS_SERVE_OPENAI_CHAT_WRITER_H_

#include <cstddef>
#include <string>

#include "tools/serve/openai/answer_writer.h"

namespace fastdecode::serve {

// The answer of POST /v1/chat/completions. A choice's first chunk has its role; later ones have only what is new, and
// tokens whose text is held back make none unless they have log-probabilities or ids to say. Reasoning is written
// twice, as `reasoning` (vLLM's name) and as `reasoning_content` (that of others). Tokens have the names that they have
// in CompletionWriter, and beside them the list of their bytes, which is exact.
class ChatWriter : public AnswerWriter {
 public:
  static constexpr char kIdPrefix[] = "chatcmpl-";

  // `include_reasoning`: false leaves it out, but for the log-probabilities of its tokens.
  ChatWriter(Head head, TokenBytes token_bytes, bool include_reasoning);

 private:
  bool SaysSomething(const Piece& piece) const override;
  void AppendChoice(Piece* piece, bool in_chunk, std::string* out) const override;
  void AppendBesideChoices(const Piece& first, std::string* out) const override;
  void AppendDelta(const Piece& piece, std::string* out) const;
  void AppendMessage(const Piece& piece, std::string* out) const;
  void AppendReasoning(const Piece& piece, std::string* out) const;
  void AppendLogprobs(const TokenRun& run, std::string* out) const;
  void AppendToken(int32_t token, float logprob, std::string* out) const;

  const bool include_reasoning_;
};

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_OPENAI_CHAT_WRITER_H_
