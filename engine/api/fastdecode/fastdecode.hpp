// FastDecode in C++: a header-only layer over fastdecode.h. C++17, no types of other libraries; nothing of it crosses
// the library's boundary but the C interface, so compilers and standard libraries may differ. The inline namespace
// keeps objects apart that were compiled with headers of different versions.
//
//   fastdecode::EngineOptions options;
//   options.Set("model", "/models/llama");
//   fastdecode::InferenceEngine engine(options);
//   fastdecode::GenerateRequest request("Once upon a time");
//   request.fields.max_tokens = 100;
//   fastdecode::TokenStream stream = engine.Submit(request);
//   while (auto event = stream.Next()) std::cout << event->text << std::flush;
//
// A chat instead of a prompt:
//
//   fastdecode::ChatParameters chat;
//   chat.messages = R"([{"role": "user", "content": "Tell me a story."}])";
//   const fastdecode::Chat rendered = engine.RenderChat(chat);
//   rendered.SetPrompt(&request);
//   fastdecode::ChatReader reader(rendered);  // for event: reader.Read(*event).content
//
// Errors are thrown as fastdecode::Error. Threads: as fastdecode.h says; a TokenStream is one thread's.
#ifndef FASTDECODE_FASTDECODE_HPP_
#define FASTDECODE_FASTDECODE_HPP_

#include <fastdecode/fastdecode.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fastdecode {
inline namespace v0_1 {

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
  // What waits is not for a sink, see fd_log_sink: Drain, Next and Poll with a timeout other than 0; nor
  // are the destructors of streams, engines and workers.
  void SetLog(fd_log_sink sink, void* user, int level_min) { fd_options_set_log(options_, sink, user, level_min); }
  const fd_options* get() const { return options_; }

 private:
  fd_options* options_;
};

// A piece of a prompt: text in which special tokens are recognised or not, or ids.
struct PromptPart {
  std::string text;
  bool special = false;      // false for what users typed
  std::vector<int32_t> ids;  // used instead of `text` if not empty
  bool joins = false;        // the text goes on with that of the part before: fd_prompt_part says what that means
};

// A request's fields, and the memory that they point to.
struct GenerateRequest {
  GenerateRequest() { fd_request_init(&fields, sizeof(fields)); }
  explicit GenerateRequest(std::string text) : GenerateRequest() { prompt = std::move(text); }
  explicit GenerateRequest(std::vector<int32_t> ids) : GenerateRequest() { prompt_ids = std::move(ids); }
  explicit GenerateRequest(std::vector<PromptPart> in_parts) : GenerateRequest() { parts = std::move(in_parts); }

  fd_request fields;  // everything that the members below do not hold
  std::string prompt;
  std::vector<int32_t> prompt_ids;  // used instead of `prompt` if not empty
  std::vector<PromptPart> parts;    // used instead of both if not empty
  std::vector<std::string> stop;    // without 0 bytes
  std::vector<int32_t> stop_token_ids;
  std::vector<fd_logit_bias> logit_bias;
  std::string cache_salt;  // empty: none
};

// The C struct of a request, which points into the request and into this.
class RequestView {
 public:
  explicit RequestView(const GenerateRequest& request) : fields_(request.fields) {
    fields_.prompt = request.prompt.data();
    fields_.prompt_bytes = request.prompt.size();
    fields_.prompt_ids = request.prompt_ids.empty() ? nullptr : request.prompt_ids.data();
    fields_.prompt_id_count = request.prompt_ids.size();
    for (const PromptPart& part : request.parts) parts_.push_back(View(part));
    fields_.parts = parts_.data();
    fields_.part_count = parts_.size();
    for (const std::string& text : request.stop) stop_.push_back(CText("stop", text));
    fields_.stop = stop_.data();
    fields_.stop_count = stop_.size();
    fields_.stop_token_ids = request.stop_token_ids.data();
    fields_.stop_token_id_count = request.stop_token_ids.size();
    fields_.logit_bias = request.logit_bias.data();
    fields_.logit_bias_count = request.logit_bias.size();
    fields_.cache_salt = request.cache_salt.empty() ? nullptr : request.cache_salt.data();
    fields_.cache_salt_bytes = request.cache_salt.size();
  }
  RequestView(const RequestView&) = delete;
  RequestView& operator=(const RequestView&) = delete;

