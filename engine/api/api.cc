// The C interface: thin, and the only place where Abseil's types meet C.
#include <fastdecode/fastdecode.h>
#include <fastdecode/fastdecode_bench.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/str_format.h"
#include "engine/api/handles.h"
#include "engine/api/read_request.h"
#include "engine/api/sized_struct.h"
#include "engine/api/status.h"
#include "engine/api/to_event.h"
#include "engine/request/build_request.h"
#include "engine/start/engine.h"
#include "engine/start/options.h"
#include "engine/start/worker_process.h"

using fastdecode::CopyString;
using fastdecode::DefaultRequest;
using fastdecode::Engine;
using fastdecode::GivenRequest;
using fastdecode::IsStructSize;
using fastdecode::LogLevel;
using fastdecode::Options;
using fastdecode::ReadParts;
using fastdecode::ReadRequest;
using fastdecode::ReadSized;
using fastdecode::RecordReader;
using fastdecode::RequestDesk;
using fastdecode::RequestFields;
using fastdecode::RequestFinish;
using fastdecode::TakenEvent;
using fastdecode::ToEvent;
using fastdecode::ToStatus;
using fastdecode::WorkerProcess;
using fastdecode::WriteSized;

namespace {

constexpr size_t kRecordedMax = 1 << 20;  // events that fd_record_read gives at once

// What make() says; null where there is no memory for it.
template <class Make>
char* TextOf(Make&& make) {
  try {
    return CopyString(make());
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
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

}  // namespace

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
  if (!IsStructSize(out->struct_size)) return FD_BAD_STRUCT_SIZE;
  const fastdecode::OptionRow* row = fastdecode::OptionAt(index);
  if (row == nullptr) return 0;
  fd_option_info info;
  std::memset(&info, 0, sizeof(info));  // with what lies between the fields
  info.name = row->name;
  info.value_name = row->value_name;
  info.default_value = row->default_value;
  info.help = row->help;
  WriteSized(info, out->struct_size, out);
  return 1;
}

fd_options* fd_options_create(void) { return new (std::nothrow) fd_options; }
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
  try {
    auto engine = std::make_unique<fd_engine>();
    absl::StatusOr<std::unique_ptr<Engine>> made = Engine::Create(WithLog(options, &engine->log));
    if (!made.ok()) return ToStatus(made.status());
    engine->engine = *std::move(made);
    *out = engine.release();
    return nullptr;
  } catch (const std::bad_alloc&) {
    return new fd_status{FD_RESOURCE_EXHAUSTED, "out of memory while the engine was made"};
  } catch (const std::system_error& error) {
    return ToStatus(error);
  }
}

