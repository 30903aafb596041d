#ifndef FASTDECODE_TOOLS_SERVE_OPENAI_ANSWER_WRITER_H_
#define FASTDECODE_TOOLS_SERVE_OPENAI_ANSWER_WRITER_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "tools/serve/api_error.h"
#include "tools/serve/openai/piece.h"

namespace fastdecode::serve {

// The JSON of one answer, as chunks of a stream or as a whole. What endpoints differ in, how a choice is written, is
// for subclasses. Owns: the parts that all chunks have in common. Thread: one.
class AnswerWriter {
 public:
  struct Head {
    std::string id;        // "cmpl-...", "chatcmpl-..."
    uint64_t created = 0;  // seconds since 1970
    std::string model;
    bool logprobs = false;         // choices have a `logprobs` object
    bool usage_in_chunks = false;  // include_usage: chunks have a `usage`, null unless it is continuous
    bool continuous_usage = false;
    bool return_token_ids = false;
  };
  // The bytes that a token stands for inside of a text, often not UTF-8 by themselves.
  using TokenBytes = std::function<std::string(int32_t)>;

  virtual ~AnswerWriter() = default;
  AnswerWriter(const AnswerWriter&) = delete;
  AnswerWriter& operator=(const AnswerWriter&) = delete;

  // One event of the stream, "data: {...}\n\n"; nothing if the piece says nothing. With logprobs, advances
  // piece->text_offset past its tokens. `so_far`: with continuous usage.
  void AppendChunk(Piece* piece, const Usage& so_far, std::string* out) const;
  // The chunk without choices that ends a stream with include_usage.
  void AppendUsageChunk(const Usage& usage, std::string* out) const;
  static void AppendDone(std::string* out);
  // An error after the first byte: "data: {"error":...}\n\n"; the stream is cut then.
  static void AppendError(const ApiError& error, std::string* out);
  // An answer that is not streamed. `pieces`: of all choices, in order.
  std::string Body(std::span<Piece> pieces, const Usage& usage) const;

 protected:
  // `object`, `chunk_object`: what the answer and its chunks call themselves.
  AnswerWriter(Head head, TokenBytes token_bytes, const char* object, const char* chunk_object);

  // Whether a chunk is made of it.
  virtual bool SaysSomething(const Piece& piece) const { return true; }
  // One element of `choices`, of a chunk or of a body.
  virtual void AppendChoice(Piece* piece, bool in_chunk, std::string* out) const = 0;
  // Members of the answer itself that come behind its choices: each begins with a comma.
  virtual void AppendBesideChoices(const Piece& first, std::string* out) const {}

  // "finish_reason":...,"stop_reason":...
  static void AppendEnd(const Piece& piece, std::string* out);
  static void AppendIds(std::span<const int32_t> ids, std::string* out);

  const Head head_;
  const TokenBytes token_bytes_;

 private:
  std::string Prefix(const char* object) const;

  const std::string body_prefix_, chunk_prefix_;  // up to the choices
};

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_OPENAI_ANSWER_WRITER_H_
