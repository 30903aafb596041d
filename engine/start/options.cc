#include "engine/start/options.h"

#include <charconv>
#include <cstring>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "engine/pipeline/statistics.h"
#include "rdma/endpoint.h"
#include "rdma/fault_link.h"

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
  const std::string word = absl::AsciiStrToLower(value);  // Python writes True
  if (word == "1" || word == "true" || word == "on" || word == "yes") {
    *out = true;
  } else if (word == "0" || word == "false" || word == "off" || word == "no") {
    *out = false;
  } else {
    return Bad(name, value, "true or false");
  }
  return absl::OkStatus();
}

absl::Status SetHomes(Options& options, const std::string& value) {
  const absl::Status parsed = ParseEndpoints("--homes", value).status();
  if (!parsed.ok()) return parsed;
  return SetText<&Options::homes>(options, value);
}

absl::Status SetListen(Options& options, const std::string& value) {
  const absl::Status parsed =
      value.empty() ? absl::OkStatus() : ParseEndpoint("--listen", value, EndpointUse::kListen).status();
  if (!parsed.ok()) return parsed;
  return SetText<&Options::listen>(options, value);
}

absl::Status SetFault(Options& options, const std::string& value) {
  const absl::Status parsed = value.empty() ? absl::OkStatus() : ParseFaultOptions("--fault", value).status();
  if (!parsed.ok()) return parsed;
  return SetText<&Options::fault>(options, value);
}

absl::Status SetIsa(Options& options, const std::string& value) {
  Isa isa = Isa::kNone;
  if (value != "auto" && !ParseIsa(value, &isa)) {
    return Bad("isa", value, "auto, avx2, avx512, avx512vnni, avx512bf16 or amx");
  }
  options.isa = isa;
  return absl::OkStatus();
}

absl::Status SetCompute(Options& options, const std::string& value) {
  if (value == "auto") {
    options.compute = Options::Compute::kAuto;
  } else if (value == "bf16") {
    options.compute = Options::Compute::kBf16;
  } else if (value == "fp16") {
    options.compute = Options::Compute::kFp16;
  } else if (value == "f32") {
    options.compute = Options::Compute::kF32;
  } else {
    return Bad("compute", value, "auto, bf16, fp16 or f32");
  }
  return absl::OkStatus();
}

absl::Status SetSPart(Options& options, const std::string& value) {
  if (value == "auto") {
    options.spart = Options::SPartBackend::kAuto;
  } else if (value == "cpu") {
    options.spart = Options::SPartBackend::kCpu;
  } else if (value == "cuda") {
    options.spart = Options::SPartBackend::kCuda;
  } else {
    return Bad("spart", value, "auto, cpu or cuda");
  }
  return absl::OkStatus();
}

absl::Status SetCorePlan(Options& options, const std::string& value) {
  if (value == "auto") {
    options.core_plan = Options::CorePlanMode::kAuto;
  } else if (value == "split") {
    options.core_plan = Options::CorePlanMode::kSplit;
  } else if (value == "shared") {
    options.core_plan = Options::CorePlanMode::kShared;
  } else {
    return Bad("core-plan", value, "auto, split or shared");
  }
  return absl::OkStatus();
}

// Which cores there are is seen when an engine is made.
absl::Status SetFrontCores(Options& options, const std::string& value) {
  const bool is_list = !value.empty() && value.find_first_not_of("0123456789,-") == std::string::npos;
  if (!is_list && value != "auto" && value != "none") {
    return Bad("front-cores", value, "auto, none or a list of cores such as 0,2-5");
  }
  return SetText<&Options::front_cores>(options, value);
}

absl::Status SetMicroBatches(Options& options, const std::string& value) {
  int count = 0;
  if (value != "auto" && !ParseInt("micro-batches", value, 1, 16, &count).ok()) {
    return Bad("micro-batches", value, "auto or a number from 1 to 16");
  }
  options.micro_batches = count;
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

absl::Status ParseGib(const char* option, const std::string& value, double* gib) {
  double parsed = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), parsed);
  if (error != std::errc() || end != value.data() + value.size() || !(parsed >= 0) || parsed > 1 << 20) {
    return Bad(option, value, "a number of GiB from 0 to 1048576");
  }
  *gib = parsed;
  return absl::OkStatus();
}

