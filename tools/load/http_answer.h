#ifndef FASTDECODE_TOOLS_LOAD_HTTP_ANSWER_H_
#define FASTDECODE_TOOLS_LOAD_HTTP_ANSWER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "tools/load/event_stream.h"
#include "tools/load/result.h"

namespace fastdecode::load {

// Reads the answer to one request at a time. Thread: one. Bounded: it keeps kBodyBytesMax of an answer that is no
// stream.
class Answer {
 public:
  enum class Kind {
    kStream,  // chunks as server-sent events
    kWhole,   // one completion
    kRaw      // whatever comes; RequestResult::text has it
  };
  static constexpr size_t kBodyBytesMax = 64 << 20;

  Answer(Kind kind, bool keep_text) : kind_(kind), keep_text_(keep_text) {}

  // The next answer is for this request, whose intended_ns and prompt_tokens (what is known of them) are set.
  void Begin(RequestResult* result);
  // Its head has been read.
  void TakeHead(int status, std::string_view content_type);
  // Bytes of its body, which a read brought at `now_ns`.
  void TakeBody(std::string_view bytes, int64_t now_ns);
  // Its body has ended.
  void End(int64_t now_ns);
  // It has failed, for whatever reason came first.
  void Fail(const std::string& reason);

  bool has_head() const { return status_ != 0; }
  bool failed() const { return !result_->error.empty(); }
  // How far it is, as the end of a sentence: "within the stream".
  std::string Progress() const;

 private:
  void TakeChunk(std::string_view data, int64_t now_ns);
  void TakeUsage();
  void EndStream();
  void EndWhole(int64_t now_ns);
  void EndRefusal();

  const Kind kind_;
  const bool keep_text_;
  RequestResult* result_ = nullptr;
  int status_ = 0;
  bool is_stream_ = false;  // the body is to be read as one
  bool done_ = false;       // [DONE] has come
  bool has_usage_ = false;
  int64_t chunks_ = 0;  // those that have choices
  std::string content_type_, body_;
  EventReader events_;
  CompletionChunk chunk_;
};

}  // namespace fastdecode::load

#endif  // FASTDECODE_TOOLS_LOAD_HTTP_ANSWER_H_
