#include "engine/start/engine.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/model/model_config.h"
#include "engine/rpart/page_counts.h"
#include "engine/request/build_request.h"
#include "numa/clock.h"
#include "numa/core_plan.h"
#include "numa/openmp_binding.h"
#include "numa/topology.h"

namespace fastdecode {

namespace {

constexpr uint64_t kAnswersNsMax = 1'000'000'000;  // that somebody waits who asks the homes

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

// What the model is; what the machine is; who gets which cores and memory; then the parts, from the weights outwards.
absl::Status Engine::Start() {
  absl::StatusOr<ModelSpec> spec = ReadModelSpec(options_.model);
  if (!spec.ok()) return spec.status();
  spec_ = *std::move(spec);
  if (absl::Status status = LoadTokenizer(); !status.ok()) return status;

  absl::StatusOr<Isa> isa = ChooseIsa(options_);
  if (!isa.ok()) return isa.status();
  absl::StatusOr<std::unique_ptr<SPartDevice>> device = ChooseDevice(options_, &log_);
  if (!device.ok()) return device.status();
  const absl::StatusOr<ElementType> type = ChooseType(options_, *isa, *device != nullptr);
  if (!type.ok()) return type.status();
  absl::StatusOr<int> context = ChooseContext(options_, spec_);
  if (!context.ok()) return context.status();
  absl::StatusOr<std::vector<Endpoint>> endpoints = ParseEndpoints("--homes", options_.homes);
  if (!endpoints.ok()) return endpoints.status();
  gpu_home_ = HasGpuHome(*endpoints);
  if (absl::Status bad = ChooseCores(*endpoints, *device != nullptr); !bad.ok()) return bad;
  if (absl::Status bad = CheckSequences(options_); !bad.ok()) return bad;
  shape_ = MakeShape(spec_, options_, *type, *context, gpu_home_);
  if (absl::Status bad = ValidateShape(shape_); !bad.ok()) return bad;

  if (absl::Status bad = CheckHopTimeout(options_, *endpoints); !bad.ok()) return bad;
  if (absl::Status bad = CheckGpuHome(options_, *endpoints, shape_, *device != nullptr); !bad.ok()) return bad;
  FaultOptions fault;
  if (!options_.fault.empty()) {
    absl::StatusOr<FaultOptions> parsed = ParseFaultOptions("--fault", options_.fault);
    if (!parsed.ok()) return parsed.status();
    fault = *std::move(parsed);
  }
  const absl::StatusOr<int> fabric_gpu = ChooseFabricGpu(options_, *endpoints, fault, *device != nullptr);
  if (!fabric_gpu.ok()) return fabric_gpu.status();
  absl::StatusOr<Topology> topology = Topology::Discover();
  if (!topology.ok()) return topology.status();
  const size_t local_homes = CountLocalHomes(*endpoints, *topology);
  if (absl::Status planned = PlanCoresFor(*topology, local_homes); !planned.ok()) return planned;
  const CorePlan& plan = cores_.plan;
  TickClock::Get();  // calibrates, which takes 10 ms: before anybody polls
  const PollMode poll = ChoosePoll(options_, plan);
  const bool park = options_.poll != Options::Poll::kAlways;
  engine_node_ = -1;
  if (const int node = topology->NodeOfCore(plan.s_cores[0]); node >= 0) engine_node_ = topology->nodes[node].os_index;
  const bool one_node = std::all_of(plan.s_cores.begin(), plan.s_cores.end(), [&](int core) {
    return topology->NodeOfCore(core) == topology->NodeOfCore(plan.s_cores[0]);
  });
  log_.Info(DescribeCorePlan());
  machine_ = topology->ToString() + plan.ToString() + DescribeCorePlan() + "\n";

  SPartPlace place;
  place.node = one_node ? engine_node_ : -1;
  place.type = *type;
  place.device = *std::move(device);
  place.is_home = gpu_home_;
  place.pushes = place.is_home && endpoints->size() > 1;
  place.isa = *isa;
  place.poll = poll;
  if (absl::Status status = LoadModel(std::move(place)); !status.ok()) return status;

  HomesOptions homes;
  homes.endpoints = *std::move(endpoints);
  homes.plan = plan;
  homes.fabric = options_.fabric;
  homes.fabric.gpu = *fabric_gpu;
  homes.shape = shape_;
  for (size_t i = 0; i < local_homes; ++i) homes.kv_bytes.push_back(ChooseKvBytes(options_, shape_, plan, i));
  homes.isa = *isa;
  homes.poll = poll;
  homes.park = park;
  homes.gpu_home = gpu_home_;
  homes.engine_node = engine_node_;
  homes.engine_id = options_.engine_id != 0 ? options_.engine_id : std::random_device()() | uint64_t{1} << 32;
  homes.spart = spart_.get();
  homes.logger = &log_;
  if (!options_.fault.empty()) homes.fault = std::move(fault);
  absl::StatusOr<std::unique_ptr<Homes>> made = Homes::Create(std::move(homes));
  if (!made.ok()) return made.status();
  homes_ = *std::move(made);
  if (absl::Status bad = CheckKvBudget(); !bad.ok()) return bad;

  absl::StatusOr<std::unique_ptr<Recorder>> recorder = Recorder::Create();
  if (!recorder.ok()) return recorder.status();
  recorder_ = *std::move(recorder);
  StartPipeline(poll, park);
  ResetStatistics();
  return StartRecordServer();
}

absl::Status Engine::LoadTokenizer() {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load(options_.model);
  if (tokenizer.ok()) {
    tokenizer_ = *std::move(tokenizer);
    if (!tokenizer_->warning().empty()) log_.Warning(tokenizer_->warning());
    return absl::OkStatus();
  }
  if (!absl::IsNotFound(tokenizer.status()) && !absl::IsUnimplemented(tokenizer.status())) return tokenizer.status();
  tokenizer_missing_reason_ = std::string(tokenizer.status().message());
  log_.Info("no text for this model, token ids only: " + tokenizer_missing_reason_);
  return absl::OkStatus();
}

absl::Status Engine::ChooseCores(const std::vector<Endpoint>& endpoints, bool gpu) {
  absl::StatusOr<CoreChoice> choice = ChooseCorePlan(options_, endpoints, gpu);
  if (!choice.ok()) return choice.status();
  core_choice_ = *std::move(choice);
  options_.micro_batches = core_choice_.micro_batches;
  return absl::OkStatus();
}

std::string Engine::DescribeCorePlan() const {
  return absl::StrFormat("core plan: %s, %d micro-batch%s (%s)", core_choice_.share ? "shared" : "split",
                         core_choice_.micro_batches, core_choice_.micro_batches == 1 ? "" : "es", core_choice_.reason);
}

absl::Status Engine::PlanCoresFor(const Topology& topology, size_t local_homes) {
  const std::string bound = DescribeOpenMpBinding(topology);
  if (!bound.empty()) log_.Warning(bound);
  CorePlanOptions wanted;
  wanted.s_cores = options_.s_cores;
  wanted.r_cores = options_.r_cores;
  wanted.s_threads = options_.s_threads;
  wanted.r_threads = options_.r_threads;
  wanted.homes = static_cast<int>(local_homes);
  wanted.share = core_choice_.share;
  absl::StatusOr<ReservedCorePlan> planned = PlanAndReserveCores(topology, wanted);
  if (!planned.ok()) return planned.status();
  cores_ = *std::move(planned);
  for (const std::string& warning : cores_.warnings) log_.Warning(warning);
  return absl::OkStatus();
}

absl::Status Engine::LoadModel(SPartPlace place) {
  place.shape = shape_;
  place.sequences_max = SequencesPerMicroBatch(options_, gpu_home_);
  place.s_cores = cores_.plan.s_cores;
  place.all_cores = cores_.plan.AllCores();
  absl::StatusOr<std::unique_ptr<SPart>> spart = LoadSPart(options_, spec_, std::move(place), &log_);
  if (!spart.ok()) return spart.status();
  spart_ = *std::move(spart);
  return absl::OkStatus();
}

absl::Status Engine::CheckKvBudget() const {
  const uint64_t tokens = PageCounts(shape_.attention()).TokensIn(homes_->pages_max());
  if (tokens >= shape_.max_context) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrFormat(
      "--kv-gib, --gpu-kv-gib: the largest home holds %d tokens, less than one sequence of --max-context %d; give "
      "more memory or a shorter context",
      tokens, shape_.max_context));
}

absl::Status Engine::StartRecordServer() {
  if (options_.record_socket == "off") return absl::OkStatus();
  const std::string path = options_.record_socket == "auto" ? "" : options_.record_socket;
  absl::StatusOr<std::unique_ptr<RecordServer>> server =
      RecordServer::Start(path, recorder_.get(), [this] { return DescribeRecord(); });
  if (server.ok()) {
    record_server_ = *std::move(server);
    return absl::OkStatus();
  }
  if (!path.empty()) return server.status();
  log_.Warning(std::string(server.status().message()));  // nobody asked for it by name
  return absl::OkStatus();
}

void Engine::StartPipeline(PollMode poll, bool park) {
  PipelineOptions options;
  options.limits.micro_batches = options_.micro_batches;
  options.limits.sequences_max = static_cast<uint32_t>(SequencesPerMicroBatch(options_, gpu_home_));
  options.limits.rows_max = shape_.max_rows;
  options.limits.chunk_tokens_max = static_cast<uint32_t>(options_.prefill_chunk);
  options.limits.ready_max = static_cast<uint32_t>(options_.max_queue);
  options.limits.open_pages = HasOpenPages(shape_.attention());
  options.limits.active_max = static_cast<uint32_t>(options_.max_sequences);
  options.limits.weight_bytes = spart_->weight_bytes();
  options.limits.page_bytes = PageBytes(shape_.attention()) * shape_.layers;
  options.layers = spec_.layers;
  options.vocab = spec_.vocab;
  options.shape = shape_;
  options.core = cores_.plan.s_cores[0];
  options.poll = poll;
  options.park = park;
  options.hop_timeout_ns = static_cast<uint64_t>(options_.hop_timeout_ms) * 1'000'000;
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

absl::Status Engine::Submit(const RequestFields& request, uint64_t* id) {
  RequestContext context;
  context.spec = &spec_;
  context.tokenizer = tokenizer_.get();
  context.tokenizer_missing_reason = &tokenizer_missing_reason_;
  context.max_context = max_context();
  context.sampling_memory = spart_->sampling_memory();
  absl::StatusOr<std::unique_ptr<Request>> built = BuildRequest(context, request);
  if (!built.ok()) return built.status();
  return desk_->Submit(*std::move(built), id);
}

std::string Engine::Describe() const {
  return machine_ + "S-Part: " + spart_->Describe() + "\n" + homes_->Describe() +
         absl::StrFormat("pipeline: %d micro-batch(es), at most %d rows a step, context %d tokens\n",
                         options_.micro_batches, shape_.max_rows, shape_.max_context);
}

std::unique_ptr<RecordReader> Engine::OpenRecord() const {
  return std::make_unique<RecordReader>(recorder_.get(), DescribeRecord());
}

// Of the model no more than its name and shape: no path.
nlohmann::json Engine::DescribeRecord() const {
  const AttentionShape attention = shape_.attention();
  const auto core_list = [](const std::vector<int>& cores) { return nlohmann::json(cores); };
  nlohmann::json out = {{"version", FASTDECODE_VERSION},
                        {"pid", getpid()},
                        {"model", std::filesystem::path(options_.model).lexically_normal().filename().string()},
                        {"layers", spec_.layers},
                        {"hidden", spec_.hidden},
                        {"heads", attention.kv_heads * attention.group},
                        {"kv_heads", attention.kv_heads},
                        {"head_dim", attention.head_dim},
                        {"kv_type", KvTypeName(attention.kv_type)},
                        {"vocab", spec_.vocab},
                        {"max_context", shape_.max_context},
                        {"micro_batches", options_.micro_batches},
                        {"max_sequences", options_.max_sequences},
                        {"max_rows", shape_.max_rows},
                        {"weight_bytes", spart_->weight_bytes()},
                        {"s_part", spart_->Describe()},
                        {"s_part_asynchronous", spart_->asynchronous()},
                        {"core_plan", core_choice_.share ? "shared" : "split"},
                        {"s_cores", core_list(cores_.plan.s_cores)},
                        {"machine", machine_},
                        {"ns_per_event", MeasureEventNs()},
                        {"tsc", TickClock::Get().uses_tsc()},
                        {"ticks_per_second", TickClock::Get().ticks_per_second()},
                        {"homes", nlohmann::json::array()}};
  for (const Homes::Info& home : homes_->List()) {
    out["homes"].push_back({{"index", home.index},
                            {"up", home.up},
                            {"name", home.name},
                            {"link", home.link},
                            {"same_host", home.same_host},
                            {"link_device", home.line.device},
                            {"link_gbit_per_s", home.line.gbit_per_s},
                            {"node", home.description.node},
                            {"threads", home.description.threads},
                            {"isa", std::string(home.description.isa, strnlen(home.description.isa, 16))},
                            {"memory", std::string(home.description.memory, strnlen(home.description.memory, 80))},
                            {"cores", core_list(home.cores)}});
  }
  return out;
}

std::string Engine::StatisticsJson() const {
  const PipelineStatistics& statistics = pipeline_->statistics();
  StatisticsGauges gauges;
  gauges.active_sequences = statistics.active_sequences.load(std::memory_order_relaxed);
  gauges.ready_sequences = statistics.ready_sequences.load(std::memory_order_relaxed);
  gauges.weight_bytes = spart_->weight_bytes();
  gauges.micro_batches = options_.micro_batches;
  gauges.s_cores = cores_.plan.s_cores;
  std::lock_guard lock(statistics_mutex_);
  return ToJson(Difference(TakeSnapshot(statistics), baseline_), homes_->List(), gauges);
}

std::string Engine::PagesJson() {
  const PipelineStatistics& statistics = pipeline_->statistics();
  PipelineCommand command;
  command.kind = PipelineCommand::Kind::kAskHomes;
  uint64_t ask;
  {
    std::lock_guard lock(asks_mutex_);  // commands arrive in the order of their numbers
    desk_->Command(command);
    ask = ++asks_;
  }
  const auto answered = [&] {
    // Acquire: pairs with the pipeline's releases.
    return statistics.asks.load(std::memory_order_acquire) >= ask &&
           statistics.answers_due.load(std::memory_order_acquire) == 0;
  };
  const uint64_t start_ns = NowNs();
  while (!answered() && NowNs() - start_ns < kAnswersNsMax) std::this_thread::sleep_for(std::chrono::microseconds(100));
  return PagesToJson(statistics, ask, homes_->List());
}

void Engine::ResetStatistics() {
  StatisticsSnapshot now = TakeSnapshot(pipeline_->statistics());
  std::lock_guard lock(statistics_mutex_);
  baseline_ = std::move(now);
}

}  // namespace fastdecode
