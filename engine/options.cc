#include "engine/options.h"

#include <charconv>
#include <cstring>

#include "absl/strings/str_format.h"

namespace fastdecode {

namespace {

absl::Status Bad(const char* name, const std::string& value, const std::string& allowed) {
  return absl::InvalidArgumentError(absl::StrFormat("--%s: '%s' is not %s", name, value, allowed));
}

template <auto Field>
absl::Status SetText(Options& options, const std::string& value) {
  options.*Field = value;
  return absl::OkStatus();
}

// `name` is repeated here because a table row cannot hand itself to its own setter.
absl::Status ParseInt(const char* name, const std::string& value, int min, int max, int* out) {
  int parsed = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), parsed);
  if (error != std::errc() || end != value.data() + value.size() || parsed < min || parsed > max) {
    return Bad(name, value, absl::StrFormat("a number from %d to %d", min, max));
  }
  *out = parsed;
  return absl::OkStatus();
}

absl::Status ParseBool(const char* name, const std::string& value, bool* out) {
  if (value == "1" || value == "true" || value == "on") {
    *out = true;
  } else if (value == "0" || value == "false" || value == "off") {
    *out = false;
  } else {
    return Bad(name, value, "true or false");
  }
  return absl::OkStatus();
}

absl::Status SetCompute(Options& options, const std::string& value) {
  if (value == "auto") {
    options.compute = Options::Compute::kAuto;
  } else if (value == "bf16") {
    options.compute = Options::Compute::kBf16;
  } else if (value == "f32") {
    options.compute = Options::Compute::kF32;
  } else {
    return Bad("compute", value, "auto, bf16 or f32");
  }
  return absl::OkStatus();
}

absl::Status SetPoll(Options& options, const std::string& value) {
  if (value == "auto") {
    options.poll = Options::Poll::kAuto;
  } else if (value == "spin") {
    options.poll = Options::Poll::kSpin;
  } else if (value == "yield") {
    options.poll = Options::Poll::kYield;
  } else if (value == "always") {
    options.poll = Options::Poll::kAlways;
  } else {
    return Bad("poll", value, "auto, spin, yield or always");
  }
  return absl::OkStatus();
}

absl::Status SetKvGib(Options& options, const std::string& value) {
  double parsed = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), parsed);
  if (error != std::errc() || end != value.data() + value.size() || !(parsed >= 0) || parsed > 1 << 20) {
    return Bad("kv-gib", value, "a number of GiB from 0 to 1048576");
  }
  options.kv_gib = parsed;
  return absl::OkStatus();
}

const OptionRow kRows[] = {
    {"model", "DIR", "", "Hugging Face folder: config.json, safetensors, tokenizer.json", &SetText<&Options::model>},
    {"homes", "LIST", "local",
     "where KV lives: local (one home per NUMA node), local:N, unix:PATH of a worker; comma-separated",
     &SetText<&Options::homes>},
    {"s-cores", "LIST", "", "cores of the S-Part, such as 0,2-5 (default: about half of a node)",
     &SetText<&Options::s_cores>},
    {"r-cores", "LIST", "", "cores of the R-Part's teams (default: the rest)", &SetText<&Options::r_cores>},
    {"s-threads", "N", "0", "threads of the S-Part (0: one per core)",
     [](Options& o, const std::string& v) { return ParseInt("s-threads", v, 0, 1024, &o.s_threads); }},
    {"r-threads", "N", "0", "threads of each home's team (0: one per core)",
     [](Options& o, const std::string& v) { return ParseInt("r-threads", v, 0, 1024, &o.r_threads); }},
    {"micro-batches", "K", "2", "micro-batches in flight; 1 lets S and R wait for each other",
     [](Options& o, const std::string& v) { return ParseInt("micro-batches", v, 1, 16, &o.micro_batches); }},
    {"max-context", "TOKENS", "0", "longest sequence, prompt and answer (0: the model's, at most 8192)",
     [](Options& o, const std::string& v) { return ParseInt("max-context", v, 0, 1 << 20, &o.max_context); }},
    {"max-sequences", "N", "256", "sequences that advance at once, over all micro-batches",
     [](Options& o, const std::string& v) { return ParseInt("max-sequences", v, 1, 16384, &o.max_sequences); }},
    {"prefill-chunk", "TOKENS", "256", "prompt tokens that share one step of a micro-batch",
     [](Options& o, const std::string& v) { return ParseInt("prefill-chunk", v, 1, 8192, &o.prefill_chunk); }},
    {"max-queue", "N", "4096", "requests that may wait; more are refused",
     [](Options& o, const std::string& v) { return ParseInt("max-queue", v, 1, 8192, &o.max_queue); }},
    {"kv-gib", "GIB", "0", "KV memory of each home of this process (0: what max-sequences need, at most a quarter of memory)",
     &SetKvGib},
    {"compute", "TYPE", "auto", "auto (bf16 where the CPU has it), bf16, or f32 (exact)", &SetCompute},
    {"batch-invariant", "BOOL", "false", "one order of summation for every batch size, so that results repeat bit for bit",
     [](Options& o, const std::string& v) { return ParseBool("batch-invariant", v, &o.batch_invariant); }},
    {"isa", "NAME", "auto", "auto, avx2, avx512 or avx512bf16", &SetText<&Options::isa>},
    {"poll", "MODE", "auto",
     "spin, yield (threads share cores), always (spin and never sleep), or auto (spin if there are cores enough)", &SetPoll},
    {"hop-timeout-ms", "MS", "10000", "a home without progress for so long is lost",
     [](Options& o, const std::string& v) { return ParseInt("hop-timeout-ms", v, 10, 3600000, &o.hop_timeout_ms); }},
    {"listen", "unix:PATH", "", "worker: where engines connect", &SetText<&Options::listen>},
    {"fault", "SPEC", "", "inject faults on every link, such as seed=1,drop=0.001 (for tests)", &SetText<&Options::fault>},
};

}  // namespace

const OptionRow* OptionAt(size_t index) { return index < std::size(kRows) ? &kRows[index] : nullptr; }

absl::Status SetOption(Options& options, const std::string& name, const std::string& value) {
  for (const OptionRow& row : kRows) {
    if (name == row.name) return row.set(options, value);
  }
  return absl::InvalidArgumentError(absl::StrFormat("unknown option '%s' (value '%s')", name, value));
}

}  // namespace fastdecode