  static fd_prompt_part View(const PromptPart& part) {
    fd_prompt_part view = {};
    view.struct_size = sizeof(view);
    view.special = part.special ? 1 : 0;
    view.text = part.text.data();
    view.text_bytes = part.text.size();
    view.ids = part.ids.empty() ? nullptr : part.ids.data();
    view.id_count = part.ids.size();
    view.joins = part.joins ? 1 : 0;
    return view;
  }
  const fd_request* get() const { return &fields_; }

 private:
  fd_request fields_;
  std::vector<fd_prompt_part> parts_;
  std::vector<const char*> stop_;
};

// What a chat is made of: JSON as fd_chat_input, which see, has it. An empty text: there is none.
struct ChatParameters {
  std::string messages;          // an array of objects with role and content
  std::string tools, documents;  // arrays
  std::string variables;         // an object of further values for the template
  bool add_generation_prompt = true;
  bool continue_final_message = false;  // not together with add_generation_prompt
  int64_t now_s = -1;                   // the time that the template is told, in seconds since 1970; < 0: the clock's
};

// A rendered chat: a prompt, and how its answers are read. It does not need the engine any more; any thread may read
// it.
class Chat {
 public:
  Chat(const fd_engine* engine, const ChatParameters& parameters) {
    fd_chat_input input;
    fd_chat_input_init(&input, sizeof(input));
    input.add_generation_prompt = parameters.add_generation_prompt ? 1 : 0;
    input.continue_final_message = parameters.continue_final_message ? 1 : 0;
    input.now_s = parameters.now_s;
    const auto lend = [](const std::string& text, const char** at, size_t* bytes) {
      if (text.empty()) return;
      *at = text.data();
      *bytes = text.size();
    };
    lend(parameters.messages, &input.messages, &input.messages_bytes);
    lend(parameters.tools, &input.tools, &input.tools_bytes);
    lend(parameters.documents, &input.documents, &input.documents_bytes);
    lend(parameters.variables, &input.variables, &input.variables_bytes);
    ThrowIfError(fd_chat_render(engine, &input, &chat_));
  }
  Chat(Chat&& other) noexcept : chat_(std::exchange(other.chat_, nullptr)) {}
  Chat& operator=(Chat&& other) noexcept {
    std::swap(chat_, other.chat_);
    return *this;
  }
  ~Chat() { fd_chat_destroy(chat_); }

  // A copy of the prompt's parts. A request that has them is to have add_special_tokens = 0: SetPrompt does that, too.
  std::vector<PromptPart> Parts() const {
    std::vector<PromptPart> parts;
    size_t count = 0;
    const char* at = reinterpret_cast<const char*>(fd_chat_parts(chat_, &count));
    for (size_t i = 0; i < count; ++i) {
      fd_prompt_part part = {};  // the library's may be longer
      uint32_t size = 0;
      std::memcpy(&size, at, sizeof(size));
      std::memcpy(&part, at, std::min<size_t>(size, sizeof(part)));
      at += size;
      parts.push_back({std::string(part.text, part.text_bytes), part.special != 0, {}, part.joins != 0});
    }
    return parts;
  }
  // All of the prompt as one text, for people: what of it may be a special token, the parts alone know.
  std::string Text() const {
    std::string text;
    for (const PromptPart& part : Parts()) text += part.text;
    return text;
  }
  // Copies the prompt into the request, and sets what fd_chat_set_prompt sets. The request needs the chat no longer.
  void SetPrompt(GenerateRequest* request) const {
    if (fd_chat_set_prompt(chat_, &request->fields) != 0) {
      throw Error(FD_INVALID_ARGUMENT, "the request's struct_size is not one that the library knows");
    }
    request->parts = Parts();
  }
  const fd_chat* get() const { return chat_; }

 private:
  fd_chat* chat_ = nullptr;
};

// What a model's folder holds, as JSON: fd_model_inspect, which see.
inline std::string InspectModel(const std::string& model, uint64_t memory_bytes = 0) {
  char* json = nullptr;
  ThrowIfError(fd_model_inspect(CText("model", model), memory_bytes, &json));
  std::string copy(json);
  fd_string_free(json);
  return copy;
}

