#ifndef FASTDECODE_TOOLS_BENCH_SERVE_ANSWER_H_
#define FASTDECODE_TOOLS_BENCH_SERVE_ANSWER_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "tools/bench/serve_stream.h"

namespace fastdecode::serve_bench {

// What became of one request. Times are CLOCK_MONOTONIC.
struct RequestResult {
  bool ended = false;      // else it was not sent, or the run was interrupted before its end
  std::string error;       // why it failed; empty: it succeeded
  int status = 0;          // of HTTP; 0: none came
  int64_t start_ns = 0;    // when it was sent, or its connection begun
  int64_t ttft_ns = 0;     // from there to the first chunk that has choices; of a whole answer 0
  int64_t latency_ns = 0;  // from there to the last such chunk, or to the end of a whole answer
  std::vector<int64_t> itl_ns;
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
  std::string text;  // if it was to be kept

  bool succeeded() const { return ended && error.empty(); }
};

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

  // The next answer is for this request, whose start_ns and prompt_tokens (what is known of them) are set.
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

}  // namespace fastdecode::serve_bench

#endif  // FASTDECODE_TOOLS_BENCH_SERVE_ANSWER_H_
