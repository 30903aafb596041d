#include "tools/serve/prometheus_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <initializer_list>
#include <numeric>

#include "numa/check.h"

namespace fastdecode::serve {

namespace {

void AppendNumber(uint64_t value, std::string* out) {
  char digits[24];
  out->append(digits, std::to_chars(digits, digits + sizeof(digits), value).ptr);
}

// The shortest decimal that reads back as the same number.
void AppendNumber(double value, std::string* out) {
  if (!std::isfinite(value)) {
    *out += std::isnan(value) ? "NaN" : value > 0 ? "+Inf" : "-Inf";
    return;
  }
  char digits[32];
  out->append(digits, std::to_chars(digits, digits + sizeof(digits), value).ptr);
}

// A bound as Prometheus' own libraries write it, with a point: rules that others wrote compare texts.
void AppendBound(double bound, std::string* out) {
  char digits[64];
  char* const end = std::to_chars(digits, digits + sizeof(digits), bound, std::chars_format::fixed).ptr;
  out->append(digits, end);
  if (std::find(digits, end, '.') == end) *out += ".0";
}

void AppendSample(std::string_view name, std::string_view suffix, std::string_view labels, auto value,
                  std::string* out) {
  *out += name;
  *out += suffix;
  if (!labels.empty()) {
    *out += '{';
    *out += labels;
    *out += '}';
  }
  *out += ' ';
  AppendNumber(value, out);
  *out += '\n';
}

// The bytes of the character that `text` begins with; 0: it begins with none.
size_t CharacterBytes(std::string_view text) {
  const auto at = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0u; };
  const unsigned first = at(0);
  if (first < 0x80) return 1;
  if (first < 0xc2 || first > 0xf4) return 0;
  const size_t bytes = first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
  // No character has two forms, is half of a surrogate pair, or lies beyond U+10FFFF.
  const unsigned low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
  const unsigned high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
  if (at(1) < low || at(1) > high) return 0;
  for (size_t i = 2; i < bytes; ++i) {
    if ((at(i) & 0xc0) != 0x80) return 0;
  }
  return bytes;
}

}  // namespace

Histogram::Histogram(std::span<const double> bounds) : bounds_(bounds), counts_(bounds.size() + 1) {
  FD_CHECK(std::is_sorted(bounds.begin(), bounds.end()), "bounds of a histogram ascend");
}

Histogram::Histogram(std::span<const double> bounds, std::span<const uint64_t> at_most, uint64_t count, double sum)
    : Histogram(bounds) {
  std::adjacent_difference(at_most.begin(), at_most.end(), counts_.begin());
  counts_.back() = count - (at_most.empty() ? 0 : at_most.back());
  sum_ = sum;
  count_ = count;
}

void Histogram::Add(double value, uint64_t times) {
  if (!std::isfinite(value)) return;
  // A value that equals a bound is below it.
  counts_[static_cast<size_t>(std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin())] += times;
  sum_ += value * static_cast<double>(times);
  count_ += times;
}

void Histogram::AppendTo(std::string_view name, std::string_view labels, std::string* out) const {
  uint64_t below = 0;
  std::string with_bound;
  for (size_t i = 0; i < counts_.size(); ++i) {
    below += counts_[i];
    with_bound = labels;
    with_bound += labels.empty() ? "le=\"" : ",le=\"";
    if (i < bounds_.size()) {
      AppendBound(bounds_[i], &with_bound);
    } else {
      with_bound += "+Inf";
    }
    with_bound += '"';
    AppendSample(name, "_bucket", with_bound, below, out);
  }
  AppendSample(name, "_sum", labels, sum_, out);
  AppendSample(name, "_count", labels, count_, out);
}

std::string PrometheusLabel(std::string_view name, std::string_view value) {
  std::string label(name);
  label += "=\"";
  while (!value.empty()) {
    const size_t bytes = CharacterBytes(value);
    if (bytes == 0) {
      label += "\xef\xbf\xbd";
    } else if (value[0] == '\n') {
      label += "\\n";
    } else {
      if (value[0] == '\\' || value[0] == '"') label += '\\';
      label += value.substr(0, bytes);
    }
    value.remove_prefix(std::max<size_t>(bytes, 1));
  }
  return label += '"';
}

void PrometheusText::Family(std::string_view name, std::string_view type, std::string_view help) {
  name_ = name;
  for (const std::string_view piece : {std::string_view("# HELP "), name, std::string_view(" "), help,
                                       std::string_view("\n# TYPE "), name, std::string_view(" "), type}) {
    text_ += piece;
  }
  text_ += '\n';
}

void PrometheusText::Add(std::string_view labels, uint64_t value, std::string_view suffix) {
  AppendSample(name_, suffix, labels, value, &text_);
}

void PrometheusText::Add(std::string_view labels, double value, std::string_view suffix) {
  AppendSample(name_, suffix, labels, value, &text_);
}

void PrometheusText::Add(std::string_view labels, const Histogram& histogram) {
  histogram.AppendTo(name_, labels, &text_);
}

}  // namespace fastdecode::serve
