// The C interface with the stub engine behind it: programs link this in the place of the engine. Of the interface, it
// has what tools/serve/ and tools/load/ may call.
#include <fastdecode/fastdecode_bench.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "engine/api/sized_struct.h"
#include "nlohmann/json.hpp"
#include "tests/tools/serve/request_defaults.h"
#include "tests/tools/serve/stub_engine.h"
#include "tests/tools/serve/stub_handles.h"

using fastdecode::InitSized;
using fastdecode::IsStructSize;
using fastdecode::ReadSized;
using fastdecode::ReadSizedAt;
using fastdecode::WriteSized;
using fastdecode::stub::Invalid;
using fastdecode::stub::StubEngine;
using fastdecode::stub::StubEvent;
using fastdecode::stub::StubFailure;

struct fd_options {
  std::map<std::string, std::string> values;
  fd_log_sink sink = nullptr;
  void* user = nullptr;
  int level_min = 1;
};

namespace {

constexpr int32_t kLogprobsMax = 20;

const fd_option_info kStubOptions[] = {
    {0, "model", "DIR", "", "a folder, which is not looked into"},
    {0, "need-text", "BOOL", "false", "has no effect here"},
    {0, "max-context", "TOKENS", "8192", "longest sequence, prompt and answer"},
    {0, "max-sequences", "N", "256", "sequences that advance at once"},
    {0, "max-queue", "N", "4096", "requests that wait or run; more are refused"},
    {0, "front-cores", "LIST", "none", "cores that the engine leaves to its caller's threads: a list, auto or none"},
    {0, "stub-pause-us", "US", "1000", "pause before each token that its prompt does not set"},
    {0, "stub-homes-up", "N", "2", "homes that are connected, of two"},
    {0, "stub-max-choices", "N", "128", "the largest n of a request"},
    {0, "stub-tokenizer", "BOOL", "true", "false: the engine takes token ids alone"},
    {0, "stub-chat-template", "BOOL", "true", "false: there is none, and chats cannot be rendered"},
};

char* CopyText(const std::string& text) {
  char* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy != nullptr) std::memcpy(copy, text.c_str(), text.size() + 1);
  return copy;
}

uint64_t NumberOption(const fd_options& options, const std::string& name) {
  const auto given = options.values.find(name);
  std::string text = given == options.values.end() ? "" : given->second;
  for (const fd_option_info& known : kStubOptions) {
    if (text.empty() && name == known.name) text = known.default_value;
  }
  uint64_t number = 0;
  if (!absl::SimpleAtoi(text, &number)) {
    throw StubFailure{FD_INVALID_ARGUMENT, absl::StrFormat("%s: '%s' is no number", name, text)};
  }
  return number;
}

std::string TextOption(const fd_options& options, const std::string& name) {
  const auto given = options.values.find(name);
  return given == options.values.end() ? "" : given->second;
}

StubEngine::Options ReadOptions(const fd_options& given) {
  StubEngine::Options options;
  options.model = TextOption(given, "model");
  struct stat folder = {};
  if (stat(options.model.c_str(), &folder) != 0 || !S_ISDIR(folder.st_mode)) {
    throw StubFailure{FD_NOT_FOUND, absl::StrFormat("model: there is no folder '%s'", options.model)};
  }
  options.max_context = static_cast<uint32_t>(NumberOption(given, "max-context"));
  options.max_sequences = NumberOption(given, "max-sequences");
  options.max_queue = NumberOption(given, "max-queue");
  options.pause_ns = NumberOption(given, "stub-pause-us") * 1000;
  options.homes_up = static_cast<uint32_t>(std::min<uint64_t>(NumberOption(given, "stub-homes-up"), 2));
  options.max_choices = static_cast<uint32_t>(NumberOption(given, "stub-max-choices"));
  options.has_tokenizer = TextOption(given, "stub-tokenizer") != "false";
  options.has_chat_template = TextOption(given, "stub-chat-template") != "false";
  const std::string cores = TextOption(given, "front-cores");
  if (cores.empty() || cores == "none" || cores == "auto") return options;
  for (const absl::string_view core : absl::StrSplit(cores, ',')) {
    int32_t number = 0;
    if (!absl::SimpleAtoi(core, &number)) {
      throw StubFailure{FD_INVALID_ARGUMENT, absl::StrFormat("front-cores: '%s' is no core", core)};
    }
    options.front_cores.push_back(number);
  }
  return options;
}

fd_status* CheckRange(const char* field, double value, double low, double high) {
  if (value >= low && value <= high) return nullptr;  // false for NaN
  return Invalid(absl::StrFormat("%s: %g is not in [%g, %g]", field, value, low, high));
}