// Renders any template, for people who write them: fd_template_render, which see.
inline std::string RenderTemplate(const std::string& name, std::string_view source, std::string_view context_json,
                                  int64_t now_s = -1) {
  char* text = nullptr;
  size_t bytes = 0;
  ThrowIfError(fd_template_render(CText("name", name), source.data(), source.size(), context_json.data(),
                                  context_json.size(), now_s, &text, &bytes));
  std::string copy(text, bytes);
  fd_string_free(text);
  return copy;
}

// A copy of an fd_event, which see, that keeps.
struct TokenEvent {
  explicit TokenEvent(const fd_event& event)
      : kind(event.kind),
        finished(event.kind == FD_EVENT_FINISHED),
        id(event.id),
        user(event.user),
        choice(event.choice),
        token_index(event.token_index),
        tokens(event.tokens, event.tokens + event.token_count),
        text(event.text, event.text_bytes),
        finish(event.finish),
        stop_index(event.stop_index),
        stop_token(event.stop_token),
        error(event.error),
        prompt_tokens(event.prompt_tokens),
        generated_tokens(event.generated_tokens),
        submit_ns(event.submit_ns),
        time_ns(event.time_ns),
        special(event.special, event.special + event.special_count),
        hides_special(event.hides_special != 0),
        home(event.kind == FD_EVENT_PAUSED ? event.home : -1),
        cached_tokens(event.cached_tokens) {
    if (event.logprobs != nullptr) logprobs.assign(event.logprobs, event.logprobs + event.token_count);
    for (size_t i = 0; event.top_logprob_count > 0 && i < event.token_count; ++i) {
      const fd_token_logprob* const top = event.top_logprobs + i * event.top_logprob_count;
      top_logprobs.emplace_back(top, top + event.top_logprob_count);
    }
    if (event.times == nullptr) return;
    times.emplace();  // what the library does not know is 0
    std::memcpy(&*times, event.times, std::min<size_t>(event.times->struct_size, sizeof(*times)));
  }

  int32_t kind;   // fd_event_kind
  bool finished;  // the last event of its choice
  uint64_t id;
  void* user;
  uint32_t choice;                                          // which of the request's fields.n answers
  uint32_t token_index;                                     // of the first one
  std::vector<int32_t> tokens;                              // several where the caller has fallen behind
  std::vector<float> logprobs;                              // [tokens], or empty
  std::vector<std::vector<fd_token_logprob>> top_logprobs;  // [tokens], or empty
  std::string text;
  int32_t finish;  // fd_finish
  int32_t stop_index, stop_token;
  std::string error;
  uint32_t prompt_tokens, generated_tokens;
  uint64_t submit_ns, time_ns;
  std::optional<fd_request_times> times;
  std::vector<fd_text_range> special;  // what of the text special tokens wrote
  bool hides_special;
  int32_t home;            // FD_EVENT_PAUSED: an index into InferenceEngine::Homes(); else -1
  uint32_t cached_tokens;  // `finished`: of prompt_tokens, those whose KV other requests had computed
};

// Takes one answer to a chat apart into reasoning and content. Thread: one. It does not need the chat any more.
class ChatReader {
 public:
  struct Piece {
    std::string reasoning;
    std::string content;  // comes after the reasoning where there are both
  };

  explicit ChatReader(const Chat& chat) : reader_(fd_chat_reader_create(chat.get())) {
    if (reader_ == nullptr) throw Error(FD_RESOURCE_EXHAUSTED, "out of memory for a reader of answers");
    Read("");  // the prompt may have begun the reasoning
  }
  ChatReader(ChatReader&& other) noexcept
      : reader_(std::exchange(other.reader_, nullptr)), in_reasoning_(other.in_reasoning_) {}
  ChatReader& operator=(ChatReader&& other) noexcept {
    std::swap(reader_, other.reader_);
    std::swap(in_reasoning_, other.in_reasoning_);
    return *this;
  }
  ~ChatReader() { fd_chat_reader_destroy(reader_); }

