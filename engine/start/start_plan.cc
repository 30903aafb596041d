#include "engine/start/start_plan.h"

#include "engine/rpart/rpart_shape.h"
#include "engine/start/choices.h"

namespace fastdecode {

absl::StatusOr<StartPlan> PlanStart(const Options& options, const ModelSpec& spec,
                                    const std::vector<Endpoint>& endpoints, bool gpu, Isa best) {
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
  plan.shape = MakeShape(spec, options, plan.type, *context, plan.gpu_home);
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