fd_status* CheckFields(const fd_request& request) {
  const struct {
    const char* field;
    double value, low, high;
  } ranges[] = {{"temperature", request.temperature, 0, 1e6},
                {"top_k", static_cast<double>(request.top_k), 0, 1e9},
                {"top_p", request.top_p, 1e-6, 1},
                {"min_p", request.min_p, 0, 1},
                {"repetition_penalty", request.repetition_penalty, 1e-6, 1e6},
                {"presence_penalty", request.presence_penalty, -1e6, 1e6},
                {"frequency_penalty", request.frequency_penalty, -1e6, 1e6},
                {"logprobs", static_cast<double>(request.logprobs), -1, kLogprobsMax},
                {"prompt_logprobs", static_cast<double>(request.prompt_logprobs), -1, kLogprobsMax}};
  for (const auto& range : ranges) {
    if (fd_status* bad = CheckRange(range.field, range.value, range.low, range.high); bad != nullptr) return bad;
  }
  if (request.max_tokens == 0 && request.prompt_logprobs < 0) {
    return Invalid("max_tokens: 0 generates nothing, and prompt_logprobs is not asked for");
  }
  if (request.n == 0) return Invalid("n: 0 is not at least 1");
  if (request.cache_salt_bytes > 4096) return Invalid("cache_salt: it has more than 4096 bytes");
  for (size_t i = 0; i < request.stop_count; ++i) {
    if (request.stop[i][0] == 0) return Invalid(absl::StrFormat("stop: string %d is empty", i));
  }
  for (size_t i = 0; i < request.stop_token_id_count; ++i) {
    if (request.stop_token_ids[i] >= 0 && request.stop_token_ids[i] < fastdecode::stub::kVocab) continue;
    return Invalid(absl::StrFormat("stop_token_ids[%d]: %d is not a token id", i, request.stop_token_ids[i]));
  }
  for (size_t i = 0; i < request.logit_bias_count; ++i) {
    if (request.logit_bias[i].token < 0 || request.logit_bias[i].token >= fastdecode::stub::kVocab) {
      return Invalid(absl::StrFormat("logit_bias: %d is not a token id", request.logit_bias[i].token));
    }
  }
  return nullptr;
}

fd_status* NoTokenizer() { return Invalid("text needs a tokenizer, and this stub was told to have none"); }

// The ids of parts; an fd_status if there is something wrong with them.
fd_status* PartIds(const StubEngine& engine, const fd_prompt_part* parts, size_t count, bool add_special,
                   std::vector<int32_t>* ids) {
  if (add_special) ids->push_back(fastdecode::stub::kBos);
  for (size_t i = 0; i < count; ++i) {
    const char* const at = reinterpret_cast<const char*>(parts) + i * parts->struct_size;
    fd_prompt_part part = {};
    const std::string wrong = ReadSizedAt("fd_prompt_part", at, parts->struct_size, &part);
    if (!wrong.empty()) return Invalid(wrong);
    if (part.ids != nullptr) {
      ids->insert(ids->end(), part.ids, part.ids + part.id_count);
    } else if (!engine.options().has_tokenizer) {
      return NoTokenizer();
    } else {
      engine.tokenizer()->Append({part.text == nullptr ? "" : part.text, part.text_bytes}, part.special != 0, ids);
    }
  }
  return nullptr;
}

fd_status* PromptIds(const StubEngine& engine, const fd_request& request, std::vector<int32_t>* ids) {
  const char* field = "prompt";
  if (request.part_count == 0 && request.prompt_ids != nullptr) {
    field = "prompt_ids";
    ids->assign(request.prompt_ids, request.prompt_ids + request.prompt_id_count);
  } else {
    fd_prompt_part whole = {};
    whole.struct_size = sizeof(whole);
    whole.special = 1;
    whole.text = request.prompt;
    whole.text_bytes = request.prompt_bytes;
    const bool in_parts = request.part_count > 0;
    if (fd_status* bad = PartIds(engine, in_parts ? request.parts : &whole, in_parts ? request.part_count : 1,
                                 request.add_special_tokens != 0, ids);
        bad != nullptr) {
      return bad;
    }
  }
  for (size_t i = 0; i < ids->size(); ++i) {
    if ((*ids)[i] < 0 || (*ids)[i] >= fastdecode::stub::kVocab) {
      return Invalid(absl::StrFormat("%s[%d]: %d is not a token id; the vocabulary has %d", field, i, (*ids)[i],
                                     fastdecode::stub::kVocab));
    }
  }
  if (ids->empty()) return Invalid("prompt: it has no tokens; the model needs at least one");
  if (ids->size() < engine.options().max_context) return nullptr;
  return Invalid(absl::StrFormat("%s: %d tokens leave no room in the context of %d (--max-context)", field, ids->size(),
                                 engine.options().max_context));
}

