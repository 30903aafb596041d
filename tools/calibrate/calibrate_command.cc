// fastdecode calibrate: what steps of a model cost on this machine, and how well that foretells them.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <ctime>
#include <fastdecode/fastdecode.hpp>
#include <memory>
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

// What was said of the engine, and measured with it.
struct Measured {
  nlohmann::json description;
  std::vector<MeasuredWindow> windows;
};

std::string MachineName() {
  const nlohmann::json found = ReadProvenance(SysRoot(), ProvenanceInput::Now(fd_version()));
  return found.contains("cpu") && found["cpu"]["model"].is_string() ? found["cpu"]["model"].get<std::string>() : "";
}

void ThrowIfInterrupted() {
  if (const int signal = InterruptGuard::Signal(); signal != 0) throw Interrupted(signal);
}

// One point of the grid, for about as long as asked. A first short window says how long its rounds take.
MeasuredWindow MeasurePoint(InferenceEngine& engine, StepWindow window, double seconds) {
  constexpr int kRoundsMin = 5, kRoundsMax = 400;
  window.warmup_rounds = 2;
  window.rounds = kRoundsMin;
  const MeasuredWindow first = ReadWindow(MeasureWindow(engine, window));
  ThrowIfInterrupted();
  window.rounds = static_cast<int>(std::clamp(seconds * 1e6 / first.round_us, 1.0 * kRoundsMin, 1.0 * kRoundsMax));
  const MeasuredWindow longer = window.rounds > kRoundsMin ? ReadWindow(MeasureWindow(engine, window)) : first;
  ThrowIfInterrupted();
  return longer;
}

void ShowPoint(const MeasuredWindow& window, bool quiet) {
  if (quiet) return;
  std::fprintf(stderr, "batch %d, context %d, %d micro-batch%s: a round takes %.1f us\n", window.batch, window.context,
               window.micro_batches, window.micro_batches == 1 ? "" : "es", window.round_us);
}

// All points that the engine holds.
Measured MeasureGrid(EngineFlags& flags, const CalibrateFlags& grid, const std::string& micro_batches) {
  if (!micro_batches.empty()) flags.SetDefault("micro-batches", micro_batches);
  const std::unique_ptr<EngineOptions> options = flags.Build();
  const std::unique_ptr<InferenceEngine> engine = LoadEngine(*options);
  Measured measured;
  measured.description = nlohmann::json::parse(EngineRecord(*engine).DescribeJson());
  for (const int batch : grid.batches) {
    for (const int context : grid.contexts) {
      const StepWindow window = {.batch = batch, .context = context, .rounds = 400, .warmup_rounds = 2};
      const bool fits = engine->max_context() >= window.tokens() && batch <= std::stoi(flags.Value("max-sequences")) &&
                        SequencesThatFit(*engine, window) >= static_cast<uint64_t>(batch);
      if (!fits) continue;
      measured.windows.push_back(MeasurePoint(*engine, window, grid.seconds));
      ShowPoint(measured.windows.back(), flags.quiet());
    }
  }
  if (measured.windows.empty()) {
    throw Error(FD_RESOURCE_EXHAUSTED,
                "no point of --batches and --contexts fits the engine: --kv-gib gives it more memory, "
                "--max-context longer sequences");
  }
  return measured;
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

// A few points with the number of micro-batches that the engine would have, to see how both sides slow each other down.
CalibrateFlags SlowingGrid(const CalibrateFlags& grid, int batch_max) {
  CalibrateFlags few = grid;
  few.batches = {std::min(64, batch_max)};
  return few;
}

void Calibrate(const CalibrateFlags& grid, EngineFlags& flags) {
  const InterruptGuard guard;
  flags.SetDefault("prefill-chunk", "16");
  flags.SetDefault("max-sequences", std::to_string(*std::max_element(grid.batches.begin(), grid.batches.end())));
  CheckWritable("--out", grid.out);
  const int batch_max = *std::max_element(grid.batches.begin(), grid.batches.end());
  Measured all = MeasureGrid(flags, SlowingGrid(grid, batch_max), "");
  const CalibratedEngine engine = ReadCalibratedEngine(all.description);
  const bool is_one = all.description.at("micro_batches") == 1;
  Measured one = MeasureGrid(flags, grid, is_one ? "" : "1");
  if (!is_one) one.windows.insert(one.windows.end(), all.windows.begin(), all.windows.end());
  const Fit fit = FitCosts(one.windows, engine.layers, engine.core_plan == "shared");
  Calibration calibration;
  calibration.engine = engine;
  calibration.costs = fit.costs;
  calibration.homes = static_cast<int>(one.windows[0].homes.size());
  calibration.version = fd_version();
  calibration.machine = MachineName();
  calibration.time_s = std::time(nullptr);
  nlohmann::json json = ToJson(calibration);
  json["residuals"] = ResidualsJson(fit.residuals);
  WriteFile("--out", grid.out, [&](std::ostream& out) { out << json.dump(2) << "\n"; });
  WriteOut(ResidualsText(fit.residuals));
}

// What the file says against what the engine does now.
void Check(const CalibrateFlags& grid, EngineFlags& flags) {
  const InterruptGuard guard;
  const absl::StatusOr<Calibration> calibration = ReadCalibration("--check", grid.check);
  ThrowUnlessOk(calibration.status());
  flags.SetDefault("prefill-chunk", "16");
  flags.SetDefault("max-sequences", std::to_string(*std::max_element(grid.batches.begin(), grid.batches.end())));
  const Measured measured = MeasureGrid(flags, grid, "");
  ThrowUnlessOk(CheckCalibration("--check", grid.check, *calibration, ReadCalibratedEngine(measured.description)));
  std::vector<Residual> residuals;
  for (const MeasuredWindow& window : measured.windows) {
    const std::vector<MicroBatchLoad> loads = LoadsOf(window);
    residuals.push_back({window, PredictRound(calibration->costs, loads.data(), window.micro_batches)});
  }
  WriteOut(ResidualsText(residuals));
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
