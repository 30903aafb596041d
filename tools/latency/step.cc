// fastdecode latency step: where the time of a token goes, of a model under load.
#include "tools/latency/step.h"

#include <algorithm>
#include <chrono>
#include <fastdecode/fastdecode.hpp>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"
#include "numa/clock.h"
#include "tools/bench/read_bandwidth.h"
#include "tools/engine_flags.h"
#include "tools/interrupt.h"
#include "tools/latency/load.h"
#include "tools/latency/recorded_run.h"
#include "tools/latency/recording_cost.h"
#include "tools/latency/report_flags.h"
#include "tools/load_engine.h"
#include "tools/option_values.h"

namespace fastdecode {

namespace {

struct StepFlags {
  LoadFlags load;
  RecordFlags record;
  ReportFlags report;
  double warmup_seconds = 2;
  int cost_pairs = 0;
};

void WaitOrStop(double seconds) {
  const uint64_t end_ns = NowNs() + static_cast<uint64_t>(seconds * 1e9);
  while (NowNs() < end_ns && InterruptGuard::Signal() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  ThrowIfInterrupted();
}

// Tokens come evenly once the load has settled; if not, the figures are of no state that lasts.
void WarnUnlessSteady(const Recording& recording, LatencyResult* result) {
  constexpr double kDriftMax = 0.15;
  constexpr double kTokensMin = 200;
  const uint64_t middle_ns = recording.events.front().end_ns / 2 + recording.events.back().end_ns / 2;
  double halves[2] = {};
  for (const fd_record_event& event : recording.events) {
    if (event.kind == FD_RECORD_TOKEN) halves[event.end_ns > middle_ns] += 1;
  }
  if (halves[0] + halves[1] < kTokensMin ||
      std::abs(halves[1] - halves[0]) <= kDriftMax * std::max(halves[0], halves[1]))
    return;
  result->warnings.push_back("not steady: the second half has " + std::to_string(static_cast<int>(halves[1])) +
                             " tokens, the first " + std::to_string(static_cast<int>(halves[0])) +
                             "; give more --warmup-seconds");
}

// What the same cores read, with the engine gone: each side alone, as `bench step` does. Of a home it is also in
// *home_gb_per_s, which stays as it is where homes are another process's. Of a GPU's memory nothing is known here.
std::vector<Achieved> MeasureAchieved(const nlohmann::json& statistics, bool on_gpu, double* home_gb_per_s) {
  std::vector<Achieved> achieved;
  const CoreGroup s_cores = statistics["s_cores"];
  CoreGroup r_cores;
  double hops = 0;
  for (const nlohmann::json& home : statistics["homes"]) {
    if (!home.contains("cores")) return achieved;  // another process's: not ours to load
    hops += home["hops"].get<double>();
    const CoreGroup cores = home["cores"];
    r_cores.insert(r_cores.end(), cores.begin(), cores.end());
  }
  const double s_busy_ns = statistics["s_busy_ns"].get<double>();
  const double weights = statistics["weight_bytes"].get<double>() * statistics["steps"].get<double>();
  if (s_busy_ns > 0 && !on_gpu) {
    achieved.push_back(
        {"weights read, S-Part", weights / s_busy_ns, MeasureReadBandwidth({s_cores})[0], "GB/s", kReadTest});
  }
  *home_gb_per_s = MeasureReadBandwidth({r_cores})[0] / static_cast<double>(statistics["homes"].size());
  if (hops > 0) {  // where stages attend, nobody says how long that took
    achieved.push_back({"KV read, a home", statistics["kv_gb_per_s"].get<double>(), *home_gb_per_s, "GB/s", kReadTest});
  }
  for (Achieved& one : achieved) NoteCache(&one);
  return achieved;
}

void LatencyStep(StepFlags& flags, EngineFlags& engine_flags) {
  flags.report.Check();
  const std::unique_ptr<EngineOptions> options = engine_flags.Build();
  LatencyResult result;
  result.command = "step";
  Recording recording;
  nlohmann::json statistics, paired_cost;
  bool interrupted = false;
  {
    const std::unique_ptr<InferenceEngine> made = LoadEngine(*options);
    InferenceEngine& engine = *made;
    CheckLoad(engine, flags.load);
    const InterruptGuard guard;
    Load load(engine, flags.load);
    WaitOrStop(flags.warmup_seconds);
    if (load.failed()) load.Stop();  // throws
    if (flags.cost_pairs > 0) paired_cost = MeasureRecordingCost(engine, flags.cost_pairs);
    engine.ResetStatistics();
    {
      EngineRecord record(engine);
      recording = Record(record, flags.record, &result, [&load] { return load.failed(); });
    }
    interrupted = InterruptGuard::Signal() != 0;
    statistics = nlohmann::json::parse(engine.StatisticsJson());
    load.Stop();
    if (flags.load.rate > 0) {
      recording.intended = load.starts();
      if (load.never_started() > 0) {
        result.warnings.push_back(
            std::to_string(load.never_started()) +
            " requests were never taken by the engine's full queue: --rate is more than it serves");
      }
    }
  }
  if (!paired_cost.is_null()) result.recording_cost.update(paired_cost);
  WarnUnlessSteady(recording, &result);
  if (interrupted) {
    result.warnings.push_back("interrupted: what this machine's memory can do was not measured");
  } else {
    result.achieved = MeasureAchieved(statistics, recording.stages_overlap(), &recording.memory_gb_per_s);
  }
  flags.report.Report(std::move(recording), std::move(result));
}

}  // namespace

void AddLatencyStep(CLI::App* latency) {
  auto flags = std::make_shared<StepFlags>();
  CLI::App* command = latency->add_subcommand(
      "step", "A model under load, recorded: where the time of its tokens goes, and what is wrong with it");
  flags->load.AddTo(command);
  command->add_option("--warmup-seconds", flags->warmup_seconds, "of load before the recording")
      ->transform(Number(0.0, 3600.0))
      ->type_name("S")
      ->capture_default_str();
  flags->record.AddTo(command);
  flags->report.AddTo(command);
  command
      ->add_option("--cost-pairs", flags->cost_pairs,
                   "first measure what recording costs: so many pairs of half a second, with and without")
      ->transform(Number(0, 10'000))
      ->type_name("N")
      ->capture_default_str();
  auto engine_flags = std::make_shared<EngineFlags>(command, EngineFlagNames());
  command->callback([flags, engine_flags] { LatencyStep(*flags, *engine_flags); });
}

}  // namespace fastdecode
