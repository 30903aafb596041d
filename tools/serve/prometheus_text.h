#ifndef FASTDECODE_TOOLS_SERVE_PROMETHEUS_TEXT_H_
#define FASTDECODE_TOOLS_SERVE_PROMETHEUS_TEXT_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace fastdecode::serve {

// Counts of values below bounds, as Prometheus has them. Thread: one.
class Histogram {
 public:
  explicit Histogram(std::span<const double> bounds);  // ascending; must outlive it
  // What others have counted: at_most[i] values were bounds[i] or less, of `count` in all.
  Histogram(std::span<const double> bounds, std::span<const uint64_t> at_most, uint64_t count, double sum);
  // A value that is not finite is left out: it would spoil the sum for ever.
  void Add(double value, uint64_t times = 1);
  double sum() const { return sum_; }
  uint64_t count() const { return count_; }
  // name_bucket{labels,le="..."} ..., name_sum, name_count.
  void AppendTo(std::string_view name, std::string_view labels, std::string* out) const;

 private:
  std::span<const double> bounds_;
  std::vector<uint64_t> counts_;  // [bounds + 1]
  double sum_ = 0;
  uint64_t count_ = 0;
};

// name="value", with what the text format wants escaped; bytes that are not UTF-8 become U+FFFD.
std::string PrometheusLabel(std::string_view name, std::string_view value);

// A page in Prometheus' text format, version 0.0.4: families of samples one after the other. Thread: one.
class PrometheusText {
 public:
  // Begins a family. `help` is a sentence without line breaks and backslashes.
  void Family(std::string_view name, std::string_view type, std::string_view help);
  // A sample of this family. `labels`: PrometheusLabel, joined by commas; `suffix` follows the family's name.
  void Add(std::string_view labels, uint64_t value, std::string_view suffix = "");
  void Add(std::string_view labels, double value, std::string_view suffix = "");
  void Add(std::string_view labels, const Histogram& histogram);

  std::string Take() { return std::move(text_); }

 private:
  std::string name_;
  std::string text_;
};

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_PROMETHEUS_TEXT_H_