void fd_engine_destroy(fd_engine* engine) { delete engine; }
char* fd_engine_describe(const fd_engine* engine) {
  return TextOf([&] { return engine->engine->Describe(); });
}
char* fd_engine_stats_json(const fd_engine* engine) {
  return TextOf([&] { return engine->engine->StatisticsJson(); });
}
void fd_engine_stats_reset(fd_engine* engine) { engine->engine->ResetStatistics(); }
int fd_engine_stats(const fd_engine* engine, fd_stats* out) {
  if (!IsStructSize(out->struct_size)) return FD_BAD_STRUCT_SIZE;
  fastdecode::EngineCounts counts;
  try {
    counts = engine->engine->Counts();
  } catch (const std::bad_alloc&) {
    return FD_NO_MEMORY;
  }
  fd_stats stats = {};
  stats.homes = counts.homes;
  stats.homes_up = counts.homes_up;
  stats.draining = counts.desk.draining;
  stats.requests_running = counts.running;
  stats.requests_waiting = counts.desk.running - counts.running;
  stats.requests_undelivered = counts.desk.undelivered;
  stats.requests_submitted = counts.desk.submitted;
  stats.requests_refused = counts.desk.refused;
  const auto finished = [&](RequestFinish finish) { return counts.desk.finished[static_cast<size_t>(finish)]; };
  stats.finished_stop = finished(RequestFinish::kStop);
  stats.finished_length = finished(RequestFinish::kLength);
  stats.finished_cancelled = finished(RequestFinish::kCancelled);
  stats.finished_error = finished(RequestFinish::kError);
  stats.finished_deadline = finished(RequestFinish::kDeadline);
  stats.prompt_tokens = counts.desk.prompt_tokens;
  stats.generated_tokens = counts.desk.generated_tokens;
  stats.preemptions = counts.preemptions;
  stats.steps = counts.steps;
  stats.rows = counts.rows;
  stats.hops = counts.hops;
  stats.s_busy_ns = counts.s_busy_ns;
  stats.kv_pages = counts.kv_pages;
  stats.kv_pages_used = counts.kv_pages_used;
  stats.now_ns = counts.now_ns;
  stats.created_ns = counts.created_ns;
  stats.last_step_ns = counts.last_step_ns;
  stats.recoveries = counts.recoveries;
  stats.recovered = counts.recovered;
  stats.choices_running = counts.running_answers;
  stats.choices_waiting = counts.desk.running_answers - counts.running_answers;
  stats.prefix_tokens = counts.prefix_tokens;
  stats.cached_tokens = counts.cached_tokens;
  stats.kv_pages_cached = counts.kv_pages_cached;
  WriteSized(stats, out->struct_size, out);
  return 0;
}
int fd_engine_home(const fd_engine* engine, size_t index, fd_home_stats* out) {
  if (!IsStructSize(out->struct_size)) return FD_BAD_STRUCT_SIZE;
  if (index >= engine->engine->home_count()) return 0;
  const fastdecode::EngineHomeCounts counts = engine->engine->CountsOfHome(index);
  fd_home_stats stats = {};
  stats.up = counts.up;
  stats.name = counts.name;
  stats.hops = counts.hops;
  stats.work_ns = counts.work_ns;
  stats.last_reply_ns = counts.last_reply_ns;
  stats.losses = counts.losses;
  stats.kv_pages = counts.kv_pages;
  stats.kv_pages_used = counts.kv_pages_used;
  stats.cached_tokens = counts.cached_tokens;
  stats.kv_pages_cached = counts.kv_pages_cached;
  WriteSized(stats, out->struct_size, out);
  return 1;
}
uint64_t fd_engine_durations(const fd_engine* engine, int duration, const uint64_t* bounds_ns, size_t count,
                             uint64_t* at_most, uint64_t* sum_ns) {
  const fastdecode::PipelineStatistics& statistics = engine->engine->statistics();
  const fastdecode::DurationHistogram* const durations =
      duration == FD_DURATION_RECOVERY         ? &statistics.recovery_ns
      : duration == FD_DURATION_RECOVERY_QUEUE ? &statistics.recovery_queue_ns
      : duration == FD_DURATION_LOSS_DETECTION ? &statistics.loss_detection_ns
                                               : nullptr;
  return fastdecode::CountDurations(durations, {bounds_ns, count}, at_most, sum_ns);
}
size_t fd_engine_front_cores(const fd_engine* engine, int32_t* cores, size_t capacity) {
  const std::vector<int>& all = engine->engine->front_cores();
  if (cores != nullptr) std::copy_n(all.begin(), std::min(capacity, all.size()), cores);
  return all.size();
}
char* fd_engine_pages_json(fd_engine* engine) {
  return TextOf([&] { return engine->engine->PagesJson(); });
}
void fd_string_free(char* text) { std::free(text); }

int32_t fd_vocab_size(const fd_engine* engine) { return engine->engine->spec().vocab; }
int32_t fd_max_context(const fd_engine* engine) { return engine->engine->max_context(); }
uint32_t fd_max_choices(const fd_engine* engine) { return engine->engine->max_answers(); }
int fd_has_tokenizer(const fd_engine* engine) { return engine->engine->tokenizer() != nullptr; }
const char* fd_tokenizer_missing_reason(const fd_engine* engine) {
  return engine->engine->tokenizer_missing_reason().c_str();
}

static fd_status* CheckArray(const char* name, const void* array, const char* count_name, uint64_t count) {
  if (array != nullptr || count == 0) return nullptr;
  return new fd_status{FD_INVALID_ARGUMENT, absl::StrFormat("%s is NULL, %s %d", name, count_name, count)};
}

fd_status* fd_tokenize(const fd_engine* engine, const fd_prompt_part* parts, size_t part_count, int add_special_tokens,
                       int32_t* ids, size_t capacity, size_t* count) {
  if (fd_status* bad = CheckArray("fd_tokenize: parts", parts, "part_count", part_count); bad != nullptr) return bad;
  if (fd_status* bad = CheckArray("fd_tokenize: ids", ids, "capacity", capacity); bad != nullptr) return bad;
  try {
    std::vector<RequestFields::Part> copies;
    if (fd_status* bad = ReadParts(parts, part_count, &copies); bad != nullptr) return bad;
    const absl::StatusOr<std::vector<int32_t>> all = engine->engine->Tokenize(copies, add_special_tokens != 0);
    if (!all.ok()) return ToStatus(all.status());
    *count = all->size();
    std::copy_n(all->begin(), std::min(capacity, all->size()), ids);
    return nullptr;
  } catch (const std::bad_alloc&) {
    return new fd_status{FD_RESOURCE_EXHAUSTED, "out of memory for the tokens of a text"};
  }
}

