#include "engine/start/engine.h"

#include <algorithm>
#include <ctime>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/model/model_config.h"
#include "engine/record/abstract_socket.h"
#include "engine/request/build_request.h"
#include "engine/rpart/page_counts.h"
#include "engine/rpart/rpart_shape.h"
#include "numa/clock.h"
#include "numa/core_plan.h"
#include "numa/front_cores.h"
#include "numa/openmp_binding.h"
#include "numa/pinning.h"
#include "numa/topology.h"

namespace fastdecode {

namespace {

// KV memory of a home of this process: as told, or what every sequence at full length needs, but at most a quarter of
// what is free now, and at least two sequences at full length.
uint64_t ChooseKvBytes(const Options& options, const RPartShape& shape, const CorePlan& plan, size_t home) {
  if (options.kv_gib > 0) return static_cast<uint64_t>(options.kv_gib * (1ull << 30));
  const uint64_t sequence_bytes =
      PageBytes(shape.attention()) * shape.layers * PageCounts(shape.attention()).Most(shape.max_context);
  const uint64_t wanted = sequence_bytes * static_cast<uint64_t>(options.max_sequences) / plan.home_nodes.size();
  return std::max(2 * sequence_bytes, std::min(wanted, KvBytesMax(plan, home)));
}

}  // namespace

Engine::Engine(const Options& options)
    : options_(options), log_(options.log_sink, options.log_user, options.log_level) {}

absl::StatusOr<std::unique_ptr<Engine>> Engine::Create(const Options& options) {
  if (options.model.empty()) return absl::InvalidArgumentError("--model: a model folder is needed");
  std::unique_ptr<Engine> engine(new Engine(options));
  if (absl::Status status = engine->Start(); !status.ok()) return status;
  return engine;
}

// Everything that can be refused is refused before a weight is read: options, files, cores, workers. Then the parts,
// from the weights outwards.
absl::Status Engine::Start() {
  const ProcessSign loading(kLoadingName);
  absl::StatusOr<std::vector<Endpoint>> endpoints = ParseEndpoints("--homes", options_.homes);
  if (!endpoints.ok()) return endpoints.status();
  if (absl::Status bad = CheckOptions(options_, *endpoints); !bad.ok()) return bad;
  absl::StatusOr<ModelSpec> spec = ReadModelSpec(options_.model);
  if (!spec.ok()) return spec.status();
  spec_ = *std::move(spec);
  if (absl::Status bad = LoadTextParts(options_, spec_, &log_, &text_); !bad.ok()) return bad;
  absl::StatusOr<std::unique_ptr<SPartDevice>> device = ChooseDevice(options_, &log_);
  if (!device.ok()) return device.status();
  const bool gpu = *device != nullptr;
  absl::StatusOr<Topology> topology = Topology::Discover();
  if (!topology.ok()) return topology.status();
  if (absl::Status bad = ChooseCores(*topology, *endpoints, gpu); !bad.ok()) return bad;
  absl::StatusOr<StartPlan> planned = PlanStart(options_, spec_, *endpoints, core_choice_, gpu, DetectIsa());
  if (!planned.ok()) return planned.status();
  plan_ = *std::move(planned);
  if (absl::Status bad = TakeCalibration(); !bad.ok()) return bad;
  absl::StatusOr<ModelFiles> files = OpenModelFiles(options_, spec_);
  if (!files.ok()) return files.status();

  for (const std::string& note : DescribeModelChoices(options_, spec_, max_context())) log_.Info(note);
  TickClock::Get();  // calibrates, which takes 10 ms: before anybody polls
  const PollMode poll = ChoosePoll(options_, cores_.plan);
  DescribeMachine(*topology);
  if (absl::Status bad = ConnectHomes(*std::move(endpoints), poll); !bad.ok()) return bad;
  if (absl::Status bad = LoadModel(*files, *topology, *std::move(device), poll); !bad.ok()) return bad;
  std::vector<uint64_t> kv_bytes;
  for (size_t i = 0; i < cores_.plan.home_nodes.size(); ++i) {
    kv_bytes.push_back(ChooseKvBytes(options_, plan_.shape, cores_.plan, i));
  }
  if (absl::Status bad = homes_->MakeOwn(spart_.get(), kv_bytes); !bad.ok()) return bad;
  if (absl::Status bad = CheckKvBudget(homes_->pages_max()); !bad.ok()) return bad;

  absl::StatusOr<std::unique_ptr<Recorder>> recorder = Recorder::Create();
  if (!recorder.ok()) return recorder.status();
  recorder_ = *std::move(recorder);
  StartPipeline(poll);
  ResetStatistics();
  created_ns_ = NowNs();
  return StartRecordServer();
}

// One of another model, CPU, KV type or core plan is an error: its costs would be wrong.
absl::Status Engine::TakeCalibration() {
  if (options_.calibration.empty()) return absl::OkStatus();
  absl::StatusOr<Calibration> read = ReadCalibration("--calibration", options_.calibration);
  if (!read.ok()) return read.status();
  const CalibratedEngine engine = ReadCalibratedEngine(DescribeKind());
  if (absl::Status bad = CheckCalibration("--calibration", options_.calibration, *read, engine); !bad.ok()) return bad;
  calibration_ = *std::move(read);
  const int64_t days = (time(nullptr) - calibration_->time_s) / 86'400;
  log_.Info(absl::StrFormat("calibration: %s, %d days old, measured on %s", options_.calibration, days,
                            calibration_->machine));
  return absl::OkStatus();
}

void Engine::DescribeMachine(const Topology& topology) {
  if (const int node = topology.NodeOfCore(cores_.plan.s_cores[0]); node >= 0) {
    engine_node_ = topology.nodes[static_cast<size_t>(node)].os_index;
  }
  log_.Info(DescribeCorePlan());
  if (const std::string front = DescribeFront(); !front.empty()) log_.Info(front);
  machine_ = topology.ToString() + cores_.plan.ToString() + DescribeCorePlan() + "\n";
}

// Who cannot be reached, or refuses, says so before the weights are read; and what no home could hold is known, unless
// that depends on the memory that the weights leave.
absl::Status Engine::ConnectHomes(std::vector<Endpoint> endpoints, PollMode poll) {
  HomesOptions homes;
  homes.endpoints = std::move(endpoints);
  homes.homes_min = options_.homes_min;
  homes.recover_ms = options_.recover_ms;
  homes.plan = cores_.plan;
  homes.fabric = options_.fabric;
  homes.fabric.gpu = plan_.fabric_gpu;
  homes.shape = plan_.shape;
  homes.isa = plan_.isa;
  homes.poll = poll;
  homes.park = options_.poll != Options::Poll::kAlways;
  homes.one_team = core_choice_.share;
  // Some leave while as many others come.
  homes.sequences_max = static_cast<uint32_t>(2 * options_.max_sequences + CachedSequences(options_));
  homes.gpu_home = plan_.gpu_home;
  homes.engine_node = engine_node_;
  homes.engine_id = options_.engine_id != 0 ? options_.engine_id : std::random_device()() | uint64_t{1} << 32;
  homes.logger = &log_;
  homes.fault = plan_.fault;
  absl::StatusOr<std::unique_ptr<Homes>> made = Homes::Create(std::move(homes));
  if (!made.ok()) return made.status();
  homes_ = *std::move(made);
  const bool has_local = !cores_.plan.home_nodes.empty();
  if (plan_.gpu_home || (has_local && options_.kv_gib == 0)) return absl::OkStatus();
  uint64_t pages = homes_->pages_max();
  if (has_local) {
    constexpr uint64_t kRoundedTo = 1 << 30;  // memory comes in pages of up to so many bytes, and a home uses all of it
    const uint64_t page_bytes = PageBytes(plan_.shape.attention()) * plan_.shape.layers;
    const uint64_t bytes =
        (ChooseKvBytes(options_, plan_.shape, cores_.plan, 0) + kRoundedTo - 1) / kRoundedTo * kRoundedTo;
    pages = std::max(pages, bytes / page_bytes);
  }
  return CheckKvBudget(pages);
}

absl::Status Engine::ChooseCores(const Topology& topology, const std::vector<Endpoint>& endpoints, bool gpu) {
  const size_t local_homes = CountLocalHomes(endpoints, WithoutNamedFrontCores(topology, options_.front_cores));
  absl::StatusOr<CoreChoice> choice = ChooseCorePlan(options_, endpoints, gpu);
  if (!choice.ok()) return choice.status();
  core_choice_ = *std::move(choice);
  for (const std::string& warning : {topology.warning, DescribeOpenMpBinding(topology)}) {
    if (!warning.empty()) log_.Warning(warning);
  }
  if (absl::Status bad = PlanCoresFor(topology, local_homes); !bad.ok()) return bad;
  // A team's threads wait for each other several times a layer: the more of them, the more often for one whose core is
  // taken.
  if (core_choice_.share && cores_.plan.contended && options_.core_plan == Options::CorePlanMode::kAuto) {
    core_choice_ = {};
    core_choice_.micro_batches = SplitMicroBatches(options_);
    core_choice_.adapts = options_.micro_batches == 0;
    core_choice_.reason = "--core-plan auto: other processes or a CPU quota leave less than these cores";
    cores_ = {};  // not taken any more, least of all from itself
    if (absl::Status bad = PlanCoresFor(topology, local_homes); !bad.ok()) return bad;
  }
  options_.micro_batches = core_choice_.micro_batches;
  const std::string unpinned = DescribeRefusedPinning(cores_.plan, gpu ? 1 : cores_.plan.s_cores.size());
  if (!unpinned.empty()) cores_.warnings.push_back(unpinned);
  for (const std::string& warning : cores_.warnings) log_.Warning(warning);
  return absl::OkStatus();
}

std::string Engine::DescribeCorePlan() const {
  return absl::StrFormat("core plan: %s, %d micro-batch%s (%s)", core_choice_.share ? "shared" : "split",
                         core_choice_.micro_batches, core_choice_.micro_batches == 1 ? "" : "es", core_choice_.reason);
}

// Empty if nobody asked.
std::string Engine::DescribeFront() const {
  if (options_.front_cores == "none") return "";
  const std::vector<int>& cores = cores_.plan.front_cores;
  return cores.empty()
             ? "--front-cores auto: no core is left to the caller: that needs four physical cores, and one that no "
               "other option names"
             : absl::StrFormat("--front-cores %s: cores %s are left to the caller", options_.front_cores,
                               FormatCores(cores));
}

absl::Status Engine::PlanCoresFor(const Topology& topology, size_t local_homes) {
  CorePlanOptions wanted;
  wanted.s_cores = options_.s_cores;
  wanted.r_cores = options_.r_cores;
  wanted.s_threads = options_.s_threads;
  wanted.r_threads = options_.r_threads;
  wanted.homes = static_cast<int>(local_homes);
  wanted.share = core_choice_.share;
  wanted.front_cores = options_.front_cores;
  absl::StatusOr<ReservedCorePlan> planned = PlanAndReserveCores(topology, wanted);
  if (!planned.ok()) return planned.status();
  cores_ = *std::move(planned);
  return absl::OkStatus();
}

absl::Status Engine::LoadModel(const ModelFiles& files, const Topology& topology, std::unique_ptr<SPartDevice> device,
                               PollMode poll) {
  const std::vector<int>& s_cores = cores_.plan.s_cores;
  const bool one_node = std::all_of(s_cores.begin(), s_cores.end(), [&](int core) {
    return topology.NodeOfCore(core) == topology.NodeOfCore(s_cores[0]);
  });
  SPartPlace place;
  place.type = plan_.type;
  place.shape = plan_.shape;
  place.sequences_max = SequencesPerMicroBatch(options_, plan_.places_for_all);
  place.device = std::move(device);
  place.is_home = plan_.gpu_home;
  place.pushes = plan_.gpu_home && plan_.several_endpoints;
  place.isa = plan_.isa;
  place.poll = poll;
  place.node = one_node ? engine_node_ : -1;
  place.attends = core_choice_.share;
  place.s_cores = s_cores;
  place.all_cores = cores_.plan.AllCores();
  absl::StatusOr<std::unique_ptr<SPart>> spart = LoadSPart(options_, spec_, files, std::move(place), &log_);
  if (!spart.ok()) return spart.status();
  spart_ = *std::move(spart);
  return absl::OkStatus();
}

// `pages`: of the largest home.
absl::Status Engine::CheckKvBudget(uint64_t pages) const {
  const uint64_t tokens = PageCounts(plan_.shape.attention()).TokensIn(pages);
  if (tokens >= plan_.shape.max_context) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrFormat(
      "--kv-gib, --gpu-kv-gib: the largest home holds %d tokens, less than one sequence of --max-context %d; give "
      "more memory or a shorter context%s",
      tokens, plan_.shape.max_context, homes_->DescribeAbsent()));
}

