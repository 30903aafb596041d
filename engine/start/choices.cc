#include "engine/start/choices.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "kernels/cuda/kv_pages.h"
#include "numa/memory_limit.h"
#include "rdma/fabric_options.h"
#include "rdma/link.h"

namespace fastdecode {

namespace {
constexpr int kDefaultContextMax = 8192;
constexpr int kRosterEntriesMax = (kControlMessageBytesMax - sizeof(RosterMessage)) / sizeof(RosterEntry);
static_assert(kRosterEntriesMax >= 8192, "the largest --max-sequences over two micro-batches");
}  // namespace

absl::StatusOr<Isa> ChooseIsa(const Options& options, Isa best) {
  if (best == Isa::kNone) return absl::FailedPreconditionError("this CPU is too old: AVX2, FMA and F16C are needed");
  if (options.isa == Isa::kNone) return best;
  if (options.isa > best) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--isa: this CPU has no '%s'; its best is %s", IsaName(options.isa), IsaName(best)));
  }
  return options.isa;
}

absl::StatusOr<ElementType> ChooseType(const Options& options, Isa isa, bool gpu) {
  switch (options.compute) {
    case Options::Compute::kBf16:
      return ElementType::kBf16;
    case Options::Compute::kF32:
      return ElementType::kF32;
    case Options::Compute::kFp16:
      if (gpu) return ElementType::kFp16;
      return absl::InvalidArgumentError("--compute: 'fp16' is for GPUs; the CPU computes in bf16 or f32");
    case Options::Compute::kAuto:
      break;
  }
  return gpu || isa >= Isa::kAvx512Bf16 ? ElementType::kBf16 : ElementType::kF32;
}

absl::StatusOr<int> ChooseContext(const Options& options, const ModelSpec& spec) {
  if (options.max_context == 0) return std::min(spec.max_context, kDefaultContextMax);
  if (options.max_context > spec.max_context) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--max-context: %d is more than the model's %d tokens", options.max_context, spec.max_context));
  }
  return options.max_context;
}

int SplitMicroBatches(const Options& options) { return options.micro_batches > 0 ? options.micro_batches : 2; }

absl::StatusOr<CoreChoice> ChooseCorePlan(const Options& options, const std::vector<Endpoint>& endpoints, bool gpu) {
  const auto is_local = [](const Endpoint& endpoint) { return endpoint.kind == Endpoint::Kind::kLocal; };
  const bool all_local = std::all_of(endpoints.begin(), endpoints.end(), is_local);
  CoreChoice choice;
  choice.micro_batches = SplitMicroBatches(options);
  choice.adapts = options.micro_batches == 0;
  if (options.core_plan == Options::CorePlanMode::kSplit) {
    choice.reason = "--core-plan split";
    return choice;
  }
  if (options.core_plan == Options::CorePlanMode::kShared) {
    if (gpu) return absl::InvalidArgumentError("--core-plan: 'shared' is for an S-Part on the CPU (--spart cpu)");
    if (std::none_of(endpoints.begin(), endpoints.end(), is_local)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "--core-plan: 'shared', but no home of --homes '%s' is in this process (local)", options.homes));
    }
    if (options.micro_batches > 1 && all_local) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "--micro-batches: %d, but one team for the S-Part and all homes (--core-plan shared) has nothing to "
          "alternate with: give 1, or --core-plan split",
          options.micro_batches));
    }
    if (!options.fault.empty() && all_local) {
      return absl::InvalidArgumentError(
          "--fault: it is for links, and one team for the S-Part and all homes (--core-plan shared) has none: give "
          "--core-plan split");
    }
    choice.reason = "--core-plan shared";
  } else {
    const char* split_because = nullptr;
    if (options.max_sequences > kRosterEntriesMax)
      split_because = "--max-sequences is more than one micro-batch can have";
    if (!options.fault.empty()) split_because = "--fault is given, which is for links";
    if (options.micro_batches > 0) split_because = "--micro-batches is given";
    if (options.r_threads > 0) split_because = "--r-threads is given";
    if (options.s_threads > 0) split_because = "--s-threads is given";
    if (!options.r_cores.empty()) split_because = "--r-cores is given";
    if (!options.s_cores.empty()) split_because = "--s-cores is given";
    if (std::none_of(endpoints.begin(), endpoints.end(), is_local)) split_because = "no home is in this process";
    if (gpu) split_because = "the S-Part runs on a GPU";
    if (split_because != nullptr) {
      choice.reason = absl::StrCat("--core-plan auto: ", split_because);
      return choice;
    }
    choice.reason = absl::StrCat("--core-plan auto: the S-Part is on the CPU and ", all_local ? "every" : "a",
                                 " home in this process");
  }
  choice.share = true;
  if (all_local) choice.micro_batches = 1;  // nothing to alternate with
  choice.adapts = options.micro_batches == 0 && choice.micro_batches > 1;
  return choice;
}

