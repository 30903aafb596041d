// FastDecode in C++: a header-only layer over fastdecode.h. C++17, no types of other libraries; nothing of it crosses the
// library's boundary but the C interface, so compilers and standard libraries may differ.
//
//   fastdecode::EngineOptions options;
//   options.Set("model", "/models/llama");
//   fastdecode::InferenceEngine engine(options);
//   fastdecode::GenerateRequest request("Once upon a time");
//   request.fields.max_tokens = 100;
//   fastdecode::TokenStream stream = engine.Submit(request);
//   while (auto event = stream.Next()) std::cout << event->text << std::flush;
//
// Errors are thrown as fastdecode::Error. Threads: as fastdecode.h says; a TokenStream is one thread's.
#ifndef FASTDECODE_FASTDECODE_HPP_
#define FASTDECODE_FASTDECODE_HPP_

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fastdecode/fastdecode.h>

namespace fastdecode {

class Error : public std::runtime_error {
 public:
  Error(fd_code code, const std::string& message) : std::runtime_error(message), code_(code) {}
  fd_code code() const { return code_; }

 private:
  fd_code code_;
};

// Throws if there is an error, and destroys the status in any case.
inline void ThrowIfError(fd_status* status) {
  if (status == nullptr) return;
  Error error(fd_status_code(status), fd_status_message(status));
  fd_status_destroy(status);
  throw error;
}

// Takes over a string that the library made.
inline std::string TakeString(char* text) {
  std::string copy = text == nullptr ? "" : text;
  fd_string_free(text);
  return copy;
}

// For what ends at its first 0 byte in C: nothing may come after that.
inline const char* CText(const char* what, const std::string& text) {
  if (text.find('\0') == std::string::npos) return text.c_str();
  throw Error(FD_INVALID_ARGUMENT, std::string(what) + ": there is a 0 byte in '" + text.c_str() + "'...");
}

class EngineOptions {
 public:
  EngineOptions() : options_(fd_options_create()) {}
  ~EngineOptions() { fd_options_destroy(options_); }
  EngineOptions(const EngineOptions&) = delete;
  EngineOptions& operator=(const EngineOptions&) = delete;

  void Set(const std::string& name, const std::string& value) {
    ThrowIfError(fd_options_set(options_, CText("option", name), CText(name.c_str(), value)));
  }
  // What waits is not for a sink, see fd_log_sink: Drain, PagesJson, Next and WaitAny with a timeout other than 0; nor
  // are the destructors of streams, engines and workers.
  void SetLog(fd_log_sink sink, void* user, int level_min) { fd_options_set_log(options_, sink, user, level_min); }
  const fd_options* get() const { return options_; }

 private:
  fd_options* options_;
};

// A request's fields, and the memory that they point to.
struct GenerateRequest {
  GenerateRequest() { fd_request_init(&fields); }
  explicit GenerateRequest(std::string text) : GenerateRequest() { prompt = std::move(text); }
  explicit GenerateRequest(std::vector<int32_t> ids) : GenerateRequest() { prompt_ids = std::move(ids); }

  fd_request fields;                       // everything that the members below do not hold
  std::string prompt;
  std::vector<int32_t> prompt_ids;         // used instead of `prompt` if not empty
  std::vector<std::string> stop;           // without 0 bytes
  std::vector<int32_t> stop_token_ids;
  std::vector<fd_logit_bias> logit_bias;
};

struct TokenEvent {
  bool finished = false;
  int32_t token = 0;
  uint32_t token_index = 0;
  float logprob = 0;
  std::vector<fd_token_logprob> top_logprobs;
  std::string text;
  fd_finish finish = FD_FINISH_STOP;
  std::string error;
  uint32_t prompt_tokens = 0;
  uint32_t generated_tokens = 0;
  uint64_t submit_ns = 0;
  uint64_t time_ns = 0;
};

// The events of one request. Destroying it cancels a request that still runs.
class TokenStream {
 public:
  TokenStream(fd_engine* engine, uint64_t id) : engine_(engine), id_(id) {}
  TokenStream(TokenStream&& other) noexcept : engine_(std::exchange(other.engine_, nullptr)), id_(other.id_) {}
  TokenStream& operator=(TokenStream&& other) noexcept {
    std::swap(engine_, other.engine_);
    std::swap(id_, other.id_);
    return *this;
  }
  ~TokenStream() {
    if (engine_ != nullptr) fd_forget(engine_, id_);
  }

  uint64_t id() const { return id_; }
  void Cancel() { fd_cancel(engine_, id_); }

  // The next event; nothing after the one that is `finished`, or when timeout_ns (< 0: for ever) has passed.
  std::optional<TokenEvent> Next(int64_t timeout_ns = -1) {
    fd_event event;
    const int taken = fd_next(engine_, id_, &event, timeout_ns);
    if (taken == -2) throw Error(FD_RESOURCE_EXHAUSTED, "out of memory for an event of a request");
    if (taken != 1) return std::nullopt;
    TokenEvent out;
    out.finished = event.kind == FD_EVENT_FINISHED;
    out.token = event.token;
    out.token_index = event.token_index;
    out.logprob = event.logprob;
    out.top_logprobs.assign(event.top_logprobs, event.top_logprobs + event.top_logprob_count);
    out.text.assign(event.text, event.text_bytes);
    out.finish = event.finish;
    out.error = event.error;
    out.prompt_tokens = event.prompt_tokens;
    out.generated_tokens = event.generated_tokens;
    out.submit_ns = event.submit_ns;
    out.time_ns = event.time_ns;
    return out;
  }

