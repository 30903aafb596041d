#ifndef FASTDECODE_ENGINE_START_OPTIONS_H_
#define FASTDECODE_ENGINE_START_OPTIONS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "kernels/float_types.h"
#include "kernels/isa.h"
#include "numa/log.h"
#include "rdma/fabric_options.h"

namespace fastdecode {

// Everything that can be set about an engine or a worker, read once at start. Every field is set by one row of the option
// table in options.cc, where its name, default and help are.
struct Options {
  enum class Compute { kAuto, kBf16, kFp16, kF32 };
  enum class SPartBackend { kAuto, kCpu, kCuda };
  enum class CorePlanMode { kAuto, kSplit, kShared };
  enum class Poll { kAuto, kSpin, kYield, kAlways };

  std::string model;               // folder
  bool need_text = false;          // no start without a tokenizer
  std::string chat_template;       // file; "" = the folder's
  std::string homes = "local";
  int homes_min = 0;               // endpoints of `homes` that must be there at the start; 0 = all
  std::string listen;              // worker: unix:PATH or HOST:PORT
  int peers = 1;                   // worker: engines that each home serves at once
  int grace_s = 30;                // worker: for engines to leave it
  std::string s_cores, r_cores;    // lists such as 0,2-5; "" = choose
  std::string front_cores = "none";  // left to the caller's threads: a list, auto or none
  int s_threads = 0;               // 0 = all of the S cores
  int r_threads = 0;               // per home; 0 = all of the R cores
  CorePlanMode core_plan = CorePlanMode::kAuto;
  int micro_batches = 0;           // 0 = auto: 1 where one team does all, else up to 2
  std::string calibration;         // file of `fastdecode calibrate`; "" = none
  int max_context = 0;             // tokens of one sequence; 0 = the model's, at most 8192
  int max_sequences = 256;         // in all micro-batches together
  int prefill_chunk = 256;         // prompt tokens a step of one micro-batch
  int max_queue = 4096;            // answers waiting or running; so no more than these advance at once
  bool prefix_cache = true;        // pages of what has ended are kept for prompts that begin alike
  double kv_gib = 0;               // per home; 0 = choose
  double gpu_kv_gib = 0;           // of the GPU as a home; 0 = choose
  std::optional<KvType> kv_type;   // none = that of the computation
  SPartBackend spart = SPartBackend::kAuto;
  int gpu = 0;                     // of the S-Part
  std::string cuda_module;         // "" = that of this program
  int gpu_wait_ms = 30000;
  bool gpudirect = false;          // RDMA devices reach the GPU's memory
  Compute compute = Compute::kAuto;
  bool batch_invariant = false;
  Isa isa = Isa::kNone;            // kNone = the best that the CPU has
  Poll poll = Poll::kAuto;
  int hop_timeout_ms = 10000;
  int recover_ms = 120000;
  uint64_t engine_id = 0;          // 0 = random
  FabricOptions fabric;            // links to other hosts
  std::string record_socket = "auto";  // where others may read recordings: auto, off, or a path
  std::string fault;               // fault link, tests only

  LogSink log_sink = nullptr;
  void* log_user = nullptr;
  LogLevel log_level = LogLevel::kInfo;
};

struct OptionRow {
  const char* name;
  const char* value_name;
  const char* default_value;
  const char* help;
  absl::Status (*set)(Options& options, const std::string& value);
};

// Null past the end.
const OptionRow* OptionAt(size_t index);
// Errors name the option, the value and what is allowed.
absl::Status SetOption(Options& options, const std::string& name, const std::string& value);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_START_OPTIONS_H_