absl::Status Engine::StartRecordServer() {
  if (options_.record_socket == "off") {
    if (!recorder_->not_shared().empty()) log_.Info("nobody else can read recordings: " + recorder_->not_shared());
    return absl::OkStatus();
  }
  const std::string path = options_.record_socket == "auto" ? "" : options_.record_socket;
  absl::StatusOr<std::unique_ptr<RecordServer>> server =
      RecordServer::Start(path, recorder_.get(), [this] { return DescribeRecord(); });
  if (server.ok()) {
    record_server_ = *std::move(server);
    return absl::OkStatus();
  }
  if (!path.empty()) return server.status();
  // Nobody asked for it by name.
  log_.Warning(absl::StrCat("latency attach cannot record this engine: ", server.status().message()));
  return absl::OkStatus();
}

void Engine::StartPipeline(PollMode poll) {
  PipelineOptions options;
  options.limits.micro_batches = options_.micro_batches;
  options.limits.sequences_max = static_cast<uint32_t>(SequencesPerMicroBatch(options_, plan_.places_for_all));
  options.limits.adapts = plan_.adapts;
  options.limits.near_first = plan_.gpu_home;
  options.limits.rows_max = plan_.shape.max_rows;
  options.limits.chunk_tokens_max = static_cast<uint32_t>(options_.prefill_chunk);
  options.limits.ready_max = static_cast<uint32_t>(options_.max_queue);
  options.limits.open_pages = HasOpenPages(plan_.shape.attention());
  options.limits.active_max = static_cast<uint32_t>(options_.max_sequences);
  options.limits.cached_max = static_cast<uint32_t>(CachedSequences(options_));
  options.limits.cached_blocks_max = 1 << 20;
  options.limits.prompts_have_kernel = plan_.gpu_home || MayHavePromptKernel(plan_.shape);
  options.limits.layers = spec_.layers;
  options.limits.calibrated = calibration_.has_value() ? &calibration_->costs : nullptr;
  options.limits.weight_bytes = spart_->weight_bytes();
  options.limits.page_bytes = PageBytes(plan_.shape.attention()) * plan_.shape.layers;
  options.layers = spec_.layers;
  options.vocab = spec_.vocab;
  options.shape = plan_.shape;
  options.core = cores_.plan.s_cores[0];
  options.poll = poll;
  options.park = options_.poll != Options::Poll::kAlways;
  options.hop_timeout_ns = static_cast<uint64_t>(options_.hop_timeout_ms) * 1'000'000;
  options.recover_ns = static_cast<uint64_t>(options_.recover_ms) * 1'000'000;
  options.record = recorder_->writer(Recorder::kPipelineRing);
  pipeline_ = std::make_unique<Pipeline>(options, spart_.get(), &desk_word_);
  desk_ = std::make_unique<RequestDesk>(pipeline_.get(), &desk_word_, static_cast<size_t>(options_.max_queue),
                                        homes_.get(), recorder_->writer(Recorder::kDeskRing));
  pipeline_->Start();
  desk_->Start();
  homes_->Start([this](const PipelineCommand& command) { desk_->Command(command); },
                [this](int home) { return pipeline_->statistics().home_hops[home].value(); });
}

