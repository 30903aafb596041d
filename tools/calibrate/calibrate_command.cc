// fastdecode calibrate: what steps of a model cost on this machine, and how well that foretells them.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <fastdecode/fastdecode.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/bench/fit_costs.h"
#include "engine/bench/median.h"
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
  std::vector<int> batches = {1, 4, 8, 16, 32, 64, 128, 256};
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

// One point of the grid with what was measured there.
struct Point {
  StepWindow window;
  Windows measured;
};

// One more window of the point, of about so many seconds; a short one before the first says how long its rounds take,
// and is enough where these are long. Where the machine is too busy for it, it is left out.
void MeasurePoint(InferenceEngine& engine, double seconds, Point* point) {
  constexpr int kRoundsMin = 3;
  const auto measure = [&](int rounds) {
    point->window.rounds = rounds;
    absl::StatusOr<MeasuredWindow> measured = ReadWindow(MeasureWindow(engine, point->window));
    ThrowUnlessOk(measured.status());
    ThrowIfInterrupted();
    return *std::move(measured);
  };
  try {
    const auto rounds_in = [&](double round_us) {
      return static_cast<int>(std::clamp(seconds * 1e6 / round_us, 1.0 * kRoundsMin, 1.0 * kRoundsMax));
    };
    MeasuredWindow measured = measure(point->measured.empty() ? kRoundsMin : rounds_in(point->measured[0].round_us));
    if (point->measured.empty() && rounds_in(measured.round_us) > kRoundsMin)
      measured = measure(rounds_in(measured.round_us));
    point->measured.push_back(std::move(measured));
  } catch (const Error& error) {
    if (error.code() != FD_UNAVAILABLE) throw;
    std::fprintf(stderr, "fastdecode: warning: batch %d, context %d: a window is left out: %s\n", point->window.batch,
                 point->window.context, error.what());
  }
  ThrowIfInterrupted();
}

// The median of each figure over all windows of a point: something else may have disturbed the S-Part in one of them
// and a home in another.
MeasuredWindow MedianWindow(const Windows& windows) {
  MeasuredWindow median = windows[0];
  const auto take = [&](double MeasuredWindow::*figure) {
    std::vector<double> values;
    for (const MeasuredWindow& window : windows) values.push_back(window.*figure);
    median.*figure = MedianOf(values);
  };
  for (double MeasuredWindow::*figure :
       {&MeasuredWindow::tokens, &MeasuredWindow::round_us, &MeasuredWindow::s_us, &MeasuredWindow::layer_us,
        &MeasuredWindow::attend_us, &MeasuredWindow::overhead_us}) {
    take(figure);
  }
  for (size_t h = 0; h < median.homes.size(); ++h) {
    std::vector<double> shares, hops;
    for (const MeasuredWindow& window : windows) {
      shares.push_back(window.homes[h].share);
      hops.push_back(window.homes[h].hop_us);
    }
    median.homes[h] = {MedianOf(shares), MedianOf(hops)};
  }
  return median;
}

void ShowPoint(const MeasuredWindow& window, bool quiet) {
  if (quiet) return;
  std::fprintf(stderr, "batch %d, context %d, %d micro-batch%s: a round takes %.1f us\n", window.batch, window.context,
               window.micro_batches, window.micro_batches == 1 ? "" : "es", window.round_us);
}

// Loads an engine as the options say; or one whose cores are divided as `description` has it, and which always uses so
// many micro-batches.
std::unique_ptr<InferenceEngine> LoadForGrid(const EngineFlags& flags, const nlohmann::json* description = nullptr,
                                             int micro_batches = 0) {
  const std::unique_ptr<EngineOptions> options = flags.Build();
  if (description != nullptr) {
    options->Set("core-plan", description->at("core_plan").get<std::string>());
    options->Set("micro-batches", std::to_string(micro_batches));
  }
  return LoadEngine(*options);
}

nlohmann::json DescriptionOf(InferenceEngine& engine) {
  return nlohmann::json::parse(EngineRecord(engine).DescribeJson());
}

