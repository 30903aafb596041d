// What an engine says of itself: descriptions, statistics, counts.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "absl/strings/str_format.h"
#include "engine/start/engine.h"
#include "engine/start/model_json.h"
#include "numa/clock.h"

namespace fastdecode {

std::string Engine::Describe() const {
  return machine_ + "S-Part: " + spart_->Describe() + "\n" + homes_->Describe() +
         absl::StrFormat("pipeline: %d micro-batch(es), at most %d rows a step, context %d tokens\n",
                         options_.micro_batches, plan_.shape.max_rows, plan_.shape.max_context);
}

std::unique_ptr<RecordReader> Engine::OpenRecord() const {
  return std::make_unique<RecordReader>(recorder_.get(), DescribeRecord());
}

nlohmann::json Engine::DescribeKind() const {
  const AttentionShape attention = plan_.shape.attention();
  return {{"layers", spec_.layers},
          {"hidden", spec_.hidden},
          {"heads", attention.kv_heads * attention.group},
          {"kv_heads", attention.kv_heads},
          {"head_dim", attention.head_dim},
          {"kv_type", KvTypeName(attention.kv_type)},
          {"intermediate", spec_.intermediate},
          {"compute", ElementName(plan_.type)},
          {"isa", IsaName(plan_.isa)},
          {"vocab", spec_.vocab},
          {"core_plan", core_choice_.share ? "shared" : "split"},
          {"home_kinds", plan_.home_kinds}};
}

// It tells the name and shape of the model, but no path.
nlohmann::json Engine::DescribeRecord() const {
  const auto core_list = [](const std::vector<int>& cores) { return nlohmann::json(cores); };
  nlohmann::json out = {{"version", FASTDECODE_VERSION},
                        {"pid", getpid()},
                        {"model", std::filesystem::path(options_.model).lexically_normal().filename().string()},
                        {"max_context", plan_.shape.max_context},
                        {"micro_batches", options_.micro_batches},
                        {"max_sequences", options_.max_sequences},
                        {"max_rows", plan_.shape.max_rows},
                        {"weight_bytes", spart_->weight_bytes()},
                        {"s_part", spart_->Describe()},
                        {"s_part_asynchronous", spart_->asynchronous()},
                        {"s_cores", core_list(cores_.plan.s_cores)},
                        {"machine", machine_},
                        {"ns_per_event", MeasureEventNs()},
                        {"tsc", TickClock::Get().uses_tsc()},
                        {"ticks_per_second", TickClock::Get().ticks_per_second()},
                        {"homes", nlohmann::json::array()}};
  out.update(DescribeKind());
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
  gauges.calibrated = calibration_.has_value();
  gauges.s_factor = statistics.s_cost_factor.load(std::memory_order_relaxed);
  for (int h = 0; h < kMaxHomes; ++h) {
    gauges.home_factors.push_back(statistics.home_cost_factor[h].load(std::memory_order_relaxed));
    gauges.home_pages_cached.push_back(statistics.home_pages_cached[h].load(std::memory_order_relaxed));
  }
  std::lock_guard lock(statistics_mutex_);
  return ToJson(Difference(TakeSnapshot(statistics), baseline_), homes_->List(), gauges);
}

EngineCounts Engine::Counts() const {
  const PipelineStatistics& statistics = pipeline_->statistics();
  EngineCounts counts;
  counts.desk = desk_->statistics();
  const uint64_t active = statistics.active_sequences.load(std::memory_order_relaxed);
  counts.running = std::min(counts.desk.running, active);
  counts.running_answers = std::min(counts.desk.running_answers, active);
  for (const Homes::Info& home : homes_->List()) {
    ++counts.homes;
    if (!home.up) continue;
    ++counts.homes_up;
    counts.kv_pages += home.description.pages;
    counts.kv_pages_used += statistics.home_pages_used[home.index].load(std::memory_order_relaxed);
    counts.kv_pages_cached += statistics.home_pages_cached[home.index].load(std::memory_order_relaxed);
  }
  // What was found is read first: it is never more than what was looked up.
  for (int h = 0; h < kMaxHomes; ++h) counts.cached_tokens += statistics.home_cached_tokens[h].value();
  counts.prefix_tokens = statistics.prefix_tokens.value();
  counts.preemptions = statistics.preemptions.value();
  counts.recovered = statistics.recovered.value();  // before the other, which is never less
  counts.recoveries = statistics.recoveries.value();
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
  counts.cached_tokens = statistics.home_cached_tokens[home].value();
  counts.kv_pages = glance.pages;
  if (!glance.up) return counts;
  counts.kv_pages_used = statistics.home_pages_used[home].load(std::memory_order_relaxed);
  counts.kv_pages_cached = statistics.home_pages_cached[home].load(std::memory_order_relaxed);
  return counts;
}

std::string Engine::DescribeModel() const {
  return ModelToJson(options_.model, spec_, max_context(), text_.tokenizer.get());
}

std::string Engine::PagesJson() const { return PagesToJson(pipeline_->statistics(), homes_->List(), NowNs()); }

void Engine::ResetStatistics() {
  StatisticsSnapshot now = TakeSnapshot(pipeline_->statistics());
  std::lock_guard lock(statistics_mutex_);
  baseline_ = std::move(now);
}

}  // namespace fastdecode