PollMode ChoosePoll(const Options& options, const CorePlan& plan) {
  if (options.poll == Options::Poll::kYield) return PollMode::kYield;
  if (options.poll == Options::Poll::kAuto && plan.contended) return PollMode::kYield;
  if (plan.shared_cores) return PollMode::kTurns;
  return options.poll == Options::Poll::kAuto ? PollMode::kWatch : PollMode::kSpin;
}

RPartShape MakeShape(const ModelSpec& spec, const Options& options, ElementType type, int max_context,
                     bool places_for_all) {
  RPartShape shape;
  shape.layers = static_cast<uint32_t>(spec.layers);
  shape.kv_heads = static_cast<uint32_t>(spec.kv_heads);
  shape.group = static_cast<uint32_t>(spec.group());
  shape.head_dim = static_cast<uint32_t>((spec.head_dim + 15) / 16 * 16);
  // Homes take no fp16 rows; f32 keeps every bit of them.
  shape.element_type = static_cast<uint32_t>(type == ElementType::kFp16 ? ElementType::kF32 : type);
  shape.kv_type = static_cast<uint32_t>(options.kv_type.value_or(KvTypeOf(type)));
  const double scale =
      spec.attention_scale > 0 ? spec.attention_scale : 1 / std::sqrt(static_cast<double>(spec.head_dim));
  shape.scale = static_cast<float>(scale);
  shape.soft_cap = static_cast<float>(spec.attention_cap);
  for (int layer = 0; layer < spec.layers; ++layer) {
    if (!spec.kind(layer).windowed) continue;
    shape.SetWindowed(static_cast<uint32_t>(layer));
    shape.sliding_window = static_cast<uint32_t>(spec.sliding_window);
  }
  shape.micro_batches = static_cast<uint32_t>(SplitMicroBatches(options));
  shape.max_rows = static_cast<uint32_t>(SequencesPerMicroBatch(options, places_for_all) + options.prefill_chunk);
  shape.max_context = static_cast<uint32_t>(max_context);
  return shape;
}

absl::Status CheckSequences(const Options& options) {
  const int sequences = SequencesPerMicroBatch(options, /*places_for_all=*/false);
  if (sequences <= kRosterEntriesMax) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "--max-sequences: %d over %d micro-batches are %d a micro-batch, more than the %d that it can have",
      options.max_sequences, SplitMicroBatches(options), sequences, kRosterEntriesMax));
}

int SequencesPerMicroBatch(const Options& options, bool places_for_all) {
  const int micro_batches = SplitMicroBatches(options);
  const int share = (options.max_sequences + micro_batches - 1) / micro_batches;
  return places_for_all ? std::max(share, std::min(options.max_sequences, kRosterEntriesMax)) : share;
}

// What homes have room for (HomeOptions::sequences_max) must do for them and for twice those that run.
int CachedSequences(const Options& options) {
  return options.prefix_cache ? std::clamp(2 * options.max_sequences, 256, 16384) : 0;
}

