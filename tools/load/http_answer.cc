#include "tools/load/http_answer.h"

#include <algorithm>

namespace fastdecode::load {

namespace {

// The begin of what a server sent, as one line that a terminal bears.
std::string Excerpt(std::string_view text) {
  constexpr size_t kBytesMax = 160;
  std::string line(text.substr(0, kBytesMax));
  std::replace_if(
      line.begin(), line.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; }, ' ');
  return text.size() > kBytesMax ? line + "..." : line;
}

}  // namespace

void Answer::Begin(RequestResult* result) {
  result_ = result;
  status_ = 0;
  is_stream_ = done_ = has_usage_ = false;
  chunks_ = 0;
  content_type_.clear();
  body_.clear();
  events_.Reset();
}

void Answer::TakeHead(int status, std::string_view content_type) {
  constexpr std::string_view kEventStream = "text/event-stream";
  status_ = result_->status = status;
  content_type_ = content_type;
  is_stream_ = kind_ == Kind::kStream && status == 200 && content_type.substr(0, kEventStream.size()) == kEventStream;
}

void Answer::TakeBody(std::string_view bytes, int64_t now_ns) {
  if (failed()) return;
  if (!is_stream_) {
    body_ += bytes.substr(0, kBodyBytesMax - std::min(kBodyBytesMax, body_.size()));
    return;
  }
  if (!events_.Feed(bytes, [&](std::string_view data) { TakeChunk(data, now_ns); })) {
    Fail("an event of the stream is longer than " + std::to_string(EventReader::kEventBytesMax) + " bytes");
  }
}

void Answer::TakeChunk(std::string_view data, int64_t now_ns) {
  if (failed()) return;
  if (done_) return Fail("the stream went on after [DONE]: " + Excerpt(data));
  if (data == "[DONE]") {
    done_ = true;
    return;
  }
  std::string problem;
  if (!ReadCompletionChunk(data, keep_text_, &chunk_, &problem)) {
    return Fail("an event is no chunk (" + Excerpt(problem) + "): " + Excerpt(data));
  }
  if (chunk_.has_error) return Fail("the stream has an error: " + Excerpt(chunk_.error));
  if (chunk_.has_choices) {
    const int64_t since_intended_ns = now_ns - result_->intended_ns;
    if (chunks_ == 0) {
      result_->ttft_ns = since_intended_ns;
    } else {
      result_->itl_ns.push_back(since_intended_ns - result_->latency_ns);
    }
    result_->latency_ns = since_intended_ns;
    ++chunks_;
    if (keep_text_) result_->text += chunk_.text;
  }
  TakeUsage();
}

void Answer::TakeUsage() {
  if (chunk_.prompt_tokens >= 0) result_->prompt_tokens = chunk_.prompt_tokens;
  if (chunk_.output_tokens < 0) return;
  result_->output_tokens = chunk_.output_tokens;
  has_usage_ = true;
}

void Answer::End(int64_t now_ns) {
  if (failed()) return;
  if (kind_ == Kind::kRaw) {
    result_->text = body_;
    if (status_ != 200) EndRefusal();
  } else if (status_ != 200) {
    EndRefusal();
  } else if (kind_ == Kind::kWhole) {
    EndWhole(now_ns);
  } else {
    EndStream();
  }
}

void Answer::EndStream() {
  if (!is_stream_) {
    return Fail("the answer is no text/event-stream but '" + Excerpt(content_type_) + "': " + Excerpt(body_));
  }
  if (!done_) return Fail("the stream ended without [DONE]");
  if (chunks_ == 0) return Fail("the stream had no chunk with choices");
  if (!has_usage_) result_->output_tokens = chunks_;
}

void Answer::EndWhole(int64_t now_ns) {
  std::string problem;
  if (!ReadCompletionChunk(body_, keep_text_, &chunk_, &problem)) {
    return Fail("the answer is no completion (" + Excerpt(problem) + "): " + Excerpt(body_));
  }
  if (chunk_.has_error) return Fail("the answer is an error: " + Excerpt(chunk_.error));
  if (!chunk_.has_choices) return Fail("the answer has no choices: " + Excerpt(body_));
  TakeUsage();
  if (!has_usage_) return Fail("the answer does not say usage.completion_tokens: " + Excerpt(body_));
  result_->latency_ns = now_ns - result_->intended_ns;
  if (keep_text_) result_->text = chunk_.text;
}

void Answer::EndRefusal() {
  std::string problem;
  const bool says_why = ReadCompletionChunk(body_, false, &chunk_, &problem) && !chunk_.error.empty();
  const std::string why = Excerpt(says_why ? chunk_.error : body_);
  Fail("HTTP " + std::to_string(status_) + (why.empty() ? "" : ": " + why));
}

void Answer::Fail(const std::string& reason) {
  if (!failed()) result_->error = reason;
}

std::string Answer::Progress() const {
  if (status_ == 0) return "before it answered";
  if (!is_stream_) return "within its answer";
  return done_ ? "after [DONE], before the end of the body" : "within the stream";
}

}  // namespace fastdecode::load