static fd_status* Detokenize(const char* ids_name, bool skip_special_tokens, const fd_engine* engine,
                             const int32_t* ids, size_t count, char** text, size_t* text_bytes) {
  if (fd_status* bad = CheckArray(ids_name, ids, "count", count); bad != nullptr) return bad;
  const fastdecode::Tokenizer* tokenizer = engine->engine->tokenizer();
  if (tokenizer == nullptr) return new fd_status{FD_INVALID_ARGUMENT, engine->engine->tokenizer_missing_reason()};
  try {
    const std::string decoded = tokenizer->Decode({ids, count}, skip_special_tokens);
    *text = CopyString(decoded);
    *text_bytes = decoded.size();
    if (*text != nullptr) return nullptr;
  } catch (const std::bad_alloc&) {
  }
  return new fd_status{FD_RESOURCE_EXHAUSTED, "out of memory for the text of tokens"};
}

fd_status* fd_detokenize(const fd_engine* engine, const int32_t* ids, size_t count, char** text, size_t* text_bytes) {
  return Detokenize("fd_detokenize: ids", /*skip_special_tokens=*/true, engine, ids, count, text, text_bytes);
}

fd_status* fd_detokenize_special(const fd_engine* engine, const int32_t* ids, size_t count, char** text,
                                 size_t* text_bytes) {
  return Detokenize("fd_detokenize_special: ids", /*skip_special_tokens=*/false, engine, ids, count, text, text_bytes);
}

size_t fd_token_bytes(const fd_engine* engine, int32_t id, char* bytes, size_t capacity) {
  const fastdecode::Tokenizer* tokenizer = engine->engine->tokenizer();
  if (tokenizer == nullptr) return 0;
  try {
    const std::string all = tokenizer->TokenBytes(id);
    if (bytes != nullptr) std::copy_n(all.begin(), std::min(capacity, all.size()), bytes);
    return all.size();
  } catch (const std::bad_alloc&) {
    return 0;
  }
}

char* fd_model_describe(const fd_engine* engine) {
  return TextOf([&] { return engine->engine->DescribeModel(); });
}

void fd_request_init(fd_request* request, size_t bytes) { fastdecode::InitSized(DefaultRequest(), bytes, request); }

int fd_default_sampling(const fd_engine* engine, fd_request* request) {
  fd_request changed = DefaultRequest();
  if (!ReadSized("fd_request", request, &changed).empty()) return FD_BAD_STRUCT_SIZE;  // fd_submit says what is wrong
  const fastdecode::SamplingDefaults& defaults = engine->engine->spec().sampling;
  changed.temperature = defaults.temperature.value_or(changed.temperature);
  changed.top_k = defaults.top_k.value_or(changed.top_k);
  changed.top_p = defaults.top_p.value_or(changed.top_p);
  changed.min_p = defaults.min_p.value_or(changed.min_p);
  changed.repetition_penalty = defaults.repetition_penalty.value_or(changed.repetition_penalty);
  WriteSized(changed, request->struct_size, request);
  return 0;
}

fd_status* fd_request_check(const fd_request* request) {
  try {
    GivenRequest given;
    if (fd_status* bad = ReadRequest(request, &given); bad != nullptr) return bad;
    return ToStatus(fastdecode::CheckRequest(given.fields));
  } catch (const std::bad_alloc&) {
    return new fd_status{FD_RESOURCE_EXHAUSTED, "out of memory for the check of a request"};
  }
}

static fd_status* Submit(fd_engine* engine, const fd_request* request, const fd_bench_request& bench, uint64_t* id) {
  try {
    GivenRequest given;
    if (fd_status* bad = ReadRequest(request, &given); bad != nullptr) return bad;
    given.fields.fill_tokens = bench.fill_tokens;
    given.fields.prompt_logits = bench.prompt_logits;
    given.fields.prompt_logits_floats = bench.prompt_logits_floats;
    return ToStatus(engine->engine->Submit(given.fields, id));
  } catch (const std::bad_alloc&) {
    return new fd_status{FD_RESOURCE_EXHAUSTED, "out of memory for one more request"};
  }
}

fd_status* fd_submit(fd_engine* engine, const fd_request* request, uint64_t* id) {
  return Submit(engine, request, fd_bench_request{}, id);
}

void fd_bench_request_init(fd_bench_request* request, size_t bytes) {
  fastdecode::InitSized(fd_bench_request{}, bytes, request);
}