absl::Status SetFabricText(std::string& field, const std::string& value) {
  field = value;
  return absl::OkStatus();
}

absl::Status SetRdmaMtu(Options& options, const std::string& value) {
  int mtu = 0;
  if (absl::Status status = ParseInt("rdma-mtu", value, 0, 4096, &mtu); !status.ok()) return status;
  if (mtu != 0 && (mtu < 256 || (mtu & (mtu - 1)) != 0))
    return Bad("rdma-mtu", value, "0, 256, 512, 1024, 2048 or 4096");
  options.fabric.mtu = mtu;
  return absl::OkStatus();
}

absl::Status SetKvType(Options& options, const std::string& value) {
  options.kv_type.reset();
  if (value == "auto") return absl::OkStatus();
  for (const KvType type : kKvTypes) {
    if (value == KvTypeName(type)) options.kv_type = type;
  }
  return options.kv_type.has_value() ? absl::OkStatus() : Bad("kv-type", value, "auto, f32, bf16, fp16, int8 or int4");
}

absl::Status SetPeerTimeout(Options& options, const std::string& value) {
  int milliseconds = 0;
  if (absl::Status status = ParseInt("peer-timeout-ms", value, 200, 3600000, &milliseconds); !status.ok())
    return status;
  options.fabric.heartbeat_timeout_ns = static_cast<uint64_t>(milliseconds) * 1'000'000;
  return absl::OkStatus();
}

