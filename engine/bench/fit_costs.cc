#include "engine/bench/fit_costs.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "absl/strings/str_format.h"
#include "engine/bench/median.h"
#include "numa/check.h"

namespace fastdecode {

namespace {

// The square system a x = b, by Gaussian elimination with pivots. False: it has no single solution.
bool Solve(std::vector<std::vector<double>> a, std::vector<double> b, std::vector<double>* x) {
  const size_t n = b.size();
  for (size_t i = 0; i < n; ++i) {
    size_t pivot = i;
    for (size_t j = i + 1; j < n; ++j) {
      if (std::abs(a[j][i]) > std::abs(a[pivot][i])) pivot = j;
    }
    if (std::abs(a[pivot][i]) < 1e-300) return false;
    std::swap(a[i], a[pivot]);
    std::swap(b[i], b[pivot]);
    for (size_t j = i + 1; j < n; ++j) {
      const double factor = a[j][i] / a[i][i];
      for (size_t k = i; k < n; ++k) a[j][k] -= factor * a[i][k];
      b[j] -= factor * b[i];
    }
  }
  x->assign(n, 0);
  for (size_t i = n; i-- > 0;) {
    double sum = b[i];
    for (size_t k = i + 1; k < n; ++k) sum -= a[i][k] * (*x)[k];
    (*x)[i] = sum / a[i][i];
  }
  return true;
}

using Windows = std::vector<MeasuredWindow>;

Windows WithMicroBatches(const Windows& windows, bool several) {
  Windows some;
  std::copy_if(windows.begin(), windows.end(), std::back_inserter(some),
               [several](const MeasuredWindow& window) { return (window.micro_batches > 1) == several; });
  return some;
}

double StageUs(const MeasuredWindow& window, int layers) {
  return window.layer_us > 0 ? window.layer_us : window.s_us / layers;
}

// Whether it is known how long stages attended. While hops are out, the S-Part attends between two stages.
bool AttendsInStages(const MeasuredWindow& window) {
  return window.attend_us > 0 && std::none_of(window.homes.begin(), window.homes.end(),
                                              [](const MeasuredWindow::HomeWindow& home) { return home.hop_us > 0; });
}

// A stage without attention, as far as that is known.
double PureStageUs(const MeasuredWindow& window, int layers) {
  return StageUs(window, layers) - (AttendsInStages(window) ? window.attend_us / layers : 0);
}

// A layer and what else a step has, by rows: medians of all windows where it is known how long a stage attends, else of
// those with the shortest context, where a GPU attends to little within its stages.
void FitStages(const Windows& windows, StepCosts* costs) {
  std::map<int, int> shortest;
  for (const MeasuredWindow& window : windows) {
    const auto [found, is_new] = shortest.emplace(window.batch, window.context);
    if (!is_new) found->second = std::min(found->second, window.context);
  }
  for (const auto& [batch, context] : shortest) {
    std::vector<double> stage, head;
    for (const MeasuredWindow& window : windows) {
      if (window.batch != batch || (window.context != context && window.attend_us <= 0)) continue;
      stage.push_back(PureStageUs(window, costs->layers));
      head.push_back(std::max(0.0, window.s_us - costs->layers * StageUs(window, costs->layers)));
    }
    costs->stage.Add(batch, MedianOf(stage));
    costs->head.Add(batch, MedianOf(head));
  }
}

HomeCosts FitHome(const Windows& windows, size_t home, const StepCosts& costs) {
  HomeCosts fit;
  std::vector<std::vector<double>> rows;
  std::vector<double> values, scales;
  const auto is_used = [home](const MeasuredWindow& window) { return window.homes[home].share > 0; };
  const auto has_hops = [home](const MeasuredWindow& window) { return window.homes[home].hop_us > 0; };
  fit.near =
      std::any_of(windows.begin(), windows.end(), is_used) && std::none_of(windows.begin(), windows.end(), has_hops);
  // Several near homes attend side by side: the time is that of the slowest, whose share is the largest.
  const bool is_known =
      std::any_of(windows.begin(), windows.end(), [](const MeasuredWindow& window) { return window.attend_us > 0; });
  for (const MeasuredWindow& window : windows) {
    const double share = window.homes[home].share;
    double us = window.homes[home].hop_us, scale = us;
    if (fit.near) {
      // Where it is not known how long a stage attends, it is what it takes longer than with the shortest context. A
      // small difference of two stages may be wrong by much more than the stages are.
      us = is_known ? window.attend_us / costs.layers : StageUs(window, costs.layers) - costs.stage.At(window.batch);
      scale = StageUs(window, costs.layers);
    }
    if (share <= 0 || us <= 0) continue;
    const bool by_tokens = fit.near && !is_known;
    rows.push_back({by_tokens ? 0.0 : 1.0, by_tokens ? 0.0 : share * window.batch, share * window.tokens});
    values.push_back(us);
    scales.push_back(scale);
    fit.tokens_max = std::max(fit.tokens_max, window.tokens / window.batch);
  }
  if (values.empty()) return fit;
  const std::vector<double> x = SolveNonNegative(rows, values, scales);
  fit.hop_us = x[0];
  fit.sequence_us = x[1];
  fit.token_us = x[2];
  return fit;
}

// What a hop takes beside the work at the home, and what is left of a round: a line through the medians of the windows
// with the fewest and the most rows, since both are small.
void FitRest(const Windows& windows, bool has_fabric, StepCosts* costs) {
  std::map<double, std::vector<double>> overheads, rests;  // by rows
  for (const MeasuredWindow& window : windows) {
    double hop_us = 0;
    for (const MeasuredWindow::HomeWindow& home : window.homes) hop_us = std::max(hop_us, home.hop_us);
    // Replies that came while the S-Part attended itself lay there unseen.
    if (hop_us > window.attend_us / costs->layers) overheads[window.rows()].push_back(window.overhead_us);
    const double out_us = hop_us > 0 ? hop_us + window.overhead_us : 0;
    rests[window.rows()].push_back(window.round_us - window.s_us - costs->layers * out_us);
  }
  const auto line = [](const std::map<double, std::vector<double>>& by_rows, double* constant, double* slope) {
    if (by_rows.empty()) return;
    const double least_rows = by_rows.begin()->first, most_rows = by_rows.rbegin()->first;
    const double first = std::max(0.0, MedianOf(by_rows.at(least_rows))), last = MedianOf(by_rows.at(most_rows));
    *slope = most_rows > least_rows ? std::max(0.0, (last - first) / (most_rows - least_rows)) : 0;
    *constant = std::max(0.0, first - *slope * least_rows);
  };
  if (has_fabric) {
    line(overheads, &costs->hop_us, &costs->hop_row_us);
  } else {  // in shared memory, a row's part is far below what a hop's time varies
    std::vector<double> all;
    for (const auto& [rows, some] : overheads) all.insert(all.end(), some.begin(), some.end());
    if (!all.empty()) costs->hop_us = std::max(0.0, MedianOf(all));
  }
  line(rests, &costs->boundary_us, &costs->boundary_row_us);
}

// How much longer each side took for a layer than alone, for each part of the time in which the other one was busy:
// straight lines through the origin, by least squares, so that windows in which the other side was busy count most.
void FitSlowing(const Windows& windows, StepCosts* costs) {
  double s_sum = 0, s_weight = 0, r_sum = 0, r_weight = 0;
  for (const MeasuredWindow& window : windows) {
    const std::vector<MicroBatchLoad> loads = LoadsOf(window);
    const RoundTimes alone = PredictRound(*costs, loads.data(), window.micro_batches);
    const double count = window.micro_batches;
    const double rest_us =
        count * (costs->head.At(window.rows()) + costs->boundary_us + window.rows() * costs->boundary_row_us);
    const double s_us = count * costs->layers * PureStageUs(window, costs->layers);
    double r_us = 0;
    for (const MeasuredWindow::HomeWindow& home : window.homes) {
      r_us = std::max(r_us, count * costs->layers * home.hop_us);
    }
    if (window.round_us <= 0 || r_us <= 0 || alone.r_us <= 0 || alone.s_us <= rest_us) continue;
    // These are shares of the whole round, with what the S-Part does between steps, as in PredictRound.
    const double r_busy = r_us / window.round_us, s_busy = (s_us + rest_us) / window.round_us;
    s_sum += r_busy * (s_us / (alone.s_us - rest_us) - 1);
    s_weight += r_busy * r_busy;
    r_sum += s_busy * (r_us / alone.r_us - 1);
    r_weight += s_busy * s_busy;
  }
  if (s_weight == 0) return;
  costs->s_slowed = std::max(0.0, s_sum / s_weight);
  costs->r_slowed = std::max(0.0, r_sum / r_weight);
}

}  // namespace

std::vector<double> SolveNonNegative(const std::vector<std::vector<double>>& rows, const std::vector<double>& values,
                                     std::vector<double> scales) {
  if (scales.empty()) scales = values;
  const size_t unknowns = rows.empty() ? 0 : rows[0].size();
  std::vector<double> best(unknowns, 0);
  double least = 0;  // with all of them zero
  for (size_t row = 0; row < rows.size(); ++row) least += std::pow(values[row] / scales[row], 2);
  for (size_t set = 1; set < size_t{1} << unknowns; ++set) {
    std::vector<size_t> used;
    for (size_t i = 0; i < unknowns; ++i) {
      if ((set >> i & 1) != 0) used.push_back(i);
    }
    std::vector<std::vector<double>> a(used.size(), std::vector<double>(used.size(), 0));
    std::vector<double> b(used.size(), 0), x;
    for (size_t row = 0; row < rows.size(); ++row) {
      for (size_t i = 0; i < used.size(); ++i) {
        const double from = rows[row][used[i]] / scales[row];
        b[i] += from * values[row] / scales[row];
        for (size_t k = 0; k < used.size(); ++k) a[i][k] += from * rows[row][used[k]] / scales[row];
      }
    }
    if (!Solve(a, b, &x) || std::any_of(x.begin(), x.end(), [](double each) { return each < 0; })) continue;
    double error = 0;
    for (size_t row = 0; row < rows.size(); ++row) {
      double sum = 0;
      for (size_t i = 0; i < used.size(); ++i) sum += x[i] * rows[row][used[i]];
      error += std::pow((sum - values[row]) / scales[row], 2);
    }
    if (error >= least) continue;
    least = error;
    best.assign(unknowns, 0);
    for (size_t i = 0; i < used.size(); ++i) best[used[i]] = x[i];
  }
  return best;
}

absl::StatusOr<MeasuredWindow> ReadWindow(const nlohmann::json& statistics) {
  const auto number = [&](const char* name) { return statistics.at(name).get<double>(); };
  MeasuredWindow window;
  window.batch = statistics.at("batch").get<int>();
  window.context = statistics.at("context").get<int>();
  window.micro_batches = statistics.at("micro_batches").get<int>();
  // A short window begins and ends within the other micro-batches' steps: the engine itself knows whole rounds.
  const nlohmann::json& model = statistics.at("step_model");
  const auto rounds = model.at("rounds").get<double>();
  window.round_us = rounds > 0 ? model.at("rounds_ns").get<double>() * 1e-3 / rounds : number("round_us");
  window.s_us = number("s_busy_ns") * 1e-3 / number("steps");
  if (number("layer_stages") > 0) window.layer_us = number("layer_stage_ns") * 1e-3 / number("layer_stages");
  window.attend_us = number("stage_attend_ns") * 1e-3 / number("steps");
  const double token_bytes = statistics.at("homes").at(0).at("page_bytes").get<double>() / 32;
  window.tokens = number("kv_bytes") / token_bytes / number("rows") * window.batch;
  double pages = 0, hops = 0;
  for (const nlohmann::json& home : statistics.at("homes")) {
    if (!home.contains("pages_used")) {
      return absl::UnavailableError(
          absl::StrFormat("home %d has not said what pages it uses", home.at("index").get<int>()));
    }
    pages += home["pages_used"].get<double>();
  }
  for (const nlohmann::json& home : statistics.at("homes")) {
    MeasuredWindow::HomeWindow& each = window.homes.emplace_back();
    each.share = pages > 0 ? home["pages_used"].get<double>() / pages : 0;
    hops += home.at("hops").get<double>();
    if (home.at("hops").get<double>() > 0) {
      each.hop_us = home.at("r_busy_ns").get<double>() * 1e-3 / home.at("hops").get<double>();
    }
  }
  if (hops > 0) window.overhead_us = number("hop_overhead_ns") * 1e-3 / hops;
  return window;
}

std::vector<MicroBatchLoad> LoadsOf(const MeasuredWindow& window) {
  MicroBatchLoad load;
  load.rows = window.rows();
  for (size_t h = 0; h < window.homes.size(); ++h) {
    load.homes[h].sequences = window.homes[h].share * window.rows();
    load.homes[h].tokens = window.homes[h].share * window.tokens / window.micro_batches;
  }
  return std::vector<MicroBatchLoad>(static_cast<size_t>(window.micro_batches), load);
}

double MeasuredPrompt::chunks() const { return std::ceil(static_cast<double>(tokens) / chunk); }

HomeLoad MeasuredPrompt::load() const {
  HomeLoad all;
  for (int done = 0; done < tokens; done += chunk) {
    const int rows = std::min(chunk, tokens - done);
    all.sequences += 1;
    all.tokens += done + rows;
    all.pairs += rows * (done + (rows + 1) / 2.0);
  }
  return all;
}

void FitPairs(const std::vector<MeasuredPrompt>& prompts, size_t homes, StepCosts* costs) {
  std::vector<bool> is_fitted(homes, false);
  double sum = 0, count = 0;
  for (size_t h = 0; h < homes; ++h) {
    HomeCosts& home = costs->homes[h];
    std::vector<std::vector<double>> rows;
    std::vector<double> values, scales;
    for (const MeasuredPrompt& prompt : prompts) {
      if (prompt.home != h || prompt.home_us <= 0) continue;
      double known_us = prompt.chunks() * home.hop_us + AddedHomeUs(home, prompt.load());
      for (int done = 0; prompt.in_stages && done < prompt.tokens; done += prompt.chunk) {
        known_us += costs->stage.At(std::min(prompt.chunk, prompt.tokens - done));
      }
      if (known_us >= prompt.home_us) continue;
      rows.push_back({prompt.load().pairs});
      values.push_back(prompt.home_us - known_us);
      scales.push_back(prompt.in_stages ? prompt.home_us : values.back());
    }
    if (values.empty()) continue;
    home.pair_us = SolveNonNegative(rows, values, scales)[0];
    is_fitted[h] = true;
    sum += home.pair_us;
    ++count;
  }
  for (size_t h = 0; h < homes && count > 0; ++h) {
    if (!is_fitted[h]) costs->homes[h].pair_us = sum / count;
  }
}

Fit FitCosts(const Windows& windows, int layers, bool has_fabric) {
  const Windows one = WithMicroBatches(windows, /*several=*/false);
  FD_CHECK(!one.empty(), "no window of one micro-batch was measured");
  Fit fit;
  fit.costs.layers = layers;
  FitStages(one, &fit.costs);
  for (size_t h = 0; h < std::min(one[0].homes.size(), kHomesOfModelMax); ++h) {
    fit.costs.homes[h] = FitHome(one, h, fit.costs);
  }
  FitRest(one, has_fabric, &fit.costs);
  FitSlowing(WithMicroBatches(windows, /*several=*/true), &fit.costs);
  for (const MeasuredWindow& window : windows) {
    const std::vector<MicroBatchLoad> loads = LoadsOf(window);
    fit.residuals.push_back({window, PredictRound(fit.costs, loads.data(), window.micro_batches)});
  }
  return fit;
}

}  // namespace fastdecode
