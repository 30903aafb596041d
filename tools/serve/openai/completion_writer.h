#ifndef FASTDECODE_TOOLS_SERVE_OPENAI_COMPLETION_WRITER_H_
#define FASTDECODE_TOOLS_SERVE_OPENAI_COMPLETION_WRITER_H_

#include <cstddef>
#include <string>
#include <utility>

#include "tools/serve/openai/answer_writer.h"

namespace fastdecode::serve {

// The answer of POST /v1/completions. Tokens are written as the text that they stand for, or, where that is no UTF-8 by
// itself, as "bytes:\xe2\x80", so that different ones have different names.
class CompletionWriter : public AnswerWriter {
 public:
  static constexpr char kIdPrefix[] = "cmpl-";

  CompletionWriter(Head head, TokenBytes token_bytes)
      : AnswerWriter(std::move(head), std::move(token_bytes), "text_completion", "text_completion") {}

 private:
  void AppendChoice(Piece* piece, bool in_chunk, std::string* out) const override;
  void AppendLogprobs(Piece* piece, std::string* out) const;
  void AppendTop(const TokenRun& run, size_t index, const std::string& chosen, std::string* out) const;
};

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_OPENAI_COMPLETION_WRITER_H_