fd_status* Decode(const fd_engine* engine, const int32_t* ids, size_t count, bool special, char** text, size_t* bytes) {
  if (!engine->engine->options().has_tokenizer) return NoTokenizer();
  const std::string decoded = engine->engine->tokenizer()->Decode({ids, count}, special);
  *text = CopyText(decoded);
  *bytes = decoded.size();
  return nullptr;
}

}  // namespace

extern "C" {

uint32_t fd_abi_version(void) { return FD_ABI_VERSION; }
const char* fd_version(void) { return FASTDECODE_VERSION; }

fd_code fd_status_code(const fd_status* status) { return status == nullptr ? FD_OK : status->code; }
const char* fd_status_message(const fd_status* status) { return status == nullptr ? "" : status->message.c_str(); }
void fd_status_destroy(fd_status* status) { delete status; }

int fd_option_at(size_t index, fd_option_info* out) {
  if (!IsStructSize(out->struct_size)) return FD_BAD_STRUCT_SIZE;
  if (index >= std::size(kStubOptions)) return 0;
  WriteSized(kStubOptions[index], out->struct_size, out);
  return 1;
}
fd_options* fd_options_create(void) { return new fd_options; }
void fd_options_destroy(fd_options* options) { delete options; }
fd_status* fd_options_set(fd_options* options, const char* name, const char* value) {
  options->values[name] = value;
  return nullptr;
}
void fd_options_set_log(fd_options* options, fd_log_sink sink, void* user, int level_min) {
  options->sink = sink;
  options->user = user;
  options->level_min = level_min;
}

fd_status* fd_engine_create(const fd_options* options, fd_engine** out) {
  try {
    *out = new fd_engine{std::make_unique<StubEngine>(ReadOptions(*options))};
  } catch (const StubFailure& failure) {
    return new fd_status{failure.code, failure.message};
  }
  if (options->sink != nullptr && options->level_min <= 1) {
    options->sink(options->user, 1, "this is a stub of the engine: it plays what the prompts say");
  }
  return nullptr;
}
void fd_engine_destroy(fd_engine* engine) { delete engine; }
char* fd_engine_describe(const fd_engine* engine) { return CopyText("a stub of the engine"); }
char* fd_engine_stats_json(const fd_engine* engine) {
  return CopyText(nlohmann::json{{"steps", engine->engine->Stats().steps}}.dump());
}
void fd_engine_stats_reset(fd_engine* engine) {}
int fd_engine_stats(const fd_engine* engine, fd_stats* out) {
  if (!IsStructSize(out->struct_size)) return FD_BAD_STRUCT_SIZE;
  WriteSized(engine->engine->Stats(), out->struct_size, out);
  return 0;
}
int fd_engine_home(const fd_engine* engine, size_t index, fd_home_stats* out) {
  if (!IsStructSize(out->struct_size)) return FD_BAD_STRUCT_SIZE;
  fd_home_stats home;
  if (!engine->engine->Home(index, &home)) return 0;
  WriteSized(home, out->struct_size, out);
  return 1;
}
// Of each kind there are as many as its number says, of a quarter of a second.
uint64_t fd_engine_durations(const fd_engine* engine, int duration, const uint64_t* bounds_ns, size_t count,
                             uint64_t* at_most, uint64_t* sum_ns) {
  constexpr uint64_t kNs = 250'000'000;
  const uint64_t durations = static_cast<uint64_t>(duration);
  for (size_t i = 0; i < count; ++i) at_most[i] = bounds_ns[i] < kNs ? 0 : durations;
  *sum_ns = durations * kNs;
  return durations;
}
size_t fd_engine_front_cores(const fd_engine* engine, int32_t* cores, size_t capacity) {
  const std::vector<int32_t>& all = engine->engine->options().front_cores;
  std::copy_n(all.begin(), std::min(capacity, all.size()), cores);
  return all.size();
}
char* fd_engine_pages_json(fd_engine* engine) { return CopyText("{}"); }
void fd_string_free(char* text) { std::free(text); }

int32_t fd_vocab_size(const fd_engine* engine) { return fastdecode::stub::kVocab; }
int32_t fd_max_context(const fd_engine* engine) { return static_cast<int32_t>(engine->engine->options().max_context); }
uint32_t fd_max_choices(const fd_engine* engine) { return engine->engine->options().max_choices; }
int fd_has_tokenizer(const fd_engine* engine) { return engine->engine->options().has_tokenizer ? 1 : 0; }
const char* fd_tokenizer_missing_reason(const fd_engine* engine) {
  return engine->engine->options().has_tokenizer ? "" : "this stub was told to have none";
}
fd_status* fd_tokenize(const fd_engine* engine, const fd_prompt_part* parts, size_t part_count, int add_special_tokens,
                       int32_t* ids, size_t capacity, size_t* count) {
  std::vector<int32_t> all;
  if (fd_status* bad = PartIds(*engine->engine, parts, part_count, add_special_tokens != 0, &all); bad != nullptr) {
    return bad;
  }
  *count = all.size();
  std::copy_n(all.begin(), std::min(capacity, all.size()), ids);
  return nullptr;
}
fd_status* fd_detokenize(const fd_engine* engine, const int32_t* ids, size_t count, char** text, size_t* text_bytes) {
  return Decode(engine, ids, count, /*special=*/false, text, text_bytes);
}
fd_status* fd_detokenize_special(const fd_engine* engine, const int32_t* ids, size_t count, char** text,
                                 size_t* text_bytes) {
  return Decode(engine, ids, count, /*special=*/true, text, text_bytes);
}
size_t fd_token_bytes(const fd_engine* engine, int32_t id, char* bytes, size_t capacity) {
  if (!engine->engine->options().has_tokenizer) return 0;
  const std::string all = engine->engine->tokenizer()->BytesOf(id);
  std::copy_n(all.data(), std::min(capacity, all.size()), bytes);
  return all.size();
}
char* fd_model_describe(const fd_engine* engine) {
  using fastdecode::stub::kBos;
  using fastdecode::stub::kEos;
  const StubEngine::Options& options = engine->engine->options();
  const nlohmann::json model = {{"model", options.model},
                                {"architecture", "StubForCausalLM"},
                                {"vocab_size", fastdecode::stub::kVocab},
                                {"max_context", options.max_context},
                                {"tokenizer_file", "tokenizer.json"},
                                {"bos_token", "<s>"},
                                {"bos_token_id", kBos},
                                {"eos_token", "</s>"},
                                {"eos_token_id", kEos},
                                {"stop_token_ids", {kEos}},
                                {"add_bos_token", true},
                                {"add_eos_token", false}};
  return CopyText(model.dump());
}

void fd_request_init(fd_request* request, size_t bytes) { InitSized(DocumentedDefaults(), bytes, request); }
int fd_default_sampling(const fd_engine* engine, fd_request* request) {
  return IsStructSize(request->struct_size) ? 0 : FD_BAD_STRUCT_SIZE;
}
fd_status* fd_request_check(const fd_request* request) {
  fd_request known = DocumentedDefaults();
  const std::string wrong = ReadSized("fd_request", request, &known);
  return wrong.empty() ? CheckFields(known) : Invalid(wrong);
}
fd_status* fd_submit(fd_engine* engine, const fd_request* request, uint64_t* id) {
  fd_request known = DocumentedDefaults();
  const std::string wrong = ReadSized("fd_request", request, &known);
  if (!wrong.empty()) return Invalid(wrong);
  if (fd_status* bad = CheckFields(known); bad != nullptr) return bad;
  std::vector<int32_t> prompt;
  if (fd_status* bad = PromptIds(*engine->engine, known, &prompt); bad != nullptr) return bad;
  try {
    *id = engine->engine->Submit(known, std::move(prompt));
    return nullptr;
  } catch (const StubFailure& failure) {
    return new fd_status{failure.code, failure.message};
  }
}
void fd_bench_request_init(fd_bench_request* request, size_t bytes) { InitSized(fd_bench_request{}, bytes, request); }
fd_status* fd_bench_submit(fd_engine* engine, const fd_request* request, const fd_bench_request* bench, uint64_t* id) {
  if (bench->fill_tokens > 0) return Invalid("fill_tokens: this stub has no KV to fill");
  return fd_submit(engine, request, id);
}
void fd_cancel(fd_engine* engine, uint64_t id) { engine->engine->Cancel(id); }
void fd_forget(fd_engine* engine, uint64_t id) { engine->engine->Forget(id); }

int fd_poll(fd_engine* engine, fd_event* out, size_t capacity, int64_t timeout_ns) {
  if (capacity == 0) return 0;
  const size_t bytes = out->struct_size;
  if (!IsStructSize(bytes)) return FD_BAD_STRUCT_SIZE;
  const std::vector<StubEvent>& events = engine->engine->Poll(capacity, timeout_ns);
  char* at = reinterpret_cast<char*>(out);
  for (const StubEvent& event : events) {
    WriteSized(event.View(), bytes, at);
    at += bytes;
  }
  return static_cast<int>(events.size());
}
int fd_engine_event_fd(fd_engine* engine) { return engine->engine->event_fd(); }
size_t fd_drain(fd_engine* engine, int64_t timeout_ns) { return engine->engine->Drain(timeout_ns); }

}  // extern "C"
