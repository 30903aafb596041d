#include "tools/option_values.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <optional>

namespace fastdecode {

namespace {

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

std::string Shortest(double number) {
  char text[32];
  std::snprintf(text, sizeof(text), "%.15g", number);
  return text;
}

// A number with letters or a sign behind it: "8k", "1.5 GiB", "50%".
struct NumberWithUnit {
  double number;
  std::string unit;  // in small letters; not empty
};

std::optional<NumberWithUnit> ReadNumberWithUnit(std::string_view text) {
  const size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  NumberWithUnit read{0, ""};
  if (!ParseNumber(text.substr(0, digits), &read.number)) return std::nullopt;
  std::string_view unit = text.substr(digits);
  while (unit.starts_with(' ')) unit.remove_prefix(1);
  for (const char c : unit) read.unit += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (read.unit.empty()) return std::nullopt;
  return read;
}

// 8192 of "8,192", "8_192" or "8'192"; empty: it is not written so.
std::string WithoutSeparators(std::string_view text) {
  std::string plain;
  size_t since = 0;  // digits since the last separator
  bool separated = false;
  for (const char c : text) {
    if (IsDigit(c)) {
      plain += c;
      ++since;
      continue;
    }
    const bool good =
        (c == ',' || c == '_' || c == '\'' || c == ' ') && since > 0 && since <= 3 && (!separated || since == 3);
    if (!good) return "";
    separated = true;
    since = 0;
  }
  return separated && since == 3 ? plain : "";
}

// 0.7 of "0,7"; empty: it is not written so.
std::string WithPoint(std::string_view text) {
  std::string pointed(text);
  const size_t comma = pointed.find(',');
  double number = 0;
  if (comma == 0 || comma == std::string::npos) return "";
  pointed[comma] = '.';
  return ParseNumber(pointed, &number) ? pointed : "";
}

}  // namespace

std::string NumberHint(std::string_view text, bool whole) {
  constexpr double kShownMax = 0x1p53;
  if (text.empty()) return "";
  if (std::isspace(static_cast<unsigned char>(text.front())) || std::isspace(static_cast<unsigned char>(text.back()))) {
    return "; leave the spaces out";
  }
  if (text.front() == '+') return "; leave the + out";
  if (text.front() == '=') return "; leave the = out";
  double number = 0;
  const bool is_digits = std::all_of(text.begin(), text.end(), &IsDigit);
  if (whole && !is_digits && ParseNumber(text, &number) && number == std::trunc(number) && number >= 0 &&
      number < kShownMax) {
    return "; as a whole number: " + Shortest(number);
  }
  if (const std::string plain = whole ? WithoutSeparators(text) : ""; !plain.empty()) {
    return "; without separators: " + plain;
  }
  if (const std::string pointed = whole ? "" : WithPoint(text); !pointed.empty()) {
    return "; with a point: " + pointed;
  }
  const std::optional<NumberWithUnit> read = ReadNumberWithUnit(text);
  if (!read) return "";
  if (read->unit == "%") return whole ? "" : "; as a share: " + Shortest(read->number / 100);
  if (read->unit == "k" && read->number * 0x1p10 < kShownMax) {
    return "; written out: " + Shortest(read->number * 0x1p10) + " or " + Shortest(read->number * 1e3);
  }
  if (read->unit == "m" || read->unit == "g") return "; write it out, without a letter";
  return std::isalpha(static_cast<unsigned char>(read->unit[0])) != 0 && read->unit[0] != 'x' && read->unit[0] != 'e'
             ? "; without a unit: " + Shortest(read->number)
             : "";
}

std::string GibHint(std::string_view text) {
  constexpr struct {
    std::string_view unit;
    double gib;
  } kUnits[] = {{"g", 1},
                {"gi", 1},
                {"gib", 1},
                {"gb", 1e9 * 0x1p-30},
                {"m", 0x1p-10},
                {"mi", 0x1p-10},
                {"mib", 0x1p-10},
                {"mb", 1e6 * 0x1p-30},
                {"k", 0x1p-20},
                {"kib", 0x1p-20},
                {"kb", 1e3 * 0x1p-30},
                {"t", 0x1p10},
                {"ti", 0x1p10},
                {"tib", 0x1p10},
                {"tb", 1e12 * 0x1p-30}};
  const std::optional<NumberWithUnit> read = ReadNumberWithUnit(text);
  if (!read) return NumberHint(text, /*whole=*/false);
  for (const auto& [unit, gib] : kUnits) {
    if (read->unit != unit) continue;
    char number[32];
    std::snprintf(number, sizeof(number), "%.4g", read->number * gib);
    return std::string("; in GiB, without a unit: ") + number;
  }
  if (read->unit == "%") return "; in GiB, not as a share";
  return NumberHint(text, /*whole=*/false);
}

std::string MillisecondsHint(std::string_view text) {
  constexpr struct {
    std::string_view unit;
    double ms;
  } kUnits[] = {{"ms", 1}, {"s", 1e3}, {"sec", 1e3}, {"m", 6e4}, {"min", 6e4}, {"h", 3.6e6}};
  const std::optional<NumberWithUnit> read = ReadNumberWithUnit(text);
  for (const auto& [unit, ms] : kUnits) {
    if (read && read->unit == unit) return "; in ms, without a unit: " + Shortest(read->number * ms);
  }
  return NumberHint(text, /*whole=*/true);
}

std::vector<std::string> SplitAtCommas(const std::string& list) {
  std::vector<std::string> parts(1);
  for (const char c : list) {
    if (c == ',') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

void RefuseEmptyValues(CLI::App& program) {
  for (CLI::Option* option : program.get_options()) {
    if (option->check_lname("prompt") || option->get_items_expected_min() == 0) continue;
    option->check([](const std::string& value) { return std::string(value.empty() ? "the value '' is empty" : ""); });
  }
  for (CLI::App* command : program.get_subcommands([](CLI::App*) { return true; })) RefuseEmptyValues(*command);
}

}  // namespace fastdecode