const OptionRow kRows[] = {
    {"model", "DIR", "", "Hugging Face folder: config.json, safetensors, tokenizer files", &SetText<&Options::model>},
    {"need-text", "BOOL", "false", "refuse a model whose tokenizer cannot be read, which could run on token ids alone",
     [](Options& o, const std::string& v) { return ParseBool("need-text", v, &o.need_text); }},
    {"chat-template", "FILE", "", "Jinja template that makes prompts of chats, in place of the folder's",
     &SetText<&Options::chat_template>},
    {"homes", "LIST", "local",
     "where KV lives: local (one home per NUMA node), local:N, gpu (with --spart cuda), unix:PATH or HOST:PORT of a "
     "worker; comma-separated",
     &SetHomes},
    {"homes-min", "N", "0",
     "start once N of what --homes lists are there, each with a home or more, and take the others in when they come "
     "(0: all must be there, with all their homes)",
     [](Options& o, const std::string& v) { return ParseInt("homes-min", v, 0, kMaxHomes, &o.homes_min); }},
    {"core-plan", "PLAN", "auto",
     "shared (one team on every core does the work of the S-Part and of the homes of this process), split (each has "
     "cores of its own, and micro-batches alternate), or auto (shared if the S-Part is on the CPU, a home in this "
     "process, and neither another process nor a CPU quota leaves it less than its cores, unless cores, threads or "
     "micro-batches are given, or max-sequences is more than 8192)",
     &SetCorePlan},
    {"s-cores", "LIST", "", "cores of the S-Part, such as 0,2-5 (default: all if shared, else about half of a node)",
     &SetText<&Options::s_cores>},
    {"r-cores", "LIST", "",
     "cores of the R-Part's teams (default: all if shared, else the rest); if shared, some of the S-Part's",
     &SetText<&Options::r_cores>},
    {"front-cores", "LIST", "none",
     "cores that are left to the caller's threads: a list, none, or auto (a physical core of the S-Part's node if the "
     "process may use four or more, else none)",
     &SetFrontCores},
    {"s-threads", "N", "0", "threads of the S-Part (0: one per core)",
     [](Options& o, const std::string& v) { return ParseInt("s-threads", v, 0, 1024, &o.s_threads); }},
    {"r-threads", "N", "0",
     "threads of each home's team (0: one per core); if shared, so many of the S-Part's at most attend for a home",
     [](Options& o, const std::string& v) { return ParseInt("r-threads", v, 0, 1024, &o.r_threads); }},
    {"micro-batches", "K", "auto",
     "micro-batches in flight; 1 lets S and R wait for each other; auto: 1 if one team does all, else 1 or 2, by what "
     "steps cost",
     &SetMicroBatches},
    {"calibration", "FILE", "",
     "what 'fastdecode calibrate' has measured of such an engine on this machine: what the step model reckons with "
     "(without: what read rates say, and then what steps take)",
     &SetText<&Options::calibration>},
    {"max-context", "TOKENS", "0", "longest sequence, prompt and answer (0: the model's, at most 8192)",
     [](Options& o, const std::string& v) { return ParseInt("max-context", v, 0, 1 << 20, &o.max_context); }},
    {"max-sequences", "N", "256", "sequences that advance at once, over all micro-batches",
     [](Options& o, const std::string& v) { return ParseInt("max-sequences", v, 1, 16384, &o.max_sequences); }},
    {"prefill-chunk", "TOKENS", "256", "prompt tokens that share one step of a micro-batch",
     [](Options& o, const std::string& v) { return ParseInt("prefill-chunk", v, 1, 8192, &o.prefill_chunk); }},
    // With the most of max-sequences, no larger power of two fits the pipeline's event queue.
    {"max-queue", "N", "4096", "requests that wait or run, each of several answers counted; more are refused",
     [](Options& o, const std::string& v) { return ParseInt("max-queue", v, 1, 8192, &o.max_queue); }},
    {"prefix-cache", "BOOL", "on",
     "whether pages of prompts and answers are kept after their request has ended, for later requests whose prompt "
     "begins alike",
     [](Options& o, const std::string& v) { return ParseBool("prefix-cache", v, &o.prefix_cache); }},
    {"kv-gib", "GIB", "0",
     "KV memory of each home of this process (0: what max-sequences need, at most a quarter of memory and of its "
     "node's)",
     [](Options& o, const std::string& v) { return ParseGib("kv-gib", v, &o.kv_gib); }},
    {"gpu-kv-gib", "GIB", "0",
     "KV memory of the GPU as a home (0: what max-sequences need, at most what is free but for 1 GiB and graphs)",
     [](Options& o, const std::string& v) { return ParseGib("gpu-kv-gib", v, &o.gpu_kv_gib); }},
    {"spart", "BACKEND", "auto", "where the S-Part runs: cpu, cuda, or auto (cuda if there is a GPU)", &SetSPart},
    {"gpu", "N", "0", "the S-Part's GPU, as CUDA counts them",
     [](Options& o, const std::string& v) { return ParseInt("gpu", v, 0, 1023, &o.gpu); }},
    {"cuda-module", "FILE", "",
     "the module for GPUs (default: libfastdecode_cuda.so beside this program, or in ../lib/fastdecode from there)",
     &SetText<&Options::cuda_module>},
    {"gpu-wait-ms", "MS", "30000",
     "the GPU waits no longer for a layer's replies, slow homes' included, nor the host for the GPU (but at least "
     "60 s); more than --hop-timeout-ms",
     [](Options& o, const std::string& v) { return ParseInt("gpu-wait-ms", v, 10, 3600000, &o.gpu_wait_ms); }},
    {"gpudirect", "BOOL", "false", "RDMA devices read and write the GPU's memory, not the host's",
     [](Options& o, const std::string& v) { return ParseBool("gpudirect", v, &o.gpudirect); }},
    {"compute", "TYPE", "auto", "auto (bf16 on a GPU, or where the CPU has it), bf16, fp16 (GPU), or f32 (exact)",
     &SetCompute},
    {"kv-type", "TYPE", "auto", "of K and V at the homes: f32, bf16, fp16, int8, int4, or auto (that of --compute)",
     &SetKvType},
    {"batch-invariant", "BOOL", "false",
     "one order of summation for every batch size, so that results repeat bit for bit",
     [](Options& o, const std::string& v) { return ParseBool("batch-invariant", v, &o.batch_invariant); }},
    {"isa", "NAME", "auto", "auto, avx2, avx512, avx512vnni, avx512bf16 or amx", &SetIsa},
    {"poll", "MODE", "auto",
     "spin, yield (other processes use the cores, too), always (spin and never sleep), or auto (spin, but yield where "
     "cores are taken, or a CPU quota is less than the cores); threads of one core take turns unless they yield",
     &SetPoll},
    {"hop-timeout-ms", "MS", "10000",
     "a home without progress for so long is lost, and its requests go on at others; at least 300 with homes on other "
     "hosts",
     [](Options& o, const std::string& v) { return ParseInt("hop-timeout-ms", v, 10, 3600000, &o.hop_timeout_ms); }},
    {"recover-ms", "MS", "120000",
     "requests that only a home that was lost, or has not come yet, could hold wait for it so long, and end with an "
     "error then",
     [](Options& o, const std::string& v) { return ParseInt("recover-ms", v, 0, 86400000, &o.recover_ms); }},
    {"listen", "ENDPOINT", "",
     "worker: where engines connect: unix:PATH, or HOST:PORT for other hosts (0.0.0.0: every address)", &SetListen},
    {"peers", "N", "1", "worker: engines that each home serves at once; each has pages reserved for it",
     [](Options& o, const std::string& v) { return ParseInt("peers", v, 1, 16, &o.peers); }},
    {"grace-s", "SECONDS", "30",
     "worker: how long one that drains waits for engines to leave; the sequences that they then have here are computed "
     "again elsewhere",
     [](Options& o, const std::string& v) { return ParseInt("grace-s", v, 0, 86400, &o.grace_s); }},
    {"secret-file", "FILE", "", "what this host and the workers' or engines' hosts know; needed for HOST:PORT",
     [](Options& o, const std::string& v) { return SetFabricText(o.fabric.secret_file, v); }},
    {"rdma-device", "NAME", "",
     "RDMA device, such as mlx5_0 (default: the active InfiniBand or RoCE one nearest to the NUMA node)",
     [](Options& o, const std::string& v) { return SetFabricText(o.fabric.device, v); }},
    {"rdma-port", "N", "0", "port of the RDMA device (0: the first that is active)",
     [](Options& o, const std::string& v) { return ParseInt("rdma-port", v, 0, 255, &o.fabric.port); }},
    {"gid-index", "N", "-1", "GID of the port (-1: look for RoCE v2 over IPv4, IPv6, link-local IPv6, then the first)",
     [](Options& o, const std::string& v) { return ParseInt("gid-index", v, -1, 1023, &o.fabric.gid_index); }},
    {"rdma-mtu", "BYTES", "0", "largest path MTU to agree on: 256, 512, 1024, 2048 or 4096 (0: the port's)",
     &SetRdmaMtu},
    {"traffic-class", "N", "0", "of RDMA packets: DSCP * 4 + ECN",
     [](Options& o, const std::string& v) { return ParseInt("traffic-class", v, 0, 255, &o.fabric.traffic_class); }},
    {"service-level", "N", "0", "of RDMA packets",
     [](Options& o, const std::string& v) { return ParseInt("service-level", v, 0, 15, &o.fabric.service_level); }},
    {"peer-timeout-ms", "MS", "1000", "a process on another host that is silent for so long is lost", &SetPeerTimeout},
    {"record-socket", "PATH", "auto",
     "engine: where `latency attach` of the same user gets in: auto (by pid), off, or a path (other network "
     "or pid namespaces)",
     &SetText<&Options::record_socket>},
    {"fault", "SPEC", "", "inject faults on every link, such as seed=1,drop=0.001 (for tests)", &SetFault},
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