// Whether a home is on another host.
bool HasFabric(const nlohmann::json& description) {
  const nlohmann::json& homes = description.at("homes");
  return std::any_of(homes.begin(), homes.end(),
                     [](const nlohmann::json& home) { return !home.at("link_device").get<std::string>().empty(); });
}

bool Fits(const InferenceEngine& engine, const EngineFlags& flags, int batch, int context) {
  const StepWindow window = {.batch = batch, .context = context, .rounds = kRoundsMax, .warmup_rounds = kWarmupRounds};
  return engine.max_context() >= window.tokens() && batch <= std::stoi(flags.Value("max-sequences")) &&
         SequencesThatFit(engine, window) >= static_cast<uint64_t>(batch);
}

// All points of the grid that the engine holds, with these batches. Each is measured several times, all others in
// between: what keeps the machine busy for a while then spoils one of them and not the point.
Windows MeasureGrid(InferenceEngine& engine, const EngineFlags& flags, const CalibrateFlags& grid,
                    const std::vector<int>& batches) {
  constexpr int kPasses = 3;
  std::vector<Point> points;
  for (const int batch : batches) {
    for (const int context : grid.contexts) {
      if (!Fits(engine, flags, batch, context)) continue;
      points.push_back({{.batch = batch, .context = context, .warmup_rounds = kWarmupRounds}, {}});
    }
  }
  for (int pass = 0; pass < kPasses; ++pass) {
    for (Point& point : points) MeasurePoint(engine, grid.seconds / kPasses, &point);
  }
  Windows windows;
  for (const Point& point : points) {
    if (point.measured.empty()) continue;
    windows.push_back(MedianWindow(point.measured));
    ShowPoint(windows.back(), flags.quiet());
  }
  return windows;
}

// What the homes do for prompts that are computed by themselves. `costs`: those of decode steps, which say who is near.
std::vector<MeasuredPrompt> MeasurePrompts(InferenceEngine& engine, const EngineFlags& flags, const StepCosts& costs) {
  std::vector<MeasuredPrompt> prompts;
  const auto is_near = [](const HomeCosts& home) { return home.near; };
  const auto first_near = std::find_if(costs.homes.begin(), costs.homes.end(), is_near) - costs.homes.begin();
  const double layers = costs.layers;
  const int chunk = std::stoi(flags.Value("prefill-chunk"));
  for (const int tokens : {2 * chunk, 8 * chunk}) {
    const StepWindow one = {.batch = 1, .context = tokens, .rounds = 1, .warmup_rounds = 0};
    if (engine.max_context() < one.tokens() || SequencesThatFit(engine, one) < 1) continue;
    MeasurePrompt(engine, tokens);  // to warm up
    const nlohmann::json statistics = MeasurePrompt(engine, tokens);
    ThrowIfInterrupted();
    const auto hops_of = [](const nlohmann::json& home) { return home.at("hops").get<double>(); };
    for (const nlohmann::json& home : statistics.at("homes")) {
      if (hops_of(home) == 0) continue;
      MeasuredPrompt prompt = {.tokens = tokens, .chunk = chunk, .home = home.at("index").get<size_t>()};
      prompt.home_us = home.at("r_busy_ns").get<double>() * 1e-3 / layers;
      prompts.push_back(prompt);
    }
    const auto stages = statistics.at("layer_stages").get<double>();
    if (statistics.at("hops").get<double>() > 0 || stages == 0) continue;
    // Somebody attended within the stages, and with one such home it is known who.
    MeasuredPrompt prompt = {.tokens = tokens, .chunk = chunk, .home = static_cast<size_t>(first_near)};
    const auto attend_ns = statistics.at("stage_attend_ns").get<double>();
    prompt.in_stages = attend_ns == 0;
    prompt.home_us = prompt.in_stages ? statistics.at("layer_stage_ns").get<double>() * 1e-3 / stages * prompt.chunks()
                                      : attend_ns * 1e-3 / layers;
    prompts.push_back(prompt);
  }
  return prompts;
}

