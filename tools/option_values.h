#ifndef FASTDECODE_TOOLS_OPTION_VALUES_H_
#define FASTDECODE_TOOLS_OPTION_VALUES_H_

#include <charconv>
#include <cmath>
#include <limits>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "CLI/CLI.hpp"

namespace fastdecode {

// All of a text as a number, decimal and finite. False: it is none, or none that T holds.
template <class T>
bool ParseNumber(std::string_view text, T* out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *out);
  if (error != std::errc() || end != text.data() + text.size()) return false;
  if constexpr (std::is_floating_point_v<T>) return std::isfinite(*out);
  return true;
}

// What to write instead of a text that people read as a number, and this program does not: "; written out: 8192 or
// 8000" of 8k. Empty: it is no such text.
std::string NumberHint(std::string_view text, bool whole);
// The same of memory in GiB: "; in GiB, without a unit: 0.5" of 512MiB.
std::string GibHint(std::string_view text);
// ...and of milliseconds: "; in ms, without a unit: 10000" of 10s.
std::string MillisecondsHint(std::string_view text);

// "'x' is not a whole number from 1 to 16".
template <class T>
std::string NotANumber(const std::string& text, T min, T max) {
  std::ostringstream out;
  out << "'" << text << "' is not a " << (std::is_integral_v<T> ? "whole number" : "number");
  if (std::is_integral_v<T> || max < std::numeric_limits<T>::max()) out << " from " << min << " to " << max;
  out << NumberHint(text, std::is_integral_v<T>);
  return out.str();
}

// What the value of an option must be that is a number; for CLI::Option::transform. CLI11 by itself takes NaN in every
// range, nothing at all as 0 and 010 as 8, and wraps what T does not hold.
template <class T>
CLI::Validator Number(T min, T max) {
  const auto read = [min, max](std::string& text) {
    T value{};
    if (!ParseNumber(text, &value) || value < min || value > max) return NotANumber(text, min, max);
    if constexpr (std::is_integral_v<T>) text = std::to_string(value);  // 010 is 10
    return std::string();
  };
  return CLI::Validator(read, CLI::Range(min, max).get_description());
}

// The same without a range.
template <class T>
CLI::Validator AnyNumber() {
  return Number(std::numeric_limits<T>::lowest(), std::numeric_limits<T>::max()).description("");
}

// What lies between commas; "" has one part, which is empty.
std::vector<std::string> SplitAtCommas(const std::string& list);

// An option of one or more numbers, with commas between them; what `values` holds is its default.
template <class T>
CLI::Option* AddNumbers(CLI::App* command, const std::string& names, std::vector<T>& values, T min, T max,
                        const std::string& help) {
  const auto check = [min, max](const std::string& list) {
    for (const std::string& part : SplitAtCommas(list)) {
      T value{};
      if (!ParseNumber(part, &value) || value < min || value > max) return NotANumber(part, min, max);
    }
    return std::string();
  };
  const auto take = [&values](const std::vector<std::string>& lists) {
    values.clear();
    for (const std::string& list : lists) {
      for (const std::string& part : SplitAtCommas(list)) ParseNumber(part, &values.emplace_back());
    }
  };
  std::string shown;
  for (const T value : values) shown += (shown.empty() ? "" : ",") + std::to_string(value);
  return command->add_option_function<std::vector<std::string>>(names, take, help)
      ->check(check, CLI::Range(min, max).get_description())
      ->default_str(shown);
}

// Nothing is no value, for every option of the program but --prompt: it is mostly a variable of a script that was not
// set.
void RefuseEmptyValues(CLI::App& program);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_OPTION_VALUES_H_
