#ifndef FASTDECODE_ENGINE_START_START_PLAN_H_
#define FASTDECODE_ENGINE_START_START_PLAN_H_

#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/model_spec.h"
#include "engine/rpart/messages.h"
#include "engine/start/choices.h"
#include "engine/start/options.h"
#include "kernels/float_types.h"
#include "kernels/isa.h"
#include "rdma/endpoint.h"
#include "rdma/fault_link.h"

namespace fastdecode {

// What an engine decides from its options, its model's config and its machine before anything is loaded or connected.
struct StartPlan {
  Isa isa = Isa::kNone;
  ElementType type = ElementType::kF32;  // of the S-Part
  RPartShape shape;
  bool gpu_home = false;              // the S-Part's GPU is a home...
  bool several_endpoints = false;     // ...or another endpoint is one, too
  bool adapts = false;                // how many micro-batches are used follows what steps cost
  bool places_for_all = false;        // each micro-batch has them (SequencesPerMicroBatch)
  std::string home_kinds;             // HomeKinds
  int fabric_gpu = -1;                // whose memory links over a fabric use; -1: the host's
  std::optional<FaultOptions> fault;  // of every link
};

// What is wrong with the options whatever the model and the machine are: for before anything of them is read.
// Errors: InvalidArgument, naming option and value; those of Secret::Read.
absl::Status CheckOptions(const Options& options, const std::vector<Endpoint>& endpoints);

// What an engine tells its user of the model that may surprise: a context that is shorter than the model's, unless the
// options say so, and sampling that the folder asks for. `context`: the engine's.
std::vector<std::string> DescribeModelChoices(const Options& options, const ModelSpec& spec, int context);

// Micro-batches with places for all have them for so many sequences at most.
inline constexpr int kAdaptSequencesMax = 1024;
// A pure function. `options.micro_batches`: as chosen with `cores`. `gpu`: the S-Part runs on one. `best`: what the CPU
// has. Micro-batches are filled evenly, whatever the cores would allow, where places for all in each were too many:
// above kAdaptSequencesMax, or for a link. Errors: those of the choices that it is made of (choices.h), naming option
// and value.
absl::StatusOr<StartPlan> PlanStart(const Options& options, const ModelSpec& spec,
                                    const std::vector<Endpoint>& endpoints, const CoreChoice& cores, bool gpu,
                                    Isa best);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_START_START_PLAN_H_