Engine::~Engine() {
  record_server_.reset();
  // Nobody brings homes back; every sequence ends; then the threads, and the links last.
  if (homes_ != nullptr) homes_->Stop();
  if (desk_ != nullptr) desk_->Stop();
  desk_.reset();
  pipeline_.reset();
  homes_.reset();
  spart_.reset();
}

RequestContext Engine::Context() const {
  RequestContext context;
  context.spec = &spec_;
  context.tokenizer = text_.tokenizer.get();
  context.tokenizer_missing_reason = &text_.tokenizer_missing_reason;
  context.max_context = max_context();
  context.sampling_memory = spart_->sampling_memory();
  context.answers_max = std::min(
      {context.answers_max, static_cast<uint32_t>(options_.prefill_chunk), static_cast<uint32_t>(options_.max_queue)});
  context.prefix_cache = options_.prefix_cache;
  context.log = &log_;
  context.warned_of_bos = &warned_of_bos_;
  return context;
}

absl::StatusOr<std::vector<int32_t>> Engine::Tokenize(std::span<const RequestFields::Part> parts,
                                                      bool add_special_tokens) const {
  return EncodeParts(Context(), parts, add_special_tokens);
}

absl::Status Engine::Submit(const RequestFields& request, uint64_t* id) {
  absl::StatusOr<std::unique_ptr<Request>> built = BuildRequest(Context(), request);
  if (!built.ok()) return built.status();
  return desk_->Submit(*std::move(built), id);
}

}  // namespace fastdecode
