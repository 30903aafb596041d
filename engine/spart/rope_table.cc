#include "engine/spart/rope_table.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace fastdecode {

namespace {

using Scaling = RopeSpec::Scaling;

int RotatedDims(const ModelSpec& spec, const RopeSpec& rope) { return rope.dims == 0 ? spec.head_dim : rope.dims; }

// llama3: long waves are stretched, short ones are not, and those between somewhat.
float Llama3Frequency(const RopeSpec& rope, float frequency) {
  const double context = static_cast<double>(rope.original_context);
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength > context / rope.low_freq_factor) return static_cast<float>(frequency / rope.factor);
  if (wavelength < context / rope.high_freq_factor) return frequency;
  const double smooth = (context / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
  return static_cast<float>((1 - smooth) * frequency / rope.factor + smooth * frequency);
}

// Where yarn's ramp between frequencies that stay and such that are stretched begins and ends.
struct YarnRamp {
  double low, high;
  double At(int i) const { return std::clamp((i - low) / (high - low), 0.0, 1.0); }
};

YarnRamp FindYarnRamp(const RopeSpec& rope, int dims) {
  const auto dim_of = [&](double rotations) {
    const double length = static_cast<double>(rope.original_context) / (rotations * 2 * std::numbers::pi);
    return dims * std::log(length) / (2 * std::log(rope.theta));
  };
  YarnRamp ramp = {dim_of(rope.beta_fast), dim_of(rope.beta_slow)};
  if (rope.truncate) ramp = {std::floor(ramp.low), std::ceil(ramp.high)};
  ramp = {std::max(ramp.low, 0.0), std::min(ramp.high, static_cast<double>(dims - 1))};
  if (ramp.low == ramp.high) ramp.high += 0.001;
  return ramp;
}

// [dims / 2]
std::vector<float> RopeFrequencies(const RopeSpec& rope, int dims, int positions) {
  std::vector<float> frequencies(static_cast<size_t>(dims / 2));
  const YarnRamp ramp = rope.scaling == Scaling::kYarn ? FindYarnRamp(rope, dims) : YarnRamp{0, 1};
  const std::vector<double>& factors = positions > rope.original_context ? rope.long_factors : rope.short_factors;
  for (int i = 0; i < dims / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(dims);
    const double wave = std::pow(rope.theta, static_cast<double>(exponent));
    float frequency = 1.0f / static_cast<float>(wave);
    switch (rope.scaling) {
      case Scaling::kNone:
      case Scaling::kDynamic:  // differs beyond max_position_embeddings, where no context goes
        break;
      case Scaling::kLinear:
        frequency = static_cast<float>(frequency / rope.factor);
        break;
      case Scaling::kLlama3:
        frequency = Llama3Frequency(rope, frequency);
        break;
      case Scaling::kYarn:
        frequency = static_cast<float>(frequency * (1 - ramp.At(i)) + 1 / (rope.factor * wave) * ramp.At(i));
        break;
      case Scaling::kLongRope:
        frequency = static_cast<float>(1 / (factors[static_cast<size_t>(i)] * wave));
        break;
    }
    frequencies[static_cast<size_t>(i)] = frequency;
  }
  return frequencies;
}

// What q is multiplied with at a position.
double QueryScale(const ModelSpec& spec, int64_t position) {
  const double contexts = std::floor(static_cast<double>(position) / static_cast<double>(spec.temperature_context));
  return 1 + spec.temperature_beta * std::log(1 + contexts);
}

RopeTable BuildRopeTable(const ModelSpec& spec, const RopeSpec& rope, int positions, bool of_queries) {
  const int dims = RotatedDims(spec, rope);
  const std::vector<float> frequencies = RopeFrequencies(rope, dims, positions);
  RopeTable table;
  table.half = spec.head_dim / 2;
  table.cosines.resize(static_cast<size_t>(positions * table.half));
  table.sines.resize(table.cosines.size());
  for (int64_t position = 0; position < positions; ++position) {
    const double scale = of_queries ? QueryScale(spec, position) : 1.0;
    float* const cosines = table.cosines.data() + position * table.half;
    float* const sines = table.sines.data() + position * table.half;
    for (int64_t i = 0; i < table.half; ++i) {
      double cosine = 1, sine = 0, factor = scale;
      if (i < dims / 2) {
        const double angle = static_cast<float>(position) * frequencies[static_cast<size_t>(i)];
        cosine = std::cos(angle);
        sine = std::sin(angle);
        factor *= rope.attention_factor;
      }
      cosines[i] = static_cast<float>(cosine * factor);
      sines[i] = static_cast<float>(sine * factor);
    }
  }
  return table;
}

}  // namespace

RopeTables BuildRopeTables(const ModelSpec& spec, int positions) {
  RopeTables tables;
  // By rope: [0] that of most layers, [1] that of windowed ones.
  RopeTables::OfLayer made[2];
  for (int layer = 0; layer < spec.layers; ++layer) {
    const LayerKind kind = spec.kind(layer);
    if (!kind.rotated || spec.learned_positions > 0) {
      tables.layers.push_back({});
      continue;
    }
    RopeTables::OfLayer& of_rope = made[kind.windowed && spec.window_rope ? 1 : 0];
    if (of_rope.k == RopeTables::kNone) {
      of_rope.q = of_rope.k = static_cast<int>(tables.tables.size());
      tables.tables.push_back(BuildRopeTable(spec, spec.rope_of(layer), positions, /*of_queries=*/false));
      if (spec.temperature_beta != 0) {
        of_rope.q = static_cast<int>(tables.tables.size());
        tables.tables.push_back(BuildRopeTable(spec, spec.rope_of(layer), positions, /*of_queries=*/true));
      }
    }
    tables.layers.push_back(of_rope);
  }
  return tables;
}

}  // namespace fastdecode
