#include "engine/start/engine.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/model/model_config.h"
#include "engine/request/build_request.h"
#include "engine/rpart/page_counts.h"
#include "engine/start/model_json.h"
#include "numa/clock.h"
#include "numa/core_plan.h"
#include "numa/front_cores.h"
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

// Everything that can be refused is refused before a weight is read: options, files, cores, workers. Then the parts,
// from the weights outwards.
absl::Status Engine::Start() {
  absl::StatusOr<ModelSpec> spec = ReadModelSpec(options_.model);
  if (!spec.ok()) return spec.status();
  spec_ = *std::move(spec);
  if (absl::Status bad = LoadTokenizer(); !bad.ok()) return bad;
  if (absl::Status bad = LoadChatTemplate(); !bad.ok()) return bad;
  absl::StatusOr<std::vector<Endpoint>> endpoints = ParseEndpoints("--homes", options_.homes);
  if (!endpoints.ok()) return endpoints.status();
  absl::StatusOr<std::unique_ptr<SPartDevice>> device = ChooseDevice(options_, &log_);
  if (!device.ok()) return device.status();
  const bool gpu = *device != nullptr;
  absl::StatusOr<Topology> topology = Topology::Discover();
  if (!topology.ok()) return topology.status();
  if (absl::Status bad = ChooseCores(*topology, *endpoints, gpu); !bad.ok()) return bad;
  absl::StatusOr<StartPlan> planned = PlanStart(options_, spec_, *endpoints, gpu, DetectIsa());
  if (!planned.ok()) return planned.status();
  plan_ = *std::move(planned);
  absl::StatusOr<ModelFiles> files = OpenModelFiles(options_, spec_);
  if (!files.ok()) return files.status();

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
  homes.plan = cores_.plan;
  homes.fabric = options_.fabric;
  homes.fabric.gpu = plan_.fabric_gpu;
  homes.shape = plan_.shape;
  homes.isa = plan_.isa;
  homes.poll = poll;
  homes.park = options_.poll != Options::Poll::kAlways;
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

// What is wrong with a tokenizer stops nobody who does without text.
absl::Status Engine::LoadTokenizer() {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load(options_.model);
  if (!tokenizer.ok()) {
    const std::string reason(tokenizer.status().message());
    if (options_.need_text) {
      return absl::Status(tokenizer.status().code(),
                          reason + "; to run on token ids alone, leave need-text out (generate: --prompt-ids)");
    }
    const LogLevel level = absl::IsNotFound(tokenizer.status()) ? LogLevel::kInfo : LogLevel::kWarning;
    log_.Log(level, "no text for this model, token ids only: " + reason);
    tokenizer_missing_reason_ = reason;
    return absl::OkStatus();
  }
  tokenizer_ = *std::move(tokenizer);
  if (!tokenizer_->warning().empty()) log_.Warning(tokenizer_->warning());
  if (tokenizer_->vocab_size() > spec_.vocab) {
    log_.Warning(
        absl::StrFormat("%s: it has token ids up to %d, and the model's vocabulary has %d rows: prompts with ids from "
                        "%d on are refused",
                        tokenizer_->file(), tokenizer_->vocab_size() - 1, spec_.vocab, spec_.vocab));
  }
  return absl::OkStatus();
}

// What is wrong with the folder's template stops nobody who does without chats; one that the options name must work.
absl::Status Engine::LoadChatTemplate() {
  if (tokenizer_ == nullptr) {
    if (!options_.chat_template.empty()) {
      return absl::InvalidArgumentError("--chat-template: this model has no tokenizer: " + tokenizer_missing_reason_);
    }
    chat_template_missing_reason_ = "this model has no tokenizer: " + tokenizer_missing_reason_;
    return absl::OkStatus();
  }
  const absl::StatusOr<ChatFiles> files = ReadChatFiles(options_.model, options_.chat_template);
  absl::StatusOr<std::unique_ptr<const ChatTemplate>> made =
      files.ok() ? ChatTemplate::Create(*files, *tokenizer_) : files.status();
  if (!made.ok()) {
    if (!options_.chat_template.empty()) {
      return absl::Status(made.status().code(), absl::StrCat("--chat-template: ", made.status().message()));
    }
    chat_template_missing_reason_ = std::string(made.status().message());
    const LogLevel level = absl::IsNotFound(made.status()) ? LogLevel::kInfo : LogLevel::kWarning;
    log_.Log(level, "no chats for this model: " + chat_template_missing_reason_);
    return absl::OkStatus();
  }
  chat_template_ = *std::move(made);
  const std::string guarded = absl::StrJoin(chat_template_->GuardedTexts(), "\n");
  if (absl::Status bad = tokenizer_->CheckTextBytes("chat template", guarded.size()); !bad.ok()) return bad;
  tokenizer_->GuardTokensIn(guarded);
  return absl::OkStatus();
}

absl::Status Engine::ChooseCores(const Topology& topology, const std::vector<Endpoint>& endpoints, bool gpu) {
  const size_t local_homes = CountLocalHomes(endpoints, WithoutNamedFrontCores(topology, options_.front_cores));
  absl::StatusOr<CoreChoice> choice = ChooseCorePlan(options_, endpoints, gpu);
  if (!choice.ok()) return choice.status();
  core_choice_ = *std::move(choice);
  const std::string bound = DescribeOpenMpBinding(topology);
  if (!bound.empty()) log_.Warning(bound);
  if (absl::Status bad = PlanCoresFor(topology, local_homes); !bad.ok()) return bad;
  // Threads that yield to other processes would yield to the other team's, too, and could not tell for whom.
  if (core_choice_.share && cores_.plan.contended && options_.core_plan == Options::CorePlanMode::kAuto) {
    core_choice_ = {false, SplitMicroBatches(options_),
                    "--core-plan auto: other processes or a CPU quota leave less than these cores"};
    cores_ = {};  // not taken any more, least of all from itself
    if (absl::Status bad = PlanCoresFor(topology, local_homes); !bad.ok()) return bad;
  }
  options_.micro_batches = core_choice_.micro_batches;
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
  place.sequences_max = SequencesPerMicroBatch(options_, plan_.gpu_home);
  place.device = std::move(device);
  place.is_home = plan_.gpu_home;
  place.pushes = plan_.gpu_home && plan_.several_endpoints;
  place.isa = plan_.isa;
  place.poll = poll;
  place.node = one_node ? engine_node_ : -1;
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
      "more memory or a shorter context",
      tokens, plan_.shape.max_context));
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

