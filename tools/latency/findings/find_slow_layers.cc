// A layer whose GEMMs take longer than those of the others.
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <string>
#include <vector>

#include "tools/latency/findings/finders.h"
#include "tools/latency/findings/robust.h"
#include "tools/latency/text/units.h"

namespace fastdecode {

namespace {

// Layers differ by some percent by where their weights lie.
constexpr double kExcessMinShare = 0.08;
// And a layer stands out only if it is further off than layers usually are, by this many of their spreads...
constexpr double kSpreadsMin = 6;
// ...for which there have to be some. If every fourth stands out, none does.
constexpr int kComparedLayersMin = 4;
constexpr double kLayersShareMax = 0.25;

constexpr std::array<uint16_t, 4> kGemms = {FD_STAGE_QKV, FD_STAGE_O, FD_STAGE_GATE_UP, FD_STAGE_DOWN};

// One kind of GEMM.
struct GemmTimes {
  double mean_ns = 0;                                    // of a layer, usually
  std::vector<std::vector<std::vector<double>>> ratios;  // [layers][blocks]: to the same step's middle layer
};

// Within a step all layers have the same rows.
GemmTimes MeasureGemm(const Evidence& evidence, uint16_t part) {
  const auto layers = static_cast<size_t>(evidence.timeline.layers);
  GemmTimes gemm;
  gemm.ratios.assign(layers, std::vector<std::vector<double>>(static_cast<size_t>(evidence.blocks())));
  std::vector<double> of_step, middles;
  std::vector<std::pair<size_t, double>> of_layer;
  for (const StepTimes* step : evidence.decode_steps()) {
    of_step.clear();
    of_layer.clear();
    for (const PartTimes& times : evidence.PartsOf(*step)) {
      if (times.part != part || times.layer >= layers) continue;
      of_step.push_back(static_cast<double>(times.end_ns - times.start_ns));
      of_layer.emplace_back(times.layer, of_step.back());
    }
    const double middle = Median(of_step);
    if (middle <= 0) continue;
    middles.push_back(middle);
    const auto block = static_cast<size_t>(evidence.BlockOf(step->end_ns));
    for (const auto& [layer, ns] : of_layer) gemm.ratios[layer][block].push_back(ns / middle);
  }
  gemm.mean_ns = Median(middles);
  return gemm;
}

// All GEMMs of a layer together, to those of the middle layer.
Estimate LayerRatio(const std::vector<GemmTimes>& gemms, size_t layer, int blocks) {
  std::vector<double> of_block;
  for (size_t block = 0; block < static_cast<size_t>(blocks); ++block) {
    double sum = 0, weights = 0;
    for (const GemmTimes& gemm : gemms) {
      const std::vector<double>& ratios = gemm.ratios[layer][block];
      if (ratios.empty()) continue;
      sum += gemm.mean_ns * Median(ratios);
      weights += gemm.mean_ns;
    }
    if (weights > 0) of_block.push_back(sum / weights);
  }
  return EstimateFromBlocks(of_block);
}

Finding DescribeLayer(size_t layer, double ratio, double usual_ns) {
  Finding finding;
  finding.phase = "GEMM";
  finding.layer = static_cast<int>(layer);
  finding.kind = "slower";
  finding.amount = ratio;
  finding.unit = "ratio";
  finding.cost_ns = (ratio - 1) * usual_ns;
  char text[160];
  std::snprintf(text, sizeof(text),
                "layer %zu: its GEMMs take %.2f times as long as those of the other layers (%s instead of %s; %s)",
                layer, ratio, FormatNs(ratio * usual_ns).c_str(), FormatNs(usual_ns).c_str(),
                CostText(finding.cost_ns).c_str());
  finding.line = text;
  return finding;
}

}  // namespace

std::vector<Finding> FindSlowLayers(const Evidence& evidence) {
  std::vector<Finding> findings;
  const auto layers = static_cast<size_t>(evidence.timeline.layers);
  if (!evidence.long_enough() || evidence.timeline.layers < kComparedLayersMin) return findings;
  std::vector<GemmTimes> gemms;
  double usual_ns = 0;
  for (const uint16_t part : kGemms) {
    gemms.push_back(MeasureGemm(evidence, part));
    usual_ns += gemms.back().mean_ns;
  }
  std::vector<Estimate> ratios;
  std::vector<double> values;
  for (size_t layer = 0; layer < layers; ++layer) {
    ratios.push_back(LayerRatio(gemms, layer, evidence.blocks()));
    values.push_back(ratios.back().value);
  }
  const double middle = Median(values), spread = Spread(values);
  for (size_t layer = 0; layer < layers; ++layer) {
    const Estimate& ratio = ratios[layer];
    if (ratio.blocks == 0 || middle <= 0) continue;
    const double excess = ratio.value / middle - 1;
    if (excess < kExcessMinShare || excess < kSpreadsMin * spread || excess < Significant(ratio.blocks) * ratio.error)
      continue;
    findings.push_back(DescribeLayer(layer, ratio.value / middle, usual_ns));
  }
  if (static_cast<double>(findings.size()) > kLayersShareMax * static_cast<double>(layers)) findings.clear();
  return findings;
}

}  // namespace fastdecode
