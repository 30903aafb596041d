#include "engine/start/worker_process.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "engine/model/model_config.h"
#include "engine/start/choices.h"
#include "engine/start/start_plan.h"
#include "numa/openmp_binding.h"
#include "numa/pinning.h"
#include "numa/topology.h"

namespace fastdecode {

WorkerProcess::WorkerProcess(const Options& options)
    : options_(options), sign_(kWorkerName), log_(options.log_sink, options.log_user, options.log_level) {}

absl::StatusOr<std::unique_ptr<WorkerProcess>> WorkerProcess::Create(const Options& options) {
  std::unique_ptr<WorkerProcess> process(new WorkerProcess(options));
  if (absl::Status status = process->Start(); !status.ok()) return status;
  return process;
}

absl::Status WorkerProcess::Start() {
  if (options_.listen.empty()) return absl::InvalidArgumentError("--listen: unix:PATH or HOST:PORT is needed");
  absl::StatusOr<Endpoint> endpoint = ParseEndpoint("--listen", options_.listen, EndpointUse::kListen);
  if (!endpoint.ok()) return endpoint.status();
  if (absl::Status bad = CheckOptions(options_, {*endpoint}); !bad.ok()) return bad;
  absl::StatusOr<Isa> isa = ChooseIsa(options_, DetectIsa());
  if (!isa.ok()) return isa.status();
  absl::StatusOr<Topology> topology = Topology::Discover();
  if (!topology.ok()) return topology.status();

  for (const std::string& warning : {topology->warning, DescribeOpenMpBinding(*topology)}) {
    if (!warning.empty()) log_.Warning(warning);
  }
  CorePlanOptions wanted;
  wanted.s_part = false;
  wanted.r_cores = options_.r_cores;
  wanted.r_threads = options_.r_threads;
  wanted.homes = static_cast<int>(CountLocalHomes({Endpoint{}}, *topology));
  absl::StatusOr<ReservedCorePlan> planned = PlanAndReserveCores(*topology, wanted);
  if (!planned.ok()) return planned.status();
  cores_ = *std::move(planned);
  const std::string unpinned = DescribeRefusedPinning(cores_.plan, 0);
  if (!unpinned.empty()) cores_.warnings.push_back(unpinned);
  for (const std::string& warning : cores_.warnings) log_.Warning(warning);
  machine_ = topology->ToString() + cores_.plan.ToString();

  WorkerOptions worker;
  worker.listen = *endpoint;
  worker.fabric = options_.fabric;
  worker.grace_ns = static_cast<uint64_t>(options_.grace_s) * 1'000'000'000;
  worker.logger = &log_;
  if (!options_.model.empty()) {
    absl::StatusOr<ModelSpec> spec = ReadModelSpec(options_.model);
    if (!spec.ok()) return spec.status();
    const absl::StatusOr<ElementType> type = ChooseType(options_, *isa, /*gpu=*/false);
    if (!type.ok()) return type.status();
    worker.model_shape = MakeShape(*spec, options_, *type, spec->max_context, /*places_for_all=*/false);
  }
  const CorePlan& plan = cores_.plan;
  for (size_t i = 0; i < plan.home_cores.size(); ++i) {
    HomeOptions home;
    home.name = absl::StrFormat("home%d", i);
    home.node = plan.home_nodes[i];
    home.cores = plan.home_cores[i];
    home.kv_bytes = options_.kv_gib > 0 ? static_cast<uint64_t>(options_.kv_gib * (1ull << 30)) : KvBytesMax(plan, i);
    home.poll = ChoosePoll(options_, plan);
    home.park = options_.poll != Options::Poll::kAlways;
    home.isa = *isa;
    home.peers = static_cast<uint32_t>(options_.peers);
    home.logger = &log_;
    worker.homes.push_back(std::move(home));
  }
  absl::StatusOr<std::unique_ptr<Worker>> made = Worker::Create(std::move(worker));
  if (!made.ok()) return made.status();
  worker_ = *std::move(made);
  return absl::OkStatus();
}

std::string WorkerProcess::Describe() const {
  std::string text = machine_;
  for (size_t i = 0; i < worker_->home_count(); ++i) {
    text += absl::StrFormat("home %d: %s\n", i, worker_->home(i).DescribeMemory());
  }
  return text + "listening on " + options_.listen + "\n";
}

absl::Status WorkerProcess::Run() {
  worker_->Run();
  return absl::OkStatus();
}

}  // namespace fastdecode