void Engine::StartPipeline(PollMode poll) {
  PipelineOptions options;
  options.limits.micro_batches = options_.micro_batches;
  options.limits.sequences_max = static_cast<uint32_t>(SequencesPerMicroBatch(options_, plan_.gpu_home));
  options.limits.rows_max = plan_.shape.max_rows;
  options.limits.chunk_tokens_max = static_cast<uint32_t>(options_.prefill_chunk);
  options.limits.ready_max = static_cast<uint32_t>(options_.max_queue);
  options.limits.open_pages = HasOpenPages(plan_.shape.attention());
  options.limits.active_max = static_cast<uint32_t>(options_.max_sequences);
  options.limits.weight_bytes = spart_->weight_bytes();
  options.limits.page_bytes = PageBytes(plan_.shape.attention()) * plan_.shape.layers;
  options.layers = spec_.layers;
  options.vocab = spec_.vocab;
  options.shape = plan_.shape;
  options.core = cores_.plan.s_cores[0];
  options.poll = poll;
  options.park = options_.poll != Options::Poll::kAlways;
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

RequestContext Engine::Context() const {
  RequestContext context;
  context.spec = &spec_;
  context.tokenizer = tokenizer_.get();
  context.tokenizer_missing_reason = &tokenizer_missing_reason_;
  context.max_context = max_context();
  context.sampling_memory = spart_->sampling_memory();
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

std::string Engine::Describe() const {
  return machine_ + "S-Part: " + spart_->Describe() + "\n" + homes_->Describe() +
         absl::StrFormat("pipeline: %d micro-batch(es), at most %d rows a step, context %d tokens\n",
                         options_.micro_batches, plan_.shape.max_rows, plan_.shape.max_context);
}

std::unique_ptr<RecordReader> Engine::OpenRecord() const {
  return std::make_unique<RecordReader>(recorder_.get(), DescribeRecord());
}

// Of the model no more than its name and shape: no path.
nlohmann::json Engine::DescribeRecord() const {
  const AttentionShape attention = plan_.shape.attention();
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
                        {"max_context", plan_.shape.max_context},
                        {"micro_batches", options_.micro_batches},
                        {"max_sequences", options_.max_sequences},
                        {"max_rows", plan_.shape.max_rows},
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

EngineCounts Engine::Counts() const {
  const PipelineStatistics& statistics = pipeline_->statistics();
  EngineCounts counts;
  counts.desk = desk_->statistics();
  counts.running = std::min<uint64_t>(counts.desk.running, statistics.active_sequences.load(std::memory_order_relaxed));
  for (const Homes::Info& home : homes_->List()) {
    ++counts.homes;
    if (!home.up) continue;
    ++counts.homes_up;
    counts.kv_pages += home.description.pages;
    counts.kv_pages_used += statistics.home_pages_used[home.index].load(std::memory_order_relaxed);
  }
  counts.preemptions = statistics.preemptions.value();
  counts.steps = statistics.steps.value();
  counts.rows = statistics.rows.value();
  counts.hops = statistics.hops.value();
  counts.s_busy_ns = statistics.s_busy_ns.value();
  counts.last_step_ns = statistics.last_step_ns.load(std::memory_order_relaxed);
  counts.created_ns = created_ns_;
  counts.now_ns = NowNs();
  return counts;
}

EngineHomeCounts Engine::CountsOfHome(size_t home) const {
  const PipelineStatistics& statistics = pipeline_->statistics();
  const Homes::Glance glance = homes_->Look(home);
  EngineHomeCounts counts;
  counts.name = glance.name;
  counts.up = glance.up;
  counts.hops = statistics.home_hops[home].value();
  counts.work_ns = statistics.r_busy_ns[home].value();
  counts.last_reply_ns = statistics.home_last_reply_ns[home].load(std::memory_order_relaxed);
  counts.losses = glance.losses;
  counts.kv_pages = glance.pages;
  if (glance.up) counts.kv_pages_used = statistics.home_pages_used[home].load(std::memory_order_relaxed);
  return counts;
}

std::string Engine::DescribeModel() const {
  return ModelToJson(options_.model, spec_, max_context(), tokenizer_.get());
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