absl::Status CheckHopTimeout(const Options& options, const std::vector<Endpoint>& endpoints) {
  constexpr int kHeartbeatMs = kHeartbeatNs / 1'000'000, kFabricMsMin = 3 * kHeartbeatMs;
  const bool fabric = std::any_of(endpoints.begin(), endpoints.end(),
                                  [](const Endpoint& endpoint) { return endpoint.kind == Endpoint::Kind::kFabric; });
  if (!fabric || options.hop_timeout_ms >= kFabricMsMin) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("--hop-timeout-ms: %d is less than %d: a home on another host tells of its progress every %d ms",
                      options.hop_timeout_ms, kFabricMsMin, kHeartbeatMs));
}

std::string HomeKinds(const std::vector<Endpoint>& endpoints, bool share) {
  using Kind = Endpoint::Kind;
  const auto is_near = [share](const Endpoint& endpoint) {
    return endpoint.kind == Kind::kGpu || (endpoint.kind == Kind::kLocal && share);
  };
  if (std::all_of(endpoints.begin(), endpoints.end(), is_near)) return "near";
  return std::none_of(endpoints.begin(), endpoints.end(), is_near) ? "far" : "near and far";
}

bool HasGpuHome(const std::vector<Endpoint>& endpoints) {
  return std::any_of(endpoints.begin(), endpoints.end(),
                     [](const Endpoint& endpoint) { return endpoint.kind == Endpoint::Kind::kGpu; });
}

absl::Status CheckGpuHome(const Options& options, const std::vector<Endpoint>& endpoints, const RPartShape& shape,
                          bool gpu) {
  if (!HasGpuHome(endpoints)) {
    if (options.gpu_kv_gib == 0) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrFormat("--gpu-kv-gib: %g GiB, but 'gpu' is none of --homes '%s'", options.gpu_kv_gib, options.homes));
  }
  if (!gpu) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--homes: '%s': 'gpu' is for an S-Part that runs on one (--spart cuda)", options.homes));
  }
  const auto kv_type = static_cast<KvType>(shape.kv_type);
  if (GpuHolds(kv_type)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("--kv-type: '%s': a home on a GPU holds f32, bf16, fp16 or int8", KvTypeName(kv_type)));
}

absl::StatusOr<int> ChooseFabricGpu(const Options& options, const std::vector<Endpoint>& endpoints,
                                    const FaultOptions& fault, bool gpu) {
  if (!options.gpudirect) return -1;
  const auto over_fabric = [](const Endpoint& endpoint) { return endpoint.kind == Endpoint::Kind::kFabric; };
  std::string obstacle;
  if (!gpu) obstacle = "the S-Part does not run on a GPU (--spart cuda)";
  if (std::none_of(endpoints.begin(), endpoints.end(), over_fabric)) {
    obstacle = absl::StrCat("--homes '", options.homes, "' names no HOST:PORT, which RDMA leads to");
  }
  // What cannot be done with memory that the CPU does not reach.
  if (fault.corrupt_payload_share > 0) obstacle = "--fault corrupt-payload is for memory of the host";
  if (!obstacle.empty()) return absl::InvalidArgumentError("--gpudirect: " + obstacle);
  return options.gpu;
}

size_t CountLocalHomes(const std::vector<Endpoint>& endpoints, const Topology& topology) {
  size_t homes = 0;
  for (const Endpoint& endpoint : endpoints) {
    if (endpoint.kind != Endpoint::Kind::kLocal) continue;
    if (endpoint.local_homes > 0) {
      homes += static_cast<size_t>(endpoint.local_homes);
      continue;
    }
    for (const NumaNode& node : topology.nodes) homes += node.UsableAsHome();
  }
  return homes;
}

uint64_t KvBytesMax(const CorePlan& plan, size_t home, const std::string& root) {
  const int node = plan.home_nodes[home];
  const auto homes_there = std::count(plan.home_nodes.begin(), plan.home_nodes.end(), node);
  uint64_t bytes = MemoryLimit::Read(root).available_bytes / plan.home_nodes.size();
  // There may be nodes that no home is on.
  const NodeMemory memory = NodeMemory::Read(node, root);
  if (memory.total_bytes != 0) bytes = std::min(bytes, memory.free_bytes / static_cast<uint64_t>(homes_there));
  return bytes / 4;
}

}  // namespace fastdecode
