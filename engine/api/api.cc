// The C interface: thin, and the only place where Abseil's types meet C.
#include <fastdecode/fastdecode.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/model/shapes.h"
#include "engine/model/synth.h"
#include "engine/request/build_request.h"
#include "engine/start/engine.h"
#include "engine/start/options.h"
#include "engine/start/worker_process.h"

using fastdecode::Engine;
using fastdecode::LogLevel;
using fastdecode::Options;
using fastdecode::RecordReader;
using fastdecode::RequestDesk;
using fastdecode::RequestEvent;
using fastdecode::RequestFinish;
using fastdecode::WorkerProcess;

struct fd_status {
  fd_code code;
  std::string message;
};

struct fd_options {
  Options options;
  fd_log_sink sink = nullptr;
  void* user = nullptr;
};

namespace {

// What the pointers in fd_event point into.
struct Taken {
  RequestEvent event;
  std::array<fd_token_logprob, fastdecode::kMaxLogprobs> top;
};

fd_status* ToStatus(const absl::Status& status) {
  if (status.ok()) return nullptr;
  fd_code code = FD_INTERNAL;
  switch (status.code()) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
    case absl::StatusCode::kUnimplemented:
      code = FD_INVALID_ARGUMENT;
      break;
    case absl::StatusCode::kNotFound:
      code = FD_NOT_FOUND;
      break;
    case absl::StatusCode::kAlreadyExists:
      code = FD_ALREADY_EXISTS;
      break;
    case absl::StatusCode::kPermissionDenied:
      code = FD_PERMISSION_DENIED;
      break;
    case absl::StatusCode::kResourceExhausted:
      code = FD_RESOURCE_EXHAUSTED;
      break;
    case absl::StatusCode::kFailedPrecondition:
      code = FD_FAILED_PRECONDITION;
      break;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kDeadlineExceeded:
      code = FD_UNAVAILABLE;
      break;
    default:
      break;
  }
  return new fd_status{code, std::string(status.message())};
}

fd_status* ToStatus(const std::system_error& error) {
  const bool no_thread_left = error.code() == std::errc::resource_unavailable_try_again;
  return new fd_status{no_thread_left ? FD_RESOURCE_EXHAUSTED : FD_INTERNAL, error.what()};
}

char* CopyString(const std::string& text) {
  char* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) return nullptr;
  std::memcpy(copy, text.data(), text.size());
  copy[text.size()] = 0;
  return copy;
}

void ForwardLog(void* user, LogLevel level, const char* message) {
  const fd_options* options = static_cast<const fd_options*>(user);
  options->sink(options->user, static_cast<int>(level), message);
}

// Options whose log goes to `keep`, a copy that lives as long as the engine or worker.
Options WithLog(const fd_options* given, fd_options* keep) {
  *keep = *given;
  Options options = given->options;
  if (given->sink != nullptr) {
    options.log_sink = &ForwardLog;
    options.log_user = keep;
  }
  return options;
}

fd_finish ToFinish(RequestFinish finish) {
  switch (finish) {
    case RequestFinish::kStop:
      return FD_FINISH_STOP;
    case RequestFinish::kLength:
      return FD_FINISH_LENGTH;
    case RequestFinish::kCancelled:
      return FD_FINISH_CANCELLED;
    case RequestFinish::kError:
      return FD_FINISH_ERROR;
  }
  return FD_FINISH_ERROR;
}

void FillEvent(uint64_t id, const Taken& taken, fd_event* out) {
  const RequestEvent& event = taken.event;
  *out = fd_event{};
  out->id = id;
  out->kind = event.finished ? FD_EVENT_FINISHED : FD_EVENT_TOKEN;
  out->token = event.token;
  out->token_index = event.token_index;
  out->logprob = event.logprob;
  out->top_logprobs = taken.top.data();
  out->top_logprob_count = event.top_logprobs.size();
  out->text = event.text.c_str();
  out->text_bytes = event.text.size();
  out->finish = ToFinish(event.finish);
  out->error = event.error.c_str();
  out->prompt_tokens = event.prompt_tokens;
  out->generated_tokens = event.generated_tokens;
  out->submit_ns = event.submit_ns;
  out->time_ns = event.time_ns;
}

}  // namespace