void ThrowIfEmpty(const Windows& windows) {
  if (!windows.empty()) return;
  throw Error(FD_RESOURCE_EXHAUSTED,
              "--batches, --contexts: no point was measured: --kv-gib gives the homes more memory, --max-sequences and "
              "--max-context let more and longer sequences in");
}

// A home that had no sequence would count as one that costs nothing.
void CheckAllHomesMeasured(const StepCosts& costs, const nlohmann::json& homes) {
  for (size_t h = 0; h < homes.size(); ++h) {
    if (costs.homes[h].tokens_max > 0) continue;
    throw Error(FD_RESOURCE_EXHAUSTED, "--batches, --contexts: home " + std::to_string(h) + " (" +
                                           homes[h].at("name").get<std::string>() +
                                           ") had no sequence at any point; give more sequences, or longer ones");
  }
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

// How both sides slow each other down is seen at two batches: the largest ones up to 16 and up to 128 rows that fit.
std::vector<int> BatchesOfSlowing(const InferenceEngine& engine, const EngineFlags& flags, const CalibrateFlags& grid) {
  std::vector<int> batches;
  for (const int rows_wanted : {16, 128}) {
    int best = 0;
    for (const int batch : grid.batches) {
      if (batch <= rows_wanted && Fits(engine, flags, batch, grid.contexts[0])) best = std::max(best, batch);
    }
    if (best > 0 && (batches.empty() || batches.back() != best)) batches.push_back(best);
  }
  return batches;
}

void SetDefaults(const CalibrateFlags& grid, EngineFlags* flags) {
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
  std::unique_ptr<InferenceEngine> engine = LoadForGrid(flags);
  const nlohmann::json description = DescriptionOf(*engine);
  const auto micro_batches = description.at("micro_batches").get<int>();
  Windows several;
  if (micro_batches > 1 && description.at("core_plan") == "split") {
    if (flags.Value("micro-batches") != std::to_string(micro_batches)) {
      engine.reset();
      engine = LoadForGrid(flags, &description, micro_batches);
    }
    several = MeasureGrid(*engine, flags, grid, BatchesOfSlowing(*engine, flags, grid));
  }
  if (micro_batches > 1) {
    engine.reset();
    engine = LoadForGrid(flags, &description, 1);
  }
  Windows windows = MeasureGrid(*engine, flags, grid, grid.batches);
  ThrowIfEmpty(windows);
  windows.insert(windows.end(), several.begin(), several.end());

  Calibration calibration;
  calibration.engine = ReadCalibratedEngine(description);
  const Fit fit = FitCosts(windows, calibration.engine.layers, HasFabric(description));
  CheckAllHomesMeasured(fit.costs, description.at("homes"));
  calibration.costs = fit.costs;
  FitPairs(MeasurePrompts(*engine, flags, fit.costs), windows[0].homes.size(), &calibration.costs);
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
  std::unique_ptr<InferenceEngine> engine = LoadForGrid(flags);
  const nlohmann::json description = DescriptionOf(*engine);
  ThrowUnlessOk(CheckCalibration("--check", grid.check, *calibration, ReadCalibratedEngine(description)));
  // The number of micro-batches must not change while a point is measured.
  const auto micro_batches = description.at("micro_batches").get<int>();
  if (flags.Value("micro-batches") == "auto" && micro_batches > 1) {
    engine.reset();
    engine = LoadForGrid(flags, &description, micro_batches);
  }
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
      {"max-sequences", "sequences that advance at once (default: the most of --batches)"}};
  auto flags = std::make_shared<EngineFlags>(command, EngineFlagNames(), helps);
  command->callback([grid, flags] {
    if (grid->out.empty() && grid->check.empty()) throw Error(FD_INVALID_ARGUMENT, "--out: a file to write is needed");
    grid->check.empty() ? Calibrate(*grid, *flags) : Check(*grid, *flags);
  });
}

}  // namespace fastdecode