  // What the next event adds; what may be the beginning of a mark is held back until the last one.
  Piece Read(const TokenEvent& event) {
    fd_event view = {};
    view.struct_size = sizeof(view);
    view.kind = event.kind;
    view.text = event.text.data();
    view.text_bytes = event.text.size();
    view.special = event.special.data();
    view.special_count = static_cast<uint32_t>(event.special.size());
    view.hides_special = event.hides_special ? 1 : 0;
    fd_chat_piece piece = {};
    piece.struct_size = sizeof(piece);
    if (fd_chat_read_event(reader_, &view, &piece) != 0) {
      throw Error(FD_RESOURCE_EXHAUSTED, "out of memory for an answer");
    }
    return Take(piece);
  }
  // The same for a text of which nobody knows what special tokens wrote, see fd_chat_read. `last`: nothing follows, and
  // what was held back comes.
  Piece Read(std::string_view text, bool last = false) {
    fd_chat_piece piece = {};
    piece.struct_size = sizeof(piece);
    if (fd_chat_read(reader_, text.data(), text.size(), last ? 1 : 0, &piece) != 0) {
      throw Error(FD_RESOURCE_EXHAUSTED, "out of memory for an answer");
    }
    return Take(piece);
  }
  // Where what has been read ends, the model is reasoning.
  bool in_reasoning() const { return in_reasoning_; }

 private:
  Piece Take(const fd_chat_piece& piece) {
    in_reasoning_ = piece.in_reasoning != 0;
    return {std::string(piece.reasoning, piece.reasoning_bytes), std::string(piece.content, piece.content_bytes)};
  }

  fd_chat_reader* reader_;
  bool in_reasoning_ = false;
};

