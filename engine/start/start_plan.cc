#include "engine/start/start_plan.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/rpart/rpart_shape.h"
#include "engine/start/choices.h"
#include "rdma/bootstrap.h"

namespace fastdecode {

absl::Status CheckOptions(const Options& options, const std::vector<Endpoint>& endpoints) {
  if (absl::Status bad = CheckHopTimeout(options, endpoints); !bad.ok()) return bad;
  if (static_cast<size_t>(options.homes_min) > endpoints.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--homes-min: %d is more than the %d that --homes lists; give no more than that, or list more",
                        options.homes_min, endpoints.size()));
  }
  if (options.gpudirect) return absl::OkStatus();  // what that does not go with is said first, once a GPU is looked for
  for (const Endpoint& endpoint : endpoints) {
    if (absl::Status bad = CheckSecret(endpoint, options.fabric); !bad.ok()) return bad;
  }
  return absl::OkStatus();
}

std::vector<std::string> DescribeModelChoices(const Options& options, const ModelSpec& spec, int context) {
  std::vector<std::string> notes;
  if (options.max_context == 0 && context < spec.max_context) {
    notes.push_back(absl::StrFormat(
        "context: %d tokens of the model's %d; --max-context N gives more, and KV memory must hold them (--kv-gib)",
        context, spec.max_context));
  }
  const SamplingDefaults& sampling = spec.sampling;
  std::vector<std::string> values;
  const auto add = [&values](const char* name, const auto& value) {
    if (value) values.push_back(absl::StrCat(name, " ", *value));
  };
  add("temperature", sampling.temperature);
  add("top_k", sampling.top_k);
  add("top_p", sampling.top_p);
  add("min_p", sampling.min_p);
  add("repetition_penalty", sampling.repetition_penalty);
  if (!values.empty()) {
    notes.push_back(absl::StrCat("sampling of generation_config.json, unless a request says otherwise: ",
                                 absl::StrJoin(values, ", ")));
  }
  return notes;
}

absl::StatusOr<StartPlan> PlanStart(const Options& options, const ModelSpec& spec,
                                    const std::vector<Endpoint>& endpoints, const CoreChoice& cores, bool gpu,
                                    Isa best) {
  StartPlan plan;
  const absl::StatusOr<Isa> isa = ChooseIsa(options, best);
  if (!isa.ok()) return isa.status();
  plan.isa = *isa;
  const absl::StatusOr<ElementType> type = ChooseType(options, *isa, gpu);
  if (!type.ok()) return type.status();
  plan.type = *type;
  const absl::StatusOr<int> context = ChooseContext(options, spec);
  if (!context.ok()) return context.status();
  plan.gpu_home = HasGpuHome(endpoints);
  plan.several_endpoints = endpoints.size() > 1;
  if (absl::Status bad = CheckSequences(options); !bad.ok()) return bad;
  plan.home_kinds = HomeKinds(endpoints, cores.share);
  const bool beside_near = cores.share && cores.micro_batches > 1;
  for (const bool roomy : {options.max_sequences <= kAdaptSequencesMax, false}) {
    plan.adapts = roomy && cores.adapts;
    plan.places_for_all = plan.gpu_home || (roomy && (cores.adapts || beside_near));
    plan.shape = MakeShape(spec, options, plan.type, *context, plan.places_for_all);
    if (ValidateShape(plan.shape).ok()) break;
  }
  if (absl::Status bad = ValidateShape(plan.shape); !bad.ok()) return bad;
  if (absl::Status bad = CheckHopTimeout(options, endpoints); !bad.ok()) return bad;
  if (absl::Status bad = CheckGpuHome(options, endpoints, plan.shape, gpu); !bad.ok()) return bad;
  if (!options.fault.empty()) {
    const absl::StatusOr<FaultOptions> fault = ParseFaultOptions("--fault", options.fault);
    if (!fault.ok()) return fault.status();
    plan.fault = *fault;
  }
  const absl::StatusOr<int> fabric_gpu = ChooseFabricGpu(options, endpoints, plan.fault.value_or(FaultOptions()), gpu);
  if (!fabric_gpu.ok()) return fabric_gpu.status();
  plan.fabric_gpu = *fabric_gpu;
  return plan;
}

}  // namespace fastdecode
