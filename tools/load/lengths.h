#ifndef FASTDECODE_TOOLS_LOAD_LENGTHS_H_
#define FASTDECODE_TOOLS_LOAD_LENGTHS_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tools/load/random.h"

namespace fastdecode::load {

// A length multiplied by the factor; 1 token at least.
int64_t ScaleLength(int64_t tokens, double factor);

// How many tokens prompts or answers have: a distribution that lengths are drawn from.
class Lengths {
 public:
  // Always 1, until one of these says otherwise.
  Lengths() = default;
  static Lengths Fixed(int64_t tokens);
  static Lengths Uniform(int64_t first, int64_t last);
  // Drawn again where a draw lies outside of [min, max].
  static Lengths Exponential(double mean, int64_t min, int64_t max);
  static Lengths Lognormal(double median, double sigma, int64_t min, int64_t max);
  // Pairs of a share of the lengths, from 0 to 1, and the length that so many are at most; linear in between.
  static Lengths Quantiles(std::vector<std::pair<double, double>> quantiles);

  int64_t Draw(Random& random) const;

 private:
  enum class Kind { kFixed, kUniform, kExponential, kLognormal, kQuantiles };

  Kind kind_ = Kind::kFixed;
  double a_ = 0, b_ = 0;  // the mean; or the median and sigma
  int64_t min_ = 1, max_ = 1;
  std::vector<std::pair<double, double>> quantiles_;
};

// Lengths of prompts and answers that belong together, by the name of what people ask for; lengths.cc says where they
// come from.
struct Workload {
  const char* name;
  Lengths prompt, output;
};
const std::vector<Workload>& Workloads();
// "azure_conv, azure_code, ...".
std::string WorkloadNames();
// Null: there is none of this name.
const Workload* FindWorkload(const std::string& name);

}  // namespace fastdecode::load

#endif  // FASTDECODE_TOOLS_LOAD_LENGTHS_H_
