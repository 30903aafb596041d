#ifndef FASTDECODE_ENGINE_START_LOAD_SPART_H_
#define FASTDECODE_ENGINE_START_LOAD_SPART_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/model_spec.h"
#include "engine/start/options.h"
#include "engine/rpart/messages.h"
#include "engine/spart/cuda/spart_device.h"
#include "engine/spart/spart.h"
#include "kernels/isa.h"
#include "numa/log.h"
#include "numa/spin.h"

namespace fastdecode {

// The GPU that --spart, --gpu and --cuda-module ask for. Null: the S-Part runs on the CPU; the log says why, if the host
// has a driver or a module was named.
// Errors: of OpenDevice, if the option says cuda.
absl::StatusOr<std::unique_ptr<SPartDevice>> ChooseDevice(const Options& options, Logger* log);

// What an S-Part is made for.
struct SPartPlace {
  ElementType type = ElementType::kF32;
  RPartShape shape;
  int sequences_max = 0;                // of one micro-batch
  std::unique_ptr<SPartDevice> device;  // null: the CPU
  bool is_home = false;                 // the GPU is to hold KV, too: options.gpu_kv_gib of it
  bool pushes = false;                  // and to compute prompts of other homes
  // The CPU's.
  Isa isa = Isa::kNone;
  PollMode poll = PollMode::kSpin;
  int node = -1;               // that holds the weights; -1: the S cores are on several, and each takes a part
  std::vector<int> s_cores;    // [0] is the pipeline thread's
  std::vector<int> all_cores;  // to read weights with
};

// Reads the model's weights, from options.model. Errors name file and tensor, or what there is too little of.
absl::StatusOr<std::unique_ptr<SPart>> LoadSPart(const Options& options, const ModelSpec& spec, SPartPlace place,
                                                 Logger* log);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_START_LOAD_SPART_H_
