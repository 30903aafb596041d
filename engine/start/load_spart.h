#ifndef FASTDECODE_ENGINE_START_LOAD_SPART_H_
#define FASTDECODE_ENGINE_START_LOAD_SPART_H_

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/checkpoint.h"
#include "engine/model/model_spec.h"
#include "engine/model/weights.h"
#include "engine/rpart/messages.h"
#include "engine/spart/cuda/spart_device.h"
#include "engine/spart/spart.h"
#include "engine/start/options.h"
#include "kernels/isa.h"
#include "numa/log.h"
#include "numa/spin.h"

namespace fastdecode {

// The GPU that --spart, --gpu and --cuda-module ask for. Null: the S-Part runs on the CPU; the log says why, if the
// host has a driver or a module was named. Errors: of OpenDevice, if the option says cuda.
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
  int node = -1;               // that holds the weights; -1: the S cores are on several, which take pages in turn
  bool attends = false;        // to homes of this process, too
  std::vector<int> s_cores;    // [0] is the pipeline thread's
  std::vector<int> all_cores;  // to read weights with
};

// The model's files, mapped; what their headers say is checked, and no weight is read yet. Owns: the mappings.
struct ModelFiles {
  Checkpoint checkpoint;
  ModelWeights weights;  // views into the mappings
};
// Errors name file and tensor.
absl::StatusOr<ModelFiles> OpenModelFiles(const Options& options, const ModelSpec& spec);

// Reads the weights. Errors say what there is too little of.
absl::StatusOr<std::unique_ptr<SPart>> LoadSPart(const Options& options, const ModelSpec& spec, const ModelFiles& files,
                                                 SPartPlace place, Logger* log);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_START_LOAD_SPART_H_
