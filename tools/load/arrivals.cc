#include "tools/load/arrivals.h"

#include <cmath>

#include "tools/option_values.h"

namespace fastdecode::load {

Arrivals Arrivals::Constant() {
  Arrivals arrivals;
  arrivals.constant_ = true;
  return arrivals;
}

Arrivals Arrivals::Gamma(double shape) {
  Arrivals arrivals;
  arrivals.shape_ = shape;
  return arrivals;
}

Arrivals Arrivals::OnOff(double on_s, double off_s) {
  Arrivals arrivals;
  arrivals.on_s_ = on_s;
  arrivals.off_s_ = off_s;
  return arrivals;
}

double Arrivals::DrawGap(Random& random) const {
  if (constant_) return 1;
  return shape_ == 1 ? random.Exponential() : random.Gamma(shape_) / shape_;
}

double Arrivals::Time(double at_rate_1, double rate) const {
  if (off_s_ == 0) return at_rate_1 / rate;
  const double cycle_s = on_s_ + off_s_;
  const double while_on_s = at_rate_1 / (rate * cycle_s / on_s_);
  const double cycles = std::floor(while_on_s / on_s_);
  return cycles * cycle_s + (while_on_s - cycles * on_s_);
}

std::string ParseArrivals(const std::string& text, Arrivals* arrivals) {
  const std::string expected =
      "'" + text + "' is none of poisson, constant, gamma:SHAPE, on-off:ON_S:OFF_S, such as gamma:0.25 or on-off:2:8";
  const size_t colon = text.find(':');
  const std::string kind = text.substr(0, colon);
  const std::string_view values = colon == std::string::npos ? "" : std::string_view(text).substr(colon + 1);
  const auto positive = [](std::string_view part, double* value) {
    return ParseNumber(part, value) && *value >= 1e-3 && *value <= 1e6;
  };
  double first = 0, second = 0;
  if (text == "poisson") {
    *arrivals = Arrivals::Poisson();
  } else if (text == "constant") {
    *arrivals = Arrivals::Constant();
  } else if (kind == "gamma") {
    if (!positive(values, &first)) return expected;
    *arrivals = Arrivals::Gamma(first);
  } else if (kind == "on-off") {
    const size_t second_colon = values.find(':');
    if (second_colon == std::string_view::npos || !positive(values.substr(0, second_colon), &first) ||
        !positive(values.substr(second_colon + 1), &second)) {
      return expected;
    }
    *arrivals = Arrivals::OnOff(first, second);
  } else {
    return expected;
  }
  return "";
}

}  // namespace fastdecode::load
