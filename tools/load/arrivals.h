#ifndef FASTDECODE_TOOLS_LOAD_ARRIVALS_H_
#define FASTDECODE_TOOLS_LOAD_ARRIVALS_H_

#include <optional>
#include <string>

#include "tools/load/random.h"

namespace fastdecode::load {

// When requests of an open loop arrive. Gaps are drawn for a rate of 1 a second, and a rate only scales them: a search
// for the highest rate sees one and the same load, slower or faster.
class Arrivals {
 public:
  static Arrivals Constant();
  // Gamma-distributed gaps of this shape: 1 is Poisson, less is burstier; their coefficient of variation is
  // 1 / sqrt(shape).
  static Arrivals Gamma(double shape);
  static Arrivals Poisson() { return Gamma(1); }
  // Poisson for on_s seconds, nothing for off_s seconds, and again; the rate is the mean of both.
  static Arrivals OnOff(double on_s, double off_s);

  // The shape of gamma-distributed gaps; nothing: they are of another kind.
  std::optional<double> burstiness() const { return constant_ || on_s_ > 0 ? std::nullopt : std::optional(shape_); }

  // The next gap at a rate of 1.
  double DrawGap(Random& random) const;
  // When something arrives that would at `at_rate_1`, in seconds from the begin.
  double Time(double at_rate_1, double rate) const;

 private:
  bool constant_ = false;
  double shape_ = 1;
  double on_s_ = 0, off_s_ = 0;  // 0: always on
};

// poisson, constant, gamma:SHAPE or on-off:ON_S:OFF_S. Empty: it is one of these; else what is wrong with it.
std::string ParseArrivals(const std::string& text, Arrivals* arrivals);

}  // namespace fastdecode::load

#endif  // FASTDECODE_TOOLS_LOAD_ARRIVALS_H_