 private:
  fd_engine* engine_;
  uint64_t id_;
};

class InferenceEngine {
 public:
  explicit InferenceEngine(const EngineOptions& options) { ThrowIfError(fd_engine_create(options.get(), &engine_)); }
  ~InferenceEngine() { fd_engine_destroy(engine_); }
  InferenceEngine(const InferenceEngine&) = delete;
  InferenceEngine& operator=(const InferenceEngine&) = delete;

  // Copies everything it needs before it returns, except where request.fields.prompt_logits points.
  TokenStream Submit(const GenerateRequest& request) {
    fd_request fields = request.fields;
    fields.prompt = request.prompt.data();
    fields.prompt_bytes = request.prompt.size();
    fields.prompt_ids = request.prompt_ids.empty() ? nullptr : request.prompt_ids.data();
    fields.prompt_id_count = request.prompt_ids.size();
    std::vector<const char*> stop;
    for (const std::string& text : request.stop) stop.push_back(CText("stop", text));
    fields.stop = stop.data();
    fields.stop_count = stop.size();
    fields.stop_token_ids = request.stop_token_ids.data();
    fields.stop_token_id_count = request.stop_token_ids.size();
    fields.logit_bias = request.logit_bias.data();
    fields.logit_bias_count = request.logit_bias.size();
    uint64_t id = 0;
    ThrowIfError(fd_submit(engine_, &fields, &id));
    return TokenStream(engine_, id);
  }

  // Some request that has events waiting, or nothing after timeout_ns (< 0: for ever).
  std::optional<uint64_t> WaitAny(int64_t timeout_ns = -1) {
    uint64_t id = 0;
    if (fd_wait_any(engine_, &id, timeout_ns) == 0) return std::nullopt;
    return id;
  }

  std::vector<int32_t> Tokenize(std::string_view text, bool add_special_tokens = true) const {
    size_t count = 0;
    ThrowIfError(fd_tokenize(engine_, text.data(), text.size(), add_special_tokens, nullptr, 0, &count));
    std::vector<int32_t> ids(count);
    ThrowIfError(fd_tokenize(engine_, text.data(), text.size(), add_special_tokens, ids.data(), count, &count));
    return ids;
  }
  std::string Detokenize(const std::vector<int32_t>& ids) const {
    char* text = nullptr;
    size_t bytes = 0;
    ThrowIfError(fd_detokenize(engine_, ids.data(), ids.size(), &text, &bytes));
    std::string copy(text, bytes);
    fd_string_free(text);
    return copy;
  }

  int vocab_size() const { return fd_vocab_size(engine_); }
  int max_context() const { return fd_max_context(engine_); }
  bool has_tokenizer() const { return fd_has_tokenizer(engine_) != 0; }
  std::string tokenizer_missing_reason() const { return fd_tokenizer_missing_reason(engine_); }
  std::string Describe() const { return TakeString(fd_engine_describe(engine_)); }
  std::string StatisticsJson() const { return TakeString(fd_engine_stats(engine_)); }
  void ResetStatistics() { fd_engine_stats_reset(engine_); }
  // Asks the homes, which takes a second at most.
  std::string PagesJson() const { return TakeString(fd_engine_pages(engine_)); }
  // No further Submit; returns when every request has ended.
  void Drain() { fd_drain(engine_); }
  fd_engine* get() const { return engine_; }

 private:
  fd_engine* engine_ = nullptr;
};

// What an engine records, while this lives: of this process, or of another (its pid, or its record socket's path).
class EngineRecord {
 public:
  explicit EngineRecord(const InferenceEngine& engine) { ThrowIfError(fd_record_open(engine.get(), &record_)); }
  explicit EngineRecord(const std::string& pid_or_socket) {
    ThrowIfError(fd_record_attach(CText("pid or socket", pid_or_socket), &record_));
  }
  ~EngineRecord() { fd_record_close(record_); }
  EngineRecord(const EngineRecord&) = delete;
  EngineRecord& operator=(const EngineRecord&) = delete;

  std::string DescribeJson() const { return TakeString(fd_record_describe(record_)); }
  // Appends what has come; see fd_record_read.
  void ReadInto(std::vector<fd_record_event>* events) {
    constexpr size_t kAtOnce = 1 << 10;
    for (;;) {
      const size_t before = events->size();
      events->resize(before + kAtOnce);
      int ended = 0;
      const size_t count = fd_record_read(record_, events->data() + before, kAtOnce, &lost_, &ended);
      events->resize(before + count);
      if (ended != 0) ended_ = true;
      if (count < kAtOnce) return;
    }
  }
  uint64_t lost() const { return lost_; }  // events that were overwritten before they were read
  bool ended() const { return ended_; }    // the engine has gone

 private:
  fd_record* record_ = nullptr;
  uint64_t lost_ = 0;
  bool ended_ = false;
};

// A worker; see fd_worker.
class WorkerServer {
 public:
  explicit WorkerServer(const EngineOptions& options) { ThrowIfError(fd_worker_create(options.get(), &worker_)); }
  ~WorkerServer() { fd_worker_destroy(worker_); }
  WorkerServer(const WorkerServer&) = delete;
  WorkerServer& operator=(const WorkerServer&) = delete;

  std::string Describe() const { return TakeString(fd_worker_describe(worker_)); }
  void Run() { ThrowIfError(fd_worker_run(worker_)); }
  void Stop() { fd_worker_stop(worker_); }
  fd_worker* get() const { return worker_; }

 private:
  fd_worker* worker_ = nullptr;
};

}  // namespace fastdecode

#endif  // FASTDECODE_FASTDECODE_HPP_
