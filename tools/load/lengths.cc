#include "tools/load/lengths.h"

#include <algorithm>
#include <cmath>

namespace fastdecode::load {

int64_t ScaleLength(int64_t tokens, double factor) {
  return std::max<int64_t>(1, std::llrint(static_cast<double>(tokens) * factor));
}

Lengths Lengths::Fixed(int64_t tokens) {
  Lengths lengths;
  lengths.min_ = lengths.max_ = tokens;
  return lengths;
}

Lengths Lengths::Uniform(int64_t first, int64_t last) {
  Lengths lengths = Fixed(first);
  lengths.kind_ = Kind::kUniform;
  lengths.max_ = last;
  return lengths;
}

Lengths Lengths::Exponential(double mean, int64_t min, int64_t max) {
  Lengths lengths = Uniform(min, max);
  lengths.kind_ = Kind::kExponential;
  lengths.a_ = mean;
  return lengths;
}

Lengths Lengths::Lognormal(double median, double sigma, int64_t min, int64_t max) {
  Lengths lengths = Exponential(median, min, max);
  lengths.kind_ = Kind::kLognormal;
  lengths.b_ = sigma;
  return lengths;
}

Lengths Lengths::Quantiles(std::vector<std::pair<double, double>> quantiles) {
  Lengths lengths;
  lengths.kind_ = Kind::kQuantiles;
  lengths.max_ = std::llrint(quantiles.back().second);
  lengths.quantiles_ = std::move(quantiles);
  return lengths;
}

int64_t Lengths::Draw(Random& random) const {
  switch (kind_) {
    case Kind::kFixed:
      return max_;
    case Kind::kUniform:
      return random.Between(min_, max_);
    case Kind::kQuantiles: {
      const double u = random.Uniform();
      for (size_t i = 1; i < quantiles_.size(); ++i) {
        const auto& [p0, x0] = quantiles_[i - 1];
        const auto& [p1, x1] = quantiles_[i];
        if (u <= p1) return std::max<int64_t>(1, std::llrint(x0 + (x1 - x0) * (u - p0) / (p1 - p0)));
      }
      return max_;
    }
    case Kind::kExponential:
    case Kind::kLognormal:
      break;
  }
  for (;;) {
    const double x = kind_ == Kind::kExponential ? a_ * random.Exponential() : a_ * std::exp(b_ * random.Normal());
    const int64_t tokens = std::max<int64_t>(1, std::llrint(std::min(x, 1e15)));
    if (min_ <= tokens && tokens <= max_) return tokens;
  }
}

const std::vector<Workload>& Workloads() {
  static const std::vector<Workload> workloads = {
      // Azure's conversation trace of 2023.
      {"azure_conv",
       Lengths::Quantiles(
           {{0, 3}, {.1, 207}, {.25, 396}, {.5, 1020}, {.75, 1189}, {.9, 2735}, {.95, 4083}, {.99, 4142}, {1, 6000}}),
       Lengths::Quantiles(
           {{0, 7}, {.1, 54}, {.25, 85}, {.5, 129}, {.75, 395}, {.9, 424}, {.95, 451}, {.99, 601}, {1, 1000}})},
      // Azure's code trace of 2023.
      {"azure_code",
       Lengths::Quantiles(
           {{0, 3}, {.1, 147}, {.25, 578}, {.5, 1469}, {.75, 2745}, {.9, 5194}, {.95, 7315}, {.99, 7436}, {1, 7437}}),
       Lengths::Quantiles({{0, 1}, {.1, 7}, {.25, 9}, {.5, 13}, {.75, 24}, {.9, 55}, {.95, 90}, {.99, 252}, {1, 800}})},
      // Summaries of arXiv papers, with lengths up to 4,096.
      {"arxiv_summary",
       Lengths::Quantiles({{0, 100},
                           {.1, 1242},
                           {.25, 1986},
                           {.5, 2730},
                           {.75, 3370},
                           {.9, 3702},
                           {.95, 3813},
                           {.99, 3934},
                           {1, 4054}}),
       Lengths::Quantiles(
           {{0, 30}, {.1, 78}, {.25, 115}, {.5, 167}, {.75, 242}, {.9, 372}, {.95, 737}, {.99, 3273}, {1, 4056}})},
      // A fit to the means of ShareGPT.
      {"sharegpt_like", Lengths::Exponential(1250, 4, 2000), Lengths::Lognormal(145, 1.0, 4, 1000)},
      // A fit to the means of HumanEval.
      {"humaneval_like", Lengths::Lognormal(155, .45, 30, 600), Lengths::Lognormal(79, .70, 8, 500)},
      // A fit to the means of LongBench.
      {"longbench_like", Lengths::Uniform(1437, 2040), Lengths::Lognormal(54, 1.15, 2, 600)},
      // The synthetic workload of DistServe.
      {"distserve", Lengths::Fixed(512), Lengths::Fixed(64)},
  };
  return workloads;
}

std::string WorkloadNames() {
  std::string names;
  for (const Workload& workload : Workloads()) names += (names.empty() ? "" : ", ") + std::string(workload.name);
  return names;
}

const Workload* FindWorkload(const std::string& name) {
  for (const Workload& workload : Workloads()) {
    if (name == workload.name) return &workload;
  }
  return nullptr;
}

}  // namespace fastdecode::load