fd_status* fd_bench_submit(fd_engine* engine, const fd_request* request, const fd_bench_request* bench, uint64_t* id) {
  fd_bench_request known = {};
  if (fd_status* bad = ToStatus(ReadSized("fd_bench_request", bench, &known)); bad != nullptr) return bad;
  return Submit(engine, request, known, id);
}

void fd_cancel(fd_engine* engine, uint64_t id) { engine->engine->desk().Cancel(id); }

int fd_next(fd_engine* engine, uint64_t id, fd_event* out, int64_t timeout_ns) {
  if (!IsStructSize(out->struct_size)) return FD_BAD_STRUCT_SIZE;
  TakenEvent taken;
  switch (engine->engine->desk().Next(id, &taken, timeout_ns)) {
    case RequestDesk::NextResult::kTimeout:
      return FD_TIMEOUT;
    case RequestDesk::NextResult::kUnknown:
      return FD_UNKNOWN_REQUEST;
    case RequestDesk::NextResult::kEvent:
      break;
  }
  WriteSized(ToEvent(taken), out->struct_size, out);
  return 1;
}

int fd_poll(fd_engine* engine, fd_event* out, size_t capacity, int64_t timeout_ns) {
  if (capacity == 0) return 0;
  const size_t bytes = out->struct_size;
  if (!IsStructSize(bytes)) return FD_BAD_STRUCT_SIZE;
  try {
    engine->engine->desk().Poll(capacity, timeout_ns, &engine->polled);
  } catch (const std::bad_alloc&) {
    return FD_NO_MEMORY;
  }
  char* at = reinterpret_cast<char*>(out);
  for (const TakenEvent& taken : engine->polled) {
    WriteSized(ToEvent(taken), bytes, at);
    at += bytes;
  }
  return static_cast<int>(engine->polled.size());
}

int fd_engine_event_fd(fd_engine* engine) { return engine->engine->desk().EventFd(); }

void fd_forget(fd_engine* engine, uint64_t id) { engine->engine->desk().Forget(id); }

size_t fd_drain(fd_engine* engine, int64_t timeout_ns) { return engine->engine->desk().Drain(timeout_ns); }

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
  return TextOf(
      [&] { return record->reader->engine().dump(-1, ' ', false, nlohmann::json::error_handler_t::replace); });
}

int fd_record_read(fd_record* record, fd_record_event* out, size_t capacity, uint64_t* lost, int* ended) {
  if (capacity == 0) return 0;
  const size_t bytes = out->struct_size;
  if (!IsStructSize(bytes)) return FD_BAD_STRUCT_SIZE;
  capacity = std::min(capacity, kRecordedMax);
  // Asked first: what was written before the end is read.
  const bool gone = record->reader->Ended();
  uint64_t missed = 0;
  size_t count = 0;
  char* at = reinterpret_cast<char*>(out);
  for (size_t taken = 1; taken > 0 && count < capacity; count += taken) {
    std::array<fastdecode::RecordEvent, 64> events;
    taken = record->reader->Read(events.data(), std::min(events.size(), capacity - count), &missed);
    for (size_t i = 0; i < taken; ++i, at += bytes) {
      fd_record_event event;  // laid out as it is inside (event_layout.cc)
      std::memcpy(&event, &events[i], sizeof(event));
      WriteSized(event, bytes, at);
    }
  }
  if (lost != nullptr) *lost += missed;
  if (ended != nullptr && gone) *ended = 1;
  return static_cast<int>(count);
}

void fd_record_close(fd_record* record) { delete record; }

fd_status* fd_worker_create(const fd_options* options, fd_worker** out) {
  try {
    auto worker = std::make_unique<fd_worker>();
    absl::StatusOr<std::unique_ptr<WorkerProcess>> made = WorkerProcess::Create(WithLog(options, &worker->log));
    if (!made.ok()) return ToStatus(made.status());
    worker->worker = *std::move(made);
    *out = worker.release();
    return nullptr;
  } catch (const std::bad_alloc&) {
    return new fd_status{FD_RESOURCE_EXHAUSTED, "out of memory while the worker was made"};
  } catch (const std::system_error& error) {
    return ToStatus(error);
  }
}

char* fd_worker_describe(const fd_worker* worker) {
  return TextOf([&] { return worker->worker->Describe(); });
}
fd_status* fd_worker_run(fd_worker* worker) { return ToStatus(worker->worker->Run()); }
void fd_worker_stop(fd_worker* worker) { worker->worker->Stop(); }
void fd_worker_drain(fd_worker* worker) { worker->worker->Drain(); }
void fd_worker_destroy(fd_worker* worker) { delete worker; }

}  // extern "C"