// The events of one request, of all of its choices. Destroying it cancels a request that still runs.
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

  // The next event; nothing after the one that is `finished`, of several choices the last of these, or when timeout_ns
  // (< 0: for ever) has passed.
  std::optional<TokenEvent> Next(int64_t timeout_ns = -1) {
    fd_event event;
    event.struct_size = sizeof(event);
    if (fd_next(engine_, id_, &event, timeout_ns) != 1) return std::nullopt;
    return TokenEvent(event);
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

  // Copies everything it needs before it returns. Its events are taken from the stream...
  TokenStream Submit(const GenerateRequest& request) { return TokenStream(engine_, SubmitForPoll(request)); }
  // ...or with Poll, by its id, which forgets it by itself.
  uint64_t SubmitForPoll(const GenerateRequest& request) {
    const RequestView view(request);
    uint64_t id = 0;
    ThrowIfError(fd_submit(engine_, view.get(), &id));
    return id;
  }
  // Calls take(event) for each event that waits, at most for some hundred, once there is one or timeout_ns (< 0: for
  // ever) has passed: fd_poll, which see. What the event points to lives until the next call. `take` must not throw:
  // the rest of the events would be lost.
  template <class Take>
  size_t Poll(int64_t timeout_ns, Take&& take) {
    fd_event events[256];
    events[0].struct_size = sizeof(fd_event);
    const int count = fd_poll(engine_, events, 256, timeout_ns);
    if (count == FD_NO_MEMORY) throw Error(FD_RESOURCE_EXHAUSTED, "out of memory for the events of requests");
    for (int i = 0; i < count; ++i) take(static_cast<const fd_event&>(events[i]));
    return static_cast<size_t>(count);
  }
  // Readable while events wait, see fd_engine_event_fd.
  int event_fd() {
    const int fd = fd_engine_event_fd(engine_);
    if (fd < 0) throw Error(FD_RESOURCE_EXHAUSTED, "the process has no file descriptor left for events");
    return fd;
  }
  void Cancel(uint64_t id) { fd_cancel(engine_, id); }
  // What the model's makers recommend, see fd_default_sampling.
  void SetDefaultSampling(GenerateRequest* request) const { fd_default_sampling(engine_, &request->fields); }

  std::vector<int32_t> Tokenize(const std::vector<PromptPart>& parts, bool add_special_tokens = true) const {
    std::vector<fd_prompt_part> views;
    for (const PromptPart& part : parts) views.push_back(RequestView::View(part));
    const auto tokenize = [&](int32_t* ids, size_t capacity) {
      size_t count = 0;
      ThrowIfError(fd_tokenize(engine_, views.data(), views.size(), add_special_tokens, ids, capacity, &count));
      return count;
    };
    std::vector<int32_t> ids(tokenize(nullptr, 0));
    tokenize(ids.data(), ids.size());
    return ids;
  }
  // A text in which special tokens become their ids.
  std::vector<int32_t> Tokenize(std::string text, bool add_special_tokens = true) const {
    return Tokenize(std::vector<PromptPart>{{std::move(text), /*special=*/true, {}}}, add_special_tokens);
  }
  // `special`: with special tokens in the text.
  std::string Detokenize(const std::vector<int32_t>& ids, bool special = false) const {
    char* text = nullptr;
    size_t bytes = 0;
    ThrowIfError((special ? fd_detokenize_special : fd_detokenize)(engine_, ids.data(), ids.size(), &text, &bytes));
    std::string copy(text, bytes);
    fd_string_free(text);
    return copy;
  }
  // What a token stands for inside of a text, often not UTF-8 by itself; empty: it is no token. See fd_token_bytes.
  std::string TokenBytes(int32_t id) const {
    std::string bytes(64, '\0');
    const size_t count = fd_token_bytes(engine_, id, &bytes[0], bytes.size());
    const bool fits = count <= bytes.size();
    bytes.resize(count);
    if (!fits) fd_token_bytes(engine_, id, &bytes[0], count);
    return bytes;
  }

  // Messages as the model's template writes them; see fd_chat_render.
  Chat RenderChat(const ChatParameters& parameters) const { return Chat(engine_, parameters); }
  bool has_chat_template() const { return fd_has_chat_template(engine_) != 0; }
  std::string chat_template_missing_reason() const { return fd_chat_template_missing_reason(engine_); }

  int vocab_size() const { return fd_vocab_size(engine_); }
  int max_context() const { return fd_max_context(engine_); }
  uint32_t max_choices() const { return fd_max_choices(engine_); }  // the largest fields.n of a request
  bool has_tokenizer() const { return fd_has_tokenizer(engine_) != 0; }
  std::string tokenizer_missing_reason() const { return fd_tokenizer_missing_reason(engine_); }
  std::string Describe() const { return TakeString(fd_engine_describe(engine_)); }
  std::string StatisticsJson() const { return TakeString(fd_engine_stats_json(engine_)); }
  fd_stats Statistics() const {
    fd_stats stats = {};
    stats.struct_size = sizeof(stats);
    fd_engine_stats(engine_, &stats);
    return stats;
  }
  // What fd_engine_home says of each home.
  std::vector<fd_home_stats> Homes() const {
    std::vector<fd_home_stats> homes;
    fd_home_stats stats = {};
    stats.struct_size = sizeof(stats);
    while (fd_engine_home(engine_, homes.size(), &stats) == 1) homes.push_back(stats);
    return homes;
  }
  // The cores that the option front-cores leaves to the caller's threads.
  std::vector<int32_t> FrontCores() const {
    std::vector<int32_t> cores(fd_engine_front_cores(engine_, nullptr, 0));
    fd_engine_front_cores(engine_, cores.data(), cores.size());
    return cores;
  }
  // The model and its tokenizer; see fd_model_describe.
  std::string ModelDescribeJson() const { return TakeString(fd_model_describe(engine_)); }
  void ResetStatistics() { fd_engine_stats_reset(engine_); }
  // What the homes said last of their KV pages.
  std::string PagesJson() const { return TakeString(fd_engine_pages_json(engine_)); }
  // No further Submit; returns how many requests have not ended after timeout_ns (< 0: for ever).
  size_t Drain(int64_t timeout_ns = -1) { return fd_drain(engine_, timeout_ns); }
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
      (*events)[before].struct_size = sizeof(fd_record_event);
      int ended = 0;
      const size_t count =
          static_cast<size_t>(fd_record_read(record_, events->data() + before, kAtOnce, &lost_, &ended));
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
  void Drain() { fd_worker_drain(worker_); }
  fd_worker* get() const { return worker_; }

 private:
  fd_worker* worker_ = nullptr;
};

}  // namespace v0_1
}  // namespace fastdecode

#endif  // FASTDECODE_FASTDECODE_HPP_
