#include "tools/load/random.h"

#include <cmath>

namespace fastdecode::load {

uint64_t Random::Bits() {
  state_ += 0x9E3779B97F4A7C15;
  uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
  return z ^ (z >> 31);
}

double Random::Uniform() { return std::ldexp(static_cast<double>(Bits() >> 11), -53); }

double Random::Exponential() { return -std::log(1 - Uniform()); }

// Box and Muller; the cosine half alone.
double Random::Normal() {
  constexpr double kTwoPi = 6.283185307179586;
  const double u = 1 - Uniform();
  const double v = Uniform();
  return std::sqrt(-2 * std::log(u)) * std::cos(kTwoPi * v);
}

// Marsaglia and Tsang.
double Random::Gamma(double shape) {
  if (shape < 1) {
    const double above = Gamma(shape + 1);
    return above * std::pow(1 - Uniform(), 1 / shape);
  }
  const double d = shape - 1.0 / 3;
  const double c = 1 / std::sqrt(9 * d);
  for (;;) {
    const double x = Normal();
    const double v = std::pow(1 + c * x, 3);
    if (v > 0 && std::log(1 - Uniform()) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

int64_t Random::Between(int64_t first, int64_t last) {
  return first + static_cast<int64_t>(Uniform() * static_cast<double>(last - first + 1));
}

}  // namespace fastdecode::load
