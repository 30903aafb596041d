// fastdecode calibrate: what steps of a model cost on this machine, and how well that foretells them.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <fastdecode/fastdecode.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "engine/bench/fit_costs.h"
#include "nlohmann/json.hpp"
#include "tools/bench/step_window.h"
#include "tools/bench/summary.h"
#include "tools/commands.h"
#include "tools/engine_flags.h"
#include "tools/interrupt.h"
#include "tools/latency/machine/provenance.h"
#include "tools/load_engine.h"
#include "tools/option_values.h"
#include "tools/output.h"

namespace fastdecode {

namespace {

struct CalibrateFlags {
  std::string out;
  std::string check;
  std::vector<int> batches = {1, 4, 16, 64, 128, 256};
  std::vector<int> contexts = {32, 512, 2048, 8192};
  double seconds = 1.5;
};

using Windows = std::vector<MeasuredWindow>;

// Rounds of a window at most, and before it.
constexpr int kRoundsMax = 400, kWarmupRounds = 2;

std::string MachineName() {
  const nlohmann::json found = ReadProvenance(SysRoot(), ProvenanceInput::Now(fd_version()));
  return found.contains("cpu") && found["cpu"]["model"].is_string() ? found["cpu"]["model"].get<std::string>() : "";
}

void ThrowIfInterrupted() {
  if (const int signal = InterruptGuard::Signal(); signal != 0) throw Interrupted(signal);
}

// One point of the grid, for about as long as asked. A first short window says how long its rounds take. Nothing: the
// machine was too busy for it.
std::optional<MeasuredWindow> MeasurePoint(InferenceEngine& engine, StepWindow window, double seconds) {
  constexpr int kRoundsMin = 5;
  window.rounds = kRoundsMin;
  std::optional<MeasuredWindow> measured;
  try {
    absl::StatusOr<MeasuredWindow> first = ReadWindow(MeasureWindow(engine, window));
    ThrowUnlessOk(first.status());
    measured = *std::move(first);
    ThrowIfInterrupted();
    window.rounds =
        static_cast<int>(std::clamp(seconds * 1e6 / measured->round_us, 1.0 * kRoundsMin, 1.0 * kRoundsMax));
    if (window.rounds == kRoundsMin) return measured;
    absl::StatusOr<MeasuredWindow> longer = ReadWindow(MeasureWindow(engine, window));
    ThrowUnlessOk(longer.status());
    measured = *std::move(longer);
  } catch (const Error& error) {
    if (error.code() != FD_UNAVAILABLE) throw;
    std::fprintf(stderr, "fastdecode: warning: batch %d, context %d is %s: %s\n", window.batch, window.context,
                 measured.has_value() ? "measured for a moment only" : "left out", error.what());
  }
  ThrowIfInterrupted();
  return measured;
}

void ShowPoint(const MeasuredWindow& window, bool quiet) {
  if (quiet) return;
  std::fprintf(stderr, "batch %d, context %d, %d micro-batch%s: a round takes %.1f us\n", window.batch, window.context,
               window.micro_batches, window.micro_batches == 1 ? "" : "es", window.round_us);
}

// `micro_batches`: instead of what the options say; 0: as they say.
std::unique_ptr<InferenceEngine> LoadForGrid(const EngineFlags& flags, int micro_batches) {
  const std::unique_ptr<EngineOptions> options = flags.Build();
  if (micro_batches > 0) options->Set("micro-batches", std::to_string(micro_batches));
  return LoadEngine(*options);
}

nlohmann::json DescriptionOf(InferenceEngine& engine) {
  return nlohmann::json::parse(EngineRecord(engine).DescribeJson());
}

bool Fits(const InferenceEngine& engine, const EngineFlags& flags, int batch, int context) {
  const StepWindow window = {.batch = batch, .context = context, .rounds = kRoundsMax, .warmup_rounds = kWarmupRounds};
  return engine.max_context() >= window.tokens() && batch <= std::stoi(flags.Value("max-sequences")) &&
         SequencesThatFit(engine, window) >= static_cast<uint64_t>(batch);
}

// All points of the grid that the engine holds, with these batches.
Windows MeasureGrid(InferenceEngine& engine, const EngineFlags& flags, const CalibrateFlags& grid,
                    const std::vector<int>& batches) {
  Windows windows;
  for (const int batch : batches) {
    for (const int context : grid.contexts) {
      if (!Fits(engine, flags, batch, context)) continue;
      const StepWindow window = {.batch = batch, .context = context, .warmup_rounds = kWarmupRounds};
      const std::optional<MeasuredWindow> measured = MeasurePoint(engine, window, grid.seconds);
      if (!measured.has_value()) continue;
      windows.push_back(*measured);
      ShowPoint(windows.back(), flags.quiet());
    }
  }
  return windows;
}

void ThrowIfEmpty(const Windows& windows) {
  if (!windows.empty()) return;
  throw Error(FD_RESOURCE_EXHAUSTED,
              "--batches, --contexts: no point was measured: --kv-gib gives the homes more memory, --max-sequences and "
              "--max-context let more and longer sequences in");
}

std::string LimitName(const RoundTimes& round) {
  switch (round.limit) {
    case RoundLimit::kSPart:
      return "S-Part";
    case RoundLimit::kHome:
      return "home " + std::to_string(round.home);
    case RoundLimit::kLink:
      return "link";
    case RoundLimit::kPath:
      return "S-Part and home in turn";
  }
  return "";
}

std::string ResidualsText(const std::vector<Residual>& residuals) {
  std::string text = "batch context  K   measured us  predicted us   error  limited by\n";
  std::vector<double> errors;
  char line[256];
  for (const Residual& each : residuals) {
    const MeasuredWindow& window = each.window;
    errors.push_back(std::abs(each.ratio() - 1));
    std::snprintf(line, sizeof(line), "%5d %7d %2d %13.1f %13.1f %+6.1f%%  %s%s\n", window.batch, window.context,
                  window.micro_batches, window.round_us, each.predicted.us, 100 * (each.ratio() - 1),
                  LimitName(each.predicted).c_str(),
                  each.predicted.extrapolated ? " (beyond what was calibrated)" : "");
    text += line;
  }
  const Summary summary = Summarize(errors);
  std::snprintf(line, sizeof(line), "error: median %.1f %%, at most %.1f %%\n", 100 * summary.median,
                100 * summary.max);
  return text + line;
}

// Where and when the costs were measured.
std::string Provenance(const Calibration& calibration) {
  const double days = std::max(0.0, std::difftime(std::time(nullptr), static_cast<time_t>(calibration.time_s)) / 86400);
  char line[256];
  std::snprintf(line, sizeof(line), "calibrated by fastdecode %s on %s, %.1f days ago\n", calibration.version.c_str(),
                calibration.machine.empty() ? "an unknown processor" : calibration.machine.c_str(), days);
  return line;
}

nlohmann::json ResidualsJson(const std::vector<Residual>& residuals) {
  nlohmann::json list = nlohmann::json::array();
  for (const Residual& each : residuals) {
    list.push_back({{"batch", each.window.batch},
                    {"context", each.window.context},
                    {"micro_batches", each.window.micro_batches},
                    {"measured_us", each.window.round_us},
                    {"predicted_us", each.predicted.us}});
  }
  return list;
}

// How both sides slow each other down is seen at one batch of some rows: the largest up to 64 that fits.
std::vector<int> BatchOfSlowing(const InferenceEngine& engine, const EngineFlags& flags, const CalibrateFlags& grid) {
  constexpr int kRowsWanted = 64;
  int best = 0;
  for (const int batch : grid.batches) {
    if (batch <= kRowsWanted && Fits(engine, flags, batch, grid.contexts[0])) best = std::max(best, batch);
  }
  return best > 0 ? std::vector<int>{best} : std::vector<int>{};
}

void SetDefaults(const CalibrateFlags& grid, EngineFlags* flags) {
  flags->SetDefault("prefill-chunk", "16");
  flags->SetDefault("max-sequences", std::to_string(*std::max_element(grid.batches.begin(), grid.batches.end())));
}

void Calibrate(const CalibrateFlags& grid, EngineFlags& flags) {
  const InterruptGuard guard;
  SetDefaults(grid, &flags);
  if (grid.batches.size() > CostCurve::kPointsMax) {
    throw Error(FD_INVALID_ARGUMENT, "--batches: " + std::to_string(grid.batches.size()) + " are more than " +
                                         std::to_string(CostCurve::kPointsMax));
  }
  CheckWritable("--out", grid.out);
  std::unique_ptr<InferenceEngine> engine = LoadForGrid(flags, 0);
  const nlohmann::json description = DescriptionOf(*engine);
  Windows several;
  if (description.at("micro_batches") != 1) {
    several = MeasureGrid(*engine, flags, grid, BatchOfSlowing(*engine, flags, grid));
    engine.reset();
    engine = LoadForGrid(flags, 1);
  }
  Windows windows = MeasureGrid(*engine, flags, grid, grid.batches);
  ThrowIfEmpty(windows);
  windows.insert(windows.end(), several.begin(), several.end());

  Calibration calibration;
  calibration.engine = ReadCalibratedEngine(description);
  const Fit fit = FitCosts(windows, calibration.engine.layers, calibration.engine.core_plan == "shared");
  calibration.costs = fit.costs;
  calibration.homes = static_cast<int>(windows[0].homes.size());
  calibration.version = fd_version();
  calibration.machine = MachineName();
  calibration.time_s = std::time(nullptr);
  nlohmann::json json = ToJson(calibration);
  json["residuals"] = ResidualsJson(fit.residuals);
  WriteFile("--out", grid.out, [&](std::ostream& out) { out << json.dump(2) << "\n"; });
  WriteOut(Provenance(calibration) + ResidualsText(fit.residuals));
}

// What the file says against what the engine does now.
void Check(const CalibrateFlags& grid, EngineFlags& flags) {
  const InterruptGuard guard;
  const absl::StatusOr<Calibration> calibration = ReadCalibration("--check", grid.check);
  ThrowUnlessOk(calibration.status());
  SetDefaults(grid, &flags);
  const std::unique_ptr<InferenceEngine> engine = LoadForGrid(flags, 0);
  ThrowUnlessOk(CheckCalibration("--check", grid.check, *calibration, ReadCalibratedEngine(DescriptionOf(*engine))));
  const Windows windows = MeasureGrid(*engine, flags, grid, grid.batches);
  ThrowIfEmpty(windows);
  std::vector<Residual> residuals;
  for (const MeasuredWindow& window : windows) {
    const std::vector<MicroBatchLoad> loads = LoadsOf(window);
    residuals.push_back({window, PredictRound(calibration->costs, loads.data(), window.micro_batches)});
  }
  WriteOut(Provenance(*calibration) + ResidualsText(residuals));
}

}  // namespace

void AddCalibrate(CLI::App& program) {
  CLI::App* command = program.add_subcommand(
      "calibrate", "Measure what steps of a model cost on this machine, and how well that foretells them");
  auto grid = std::make_shared<CalibrateFlags>();
  CLI::Option* out = command->add_option("--out", grid->out, "the file to write")->type_name("FILE");
  CLI::Option* check =
      command->add_option("--check", grid->check, "measure, and compare with this file instead of writing one")
          ->type_name("FILE");
  out->excludes(check);
  AddNumbers(command, "--batches", grid->batches, 1, 4096, "sequences at once");
  AddNumbers(command, "--contexts", grid->contexts, 2, 1 << 20, "tokens of each");
  command->add_option("--seconds", grid->seconds, "of measuring at each point")
      ->transform(Number(0.01, 3600.0))
      ->type_name("SECONDS")
      ->capture_default_str();
  const std::vector<FlagHelp> helps = {
      {"max-sequences", "sequences that advance at once (default: the most of --batches)"},
      {"prefill-chunk", "prompt tokens that share one step of a micro-batch [16]"}};
  auto flags = std::make_shared<EngineFlags>(command, EngineFlagNames(), helps);
  command->callback([grid, flags] {
    if (grid->out.empty() && grid->check.empty()) throw Error(FD_INVALID_ARGUMENT, "--out: a file to write is needed");
    grid->check.empty() ? Calibrate(*grid, *flags) : Check(*grid, *flags);
  });
}

}  // namespace fastdecode