struct fd_engine {
  fd_options log;  // first: the engine logs until it is gone
  std::unique_ptr<Engine> engine;
  std::mutex mutex;
  std::map<uint64_t, Taken> taken;  // the last event of each request, until it is replaced
};

struct fd_worker {
  fd_options log;
  std::unique_ptr<WorkerProcess> worker;
};

extern "C" {

uint32_t fd_abi_version(void) { return FD_ABI_VERSION; }
const char* fd_version(void) { return FASTDECODE_VERSION; }

fd_code fd_status_code(const fd_status* status) { return status == nullptr ? FD_OK : status->code; }
const char* fd_status_message(const fd_status* status) { return status == nullptr ? "" : status->message.c_str(); }
void fd_status_destroy(fd_status* status) { delete status; }

int fd_option_at(size_t index, fd_option_info* out) {
  const fastdecode::OptionRow* row = fastdecode::OptionAt(index);
  if (row == nullptr) return 0;
  *out = {row->name, row->value_name, row->default_value, row->help};
  return 1;
}

fd_options* fd_options_create(void) { return new fd_options; }
void fd_options_destroy(fd_options* options) { delete options; }

fd_status* fd_options_set(fd_options* options, const char* name, const char* value) {
  if (name == nullptr || value == nullptr) {
    return new fd_status{FD_INVALID_ARGUMENT, "fd_options_set: name or value is NULL"};
  }
  try {
    return ToStatus(fastdecode::SetOption(options->options, name, value));
  } catch (const std::bad_alloc&) {
    return new fd_status{FD_RESOURCE_EXHAUSTED, "out of memory for the value of an option"};
  }
}

void fd_options_set_log(fd_options* options, fd_log_sink sink, void* user, int level_min) {
  options->sink = sink;
  options->user = user;
  options->options.log_level = static_cast<LogLevel>(level_min);
}

fd_status* fd_engine_create(const fd_options* options, fd_engine** out) {
  auto engine = std::make_unique<fd_engine>();
  try {
    absl::StatusOr<std::unique_ptr<Engine>> made = Engine::Create(WithLog(options, &engine->log));
    if (!made.ok()) return ToStatus(made.status());
    engine->engine = *std::move(made);
  } catch (const std::bad_alloc&) {
    return new fd_status{FD_RESOURCE_EXHAUSTED, "out of memory while the engine was made"};
  } catch (const std::system_error& error) {
    return ToStatus(error);
  }
  *out = engine.release();
  return nullptr;
}

void fd_engine_destroy(fd_engine* engine) { delete engine; }
char* fd_engine_describe(const fd_engine* engine) { return CopyString(engine->engine->Describe()); }
char* fd_engine_stats(const fd_engine* engine) { return CopyString(engine->engine->StatisticsJson()); }
void fd_engine_stats_reset(fd_engine* engine) { engine->engine->ResetStatistics(); }
char* fd_engine_pages(fd_engine* engine) { return CopyString(engine->engine->PagesJson()); }
void fd_string_free(char* text) { std::free(text); }

int32_t fd_vocab_size(const fd_engine* engine) { return engine->engine->spec().vocab; }
int32_t fd_max_context(const fd_engine* engine) { return engine->engine->max_context(); }
int fd_has_tokenizer(const fd_engine* engine) { return engine->engine->tokenizer() != nullptr; }
const char* fd_tokenizer_missing_reason(const fd_engine* engine) {
  return engine->engine->tokenizer_missing_reason().c_str();
}

static fd_status* CheckArray(const char* name, const void* array, const char* count_name, uint64_t count) {
  if (array != nullptr || count == 0) return nullptr;
  return new fd_status{FD_INVALID_ARGUMENT, absl::StrFormat("%s is NULL, %s %d", name, count_name, count)};
}

fd_status* fd_tokenize(const fd_engine* engine, const char* text, size_t text_bytes, int add_special_tokens,
                       int32_t* ids, size_t capacity, size_t* count) {
  if (fd_status* bad = CheckArray("fd_tokenize: text", text, "text_bytes", text_bytes); bad != nullptr) return bad;
  if (fd_status* bad = CheckArray("fd_tokenize: ids", ids, "capacity", capacity); bad != nullptr) return bad;
  const fastdecode::Tokenizer* tokenizer = engine->engine->tokenizer();
  if (tokenizer == nullptr) return new fd_status{FD_INVALID_ARGUMENT, engine->engine->tokenizer_missing_reason()};
  if (absl::Status bad = fastdecode::Tokenizer::CheckText("text", {text, text_bytes}); !bad.ok()) return ToStatus(bad);
  try {
    const std::vector<int32_t> all = tokenizer->Encode({text, text_bytes}, add_special_tokens != 0);
    *count = all.size();
    for (size_t i = 0; i < all.size() && i < capacity; ++i) ids[i] = all[i];
    return nullptr;
  } catch (const std::bad_alloc&) {
    return new fd_status{FD_RESOURCE_EXHAUSTED, "out of memory for the tokens of a text"};
  }
}

fd_status* fd_detokenize(const fd_engine* engine, const int32_t* ids, size_t count, char** text, size_t* text_bytes) {
  if (fd_status* bad = CheckArray("fd_detokenize: ids", ids, "count", count); bad != nullptr) return bad;
  const fastdecode::Tokenizer* tokenizer = engine->engine->tokenizer();
  if (tokenizer == nullptr) return new fd_status{FD_INVALID_ARGUMENT, engine->engine->tokenizer_missing_reason()};
  try {
    const std::string decoded = tokenizer->Decode({ids, count}, /*skip_special_tokens=*/true);
    *text = CopyString(decoded);
    *text_bytes = decoded.size();
    if (*text != nullptr) return nullptr;
  } catch (const std::bad_alloc&) {
  }
  return new fd_status{FD_RESOURCE_EXHAUSTED, "out of memory for the text of tokens"};
}

void fd_request_init(fd_request* request) {
  *request = fd_request{};
  request->struct_size = sizeof(fd_request);
  request->add_special_tokens = 1;
  request->max_tokens = 16;
  request->temperature = 1;
  request->top_p = 1;
  request->repetition_penalty = 1;
  request->logprobs = -1;
}

// Arrays stay the caller's, but for the biases, which are copied to *biases.
static fastdecode::RequestFields FieldsOf(const fd_request& request, std::vector<fastdecode::LogitBias>* biases) {
  fastdecode::RequestFields fields;
  fields.prompt = request.prompt;
  fields.prompt_bytes = request.prompt_bytes;
  fields.prompt_ids = request.prompt_ids;
  fields.prompt_id_count = request.prompt_id_count;
  fields.add_special_tokens = request.add_special_tokens != 0;
  fields.max_tokens = request.max_tokens;
  fields.min_tokens = request.min_tokens;
  fields.ignore_eos = request.ignore_eos != 0;
  fields.stop_token_ids = request.stop_token_ids;
  fields.stop_token_id_count = request.stop_token_id_count;
  fields.stop = request.stop;
  fields.stop_count = request.stop_count;
  fields.include_stop = request.include_stop != 0;
  fields.temperature = request.temperature;
  fields.top_k = request.top_k;
  fields.top_p = request.top_p;
  fields.min_p = request.min_p;
  fields.repetition_penalty = request.repetition_penalty;
  fields.presence_penalty = request.presence_penalty;
  fields.frequency_penalty = request.frequency_penalty;
  fields.seed = request.seed;
  fields.logprobs = request.logprobs;
  fields.logit_bias_count = request.logit_bias_count;
  if (request.logit_bias != nullptr) {
    for (size_t i = 0; i < request.logit_bias_count; ++i) {
      biases->push_back({request.logit_bias[i].token, request.logit_bias[i].bias});
    }
    fields.logit_bias = biases->data();
  }
  fields.prompt_logits = request.prompt_logits;
  fields.prompt_logits_floats = request.prompt_logits_floats;
  fields.fill_tokens = request.fill_tokens;
  return fields;
}

static fd_status* CheckSize(const fd_request* request) {
  if (request->struct_size == sizeof(fd_request)) return nullptr;
  return new fd_status{FD_INVALID_ARGUMENT, "fd_request.struct_size: not as fd_request_init of this library sets it"};
}

fd_status* fd_request_check(const fd_request* request) {
  if (fd_status* bad = CheckSize(request); bad != nullptr) return bad;
  try {
    std::vector<fastdecode::LogitBias> biases;
    return ToStatus(fastdecode::CheckRequest(FieldsOf(*request, &biases)));
  } catch (const std::bad_alloc&) {
    return new fd_status{FD_RESOURCE_EXHAUSTED, "out of memory for the check of a request"};
  }
}

fd_status* fd_submit(fd_engine* engine, const fd_request* request, uint64_t* id) {
  if (fd_status* bad = CheckSize(request); bad != nullptr) return bad;
  try {
    std::vector<fastdecode::LogitBias> biases;
    return ToStatus(engine->engine->Submit(FieldsOf(*request, &biases), id));
  } catch (const std::bad_alloc&) {
    return new fd_status{FD_RESOURCE_EXHAUSTED, "out of memory for one more request"};
  }
}

void fd_cancel(fd_engine* engine, uint64_t id) { engine->engine->desk().Cancel(id); }

int fd_next(fd_engine* engine, uint64_t id, fd_event* out, int64_t timeout_ns) {
  // Its memory first: an event that was taken would be lost for want of it.
  std::map<uint64_t, Taken> next;
  try {
    next[id];
  } catch (const std::bad_alloc&) {
    return -2;
  }
  Taken& taken = next.begin()->second;
  switch (engine->engine->desk().Next(id, &taken.event, timeout_ns)) {
    case RequestDesk::NextResult::kTimeout:
      return 0;
    case RequestDesk::NextResult::kUnknown: {
      std::lock_guard lock(engine->mutex);
      engine->taken.erase(id);
      return -1;
    }
    case RequestDesk::NextResult::kEvent:
      break;
  }
  const auto& top = taken.event.top_logprobs;
  for (size_t i = 0; i < top.size(); ++i) taken.top[i] = {top[i].token, top[i].logprob};
  FillEvent(id, taken, out);
  std::lock_guard lock(engine->mutex);
  engine->taken.erase(id);
  engine->taken.merge(next);
  return 1;
}

int fd_wait_any(fd_engine* engine, uint64_t* id, int64_t timeout_ns) {
  return engine->engine->desk().WaitAny(id, timeout_ns) ? 1 : 0;
}

void fd_forget(fd_engine* engine, uint64_t id) {
  engine->engine->desk().Forget(id);
  std::lock_guard lock(engine->mutex);
  engine->taken.erase(id);
}

void fd_drain(fd_engine* engine) { engine->engine->desk().Drain(); }

// ---- Recording

struct fd_record {
  std::unique_ptr<RecordReader> reader;
};

fd_status* fd_record_open(fd_engine* engine, fd_record** out) {
  *out = nullptr;
  try {
    *out = new fd_record{engine->engine->OpenRecord()};
    return nullptr;
  } catch (const std::bad_alloc&) {
    return ToStatus(absl::ResourceExhaustedError("no memory for a recording"));
  }
}

fd_status* fd_record_attach(const char* pid_or_socket, fd_record** out) {
  *out = nullptr;
  if (pid_or_socket == nullptr) return new fd_status{FD_INVALID_ARGUMENT, "fd_record_attach: pid_or_socket is NULL"};
  try {
    absl::StatusOr<std::unique_ptr<RecordReader>> reader = RecordReader::Attach(pid_or_socket);
    if (!reader.ok()) return ToStatus(reader.status());
    *out = new fd_record{*std::move(reader)};
    return nullptr;
  } catch (const std::bad_alloc&) {
    return ToStatus(absl::ResourceExhaustedError("no memory for a recording"));
  }
}

char* fd_record_describe(const fd_record* record) {
  return CopyString(record->reader->engine().dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
}

size_t fd_record_read(fd_record* record, fd_record_event* out, size_t capacity, uint64_t* lost, int* ended) {
  // Asked first: what was written before the end is read.
  const bool gone = record->reader->Ended();
  uint64_t missed = 0;
  size_t count = 0;
  for (size_t taken = 1; taken > 0 && count < capacity; count += taken) {
    std::array<fastdecode::RecordEvent, 64> events;
    taken = record->reader->Read(events.data(), std::min(events.size(), capacity - count), &missed);
    // Events have the same layout inside and outside (event_layout.cc).
    if (taken > 0) std::memcpy(out + count, events.data(), taken * sizeof(fd_record_event));
  }
  if (lost != nullptr) *lost += missed;
  if (ended != nullptr && gone) *ended = 1;
  return count;
}

void fd_record_close(fd_record* record) { delete record; }

fd_status* fd_worker_create(const fd_options* options, fd_worker** out) {
  auto worker = std::make_unique<fd_worker>();
  try {
    absl::StatusOr<std::unique_ptr<WorkerProcess>> made = WorkerProcess::Create(WithLog(options, &worker->log));
    if (!made.ok()) return ToStatus(made.status());
    worker->worker = *std::move(made);
  } catch (const std::bad_alloc&) {
    return new fd_status{FD_RESOURCE_EXHAUSTED, "out of memory while the worker was made"};
  } catch (const std::system_error& error) {
    return ToStatus(error);
  }
  *out = worker.release();
  return nullptr;
}

char* fd_worker_describe(const fd_worker* worker) { return CopyString(worker->worker->Describe()); }
fd_status* fd_worker_run(fd_worker* worker) { return ToStatus(worker->worker->Run()); }
void fd_worker_stop(fd_worker* worker) { worker->worker->Stop(); }
void fd_worker_destroy(fd_worker* worker) { delete worker; }

const char* fd_synth_shape_at(size_t index) {
  static const std::vector<std::string> names = fastdecode::ShapeNames();
  return index < names.size() ? names[index].c_str() : nullptr;
}

void fd_synth_init(fd_synth* synth) {
  *synth = fd_synth{};
  synth->struct_size = sizeof(fd_synth);
  synth->seed = 1;
  synth->dtype = "bf16";
  synth->k_outlier_factor = 16;
}

fd_status* fd_synthesize(const fd_synth* synth) {
  if (synth->struct_size != sizeof(fd_synth)) {
    return new fd_status{FD_INVALID_ARGUMENT, "fd_synth.struct_size: not as fd_synth_init of this library sets it"};
  }
  try {
    fastdecode::SynthOptions options;
    const auto text = [](const char* given) { return std::string(given == nullptr ? "" : given); };
    options.shape = text(synth->shape);
    options.layers = synth->layers;
    options.seed = synth->seed;
    options.out_dir = text(synth->out_dir);
    options.k_outliers = synth->k_outliers;
    options.k_outlier_factor = synth->k_outlier_factor;
    const std::string type = text(synth->dtype);
    if (type == "bf16") {
      options.dtype = fastdecode::DType::kBf16;
    } else if (type == "f16") {
      options.dtype = fastdecode::DType::kF16;
    } else if (type == "f32") {
      options.dtype = fastdecode::DType::kF32;
    } else {
      return new fd_status{FD_INVALID_ARGUMENT, "dtype: '" + type + "' is not bf16, f16 or f32"};
    }
    return ToStatus(fastdecode::WriteSynthetic(options, [&](int64_t done, int64_t total) {
      return synth->progress == nullptr ||
             synth->progress(synth->user, static_cast<uint64_t>(done), static_cast<uint64_t>(total)) != 0;
    }));
  } catch (const std::bad_alloc&) {
    return new fd_status{FD_RESOURCE_EXHAUSTED, "out of memory while a checkpoint was written"};
  }
}

}  // extern "C"
