#ifndef FASTDECODE_ENGINE_START_CHOICES_H_
#define FASTDECODE_ENGINE_START_CHOICES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/model_spec.h"
#include "engine/rpart/messages.h"
#include "engine/start/options.h"
#include "kernels/isa.h"
#include "numa/core_plan.h"
#include "numa/spin.h"
#include "numa/topology.h"
#include "rdma/endpoint.h"
#include "rdma/fault_link.h"

namespace fastdecode {

// What engines and workers decide at start from the options and the machine. Errors name option and value.

// The ISA that the option names, or with auto `best`, the best one of the CPU.
absl::StatusOr<Isa> ChooseIsa(const Options& options, Isa best);
// bf16 on a GPU and where the CPU computes it, else f32, unless the options say which.
absl::StatusOr<ElementType> ChooseType(const Options& options, Isa isa, bool gpu);
// Tokens of one sequence.
absl::StatusOr<int> ChooseContext(const Options& options, const ModelSpec& spec);

// How the S-Part and the homes of this process get their cores.
struct CoreChoice {
  bool share = false;     // one team on all of them does the work of both
  int micro_batches = 0;  // in flight
  bool adapts = false;    // how many of them are used follows what steps cost
  std::string reason;     // "--core-plan auto: no home is in this process"
};
// `gpu`: the S-Part runs on one. Errors: InvalidArgument, naming option and value, for a plan that these homes, this
// S-Part or --micro-batches do not go with.
absl::StatusOr<CoreChoice> ChooseCorePlan(const Options& options, const std::vector<Endpoint>& endpoints, bool gpu);
// The number of micro-batches that the option says, or with auto the one for cores that are split.
int SplitMicroBatches(const Options& options);

PollMode ChoosePoll(const Options& options, const CorePlan& plan);
// The R-Part's view of the model under these options. places_for_all: as SequencesPerMicroBatch has it.
RPartShape MakeShape(const ModelSpec& spec, const Options& options, ElementType type, int max_context,
                     bool places_for_all);
// InvalidArgument if micro-batches that share all sequences evenly have more than one roster names.
absl::Status CheckSequences(const Options& options);
// Places of one micro-batch: an even share of all sequences; or for all of them, as far as one roster names them, where
// micro-batches are not filled evenly: StartPlan::places_for_all.
int SequencesPerMicroBatch(const Options& options, bool places_for_all);
// How many sequences that have ended may be kept for others that begin alike (BatchLimits::cached_max).
int CachedSequences(const Options& options);
// InvalidArgument if a home on another host would be lost before it can tell of its progress.
absl::Status CheckHopTimeout(const Options& options, const std::vector<Endpoint>& endpoints);
// Whether the S-Part attends to homes itself, or homes of their own threads do: "near", "far" or "near and far".
std::string HomeKinds(const std::vector<Endpoint>& endpoints, bool share);
// Whether one of the homes is the S-Part's GPU.
bool HasGpuHome(const std::vector<Endpoint>& endpoints);
// What a GPU as a home asks for. Errors: InvalidArgument, naming option and value.
absl::Status CheckGpuHome(const Options& options, const std::vector<Endpoint>& endpoints, const RPartShape& shape,
                          bool gpu);
// The GPU whose memory links over a fabric send from and receive into; -1: the host's, unless --gpudirect. Errors:
// InvalidArgument for what it does not go with.
absl::StatusOr<int> ChooseFabricGpu(const Options& options, const std::vector<Endpoint>& endpoints,
                                    const FaultOptions& fault, bool gpu);
// Homes that the endpoints ask of this process.
size_t CountLocalHomes(const std::vector<Endpoint>& endpoints, const Topology& topology);
// What a home of the plan may take of memory unless the options say more: a quarter of what is free now, on all nodes
// and on its own, divided among those that share it. `root` goes before every path, for tests.
uint64_t KvBytesMax(const CorePlan& plan, size_t home, const std::string& root = "");

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_START_CHOICES_H_
