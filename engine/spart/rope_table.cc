#include "engine/spart/rope_table.h"

#include <cmath>
#include <numbers>

namespace fastdecode {

namespace {

std::vector<float> RopeFrequencies(const ModelSpec& spec) {
  const RopeSpec& rope = spec.rope;
  std::vector<float> frequencies(spec.head_dim / 2);
  for (int i = 0; i < spec.head_dim / 2; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(spec.head_dim);
    float frequency = 1.0f / static_cast<float>(std::pow(rope.theta, static_cast<double>(exponent)));
    if (rope.scaling == RopeSpec::Scaling::kLinear) {
      frequency = static_cast<float>(frequency / rope.factor);
    } else if (rope.scaling == RopeSpec::Scaling::kLlama3) {
      const double context = static_cast<double>(rope.original_context);
      const double wavelength = 2 * std::numbers::pi / frequency;
      if (wavelength > context / rope.low_freq_factor) {
        frequency = static_cast<float>(frequency / rope.factor);
      } else if (wavelength >= context / rope.high_freq_factor) {
        const double smooth =
            (context / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor);
        frequency = static_cast<float>((1 - smooth) * frequency / rope.factor + smooth * frequency);
      }
    }
    frequencies[i] = frequency;
  }
  return frequencies;
}

}  // namespace

RopeTable BuildRopeTable(const ModelSpec& spec, int positions) {
  const std::vector<float> frequencies = RopeFrequencies(spec);
  RopeTable table;
  table.half = spec.head_dim / 2;
  table.cosines.resize(static_cast<size_t>(positions * table.half));
  table.sines.resize(table.cosines.size());
  for (int64_t position = 0; position < positions; ++position) {
    for (int64_t i = 0; i < table.half; ++i) {
      const float angle = static_cast<float>(position) * frequencies[i];
      table.cosines[position * table.half + i] = static_cast<float>(std::cos(static_cast<double>(angle)));
      table.sines[position * table.half + i] = static_cast<float>(std::sin(static_cast<double>(angle)));
    }
  }
  return table;
}

}  // namespace fastdecode
