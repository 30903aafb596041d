#include "tools/latency/text/units.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"

namespace fastdecode {

namespace {

constexpr std::array<TimeUnit, 4> kUnits = {{{"ns", 1}, {"us", 1e3}, {"ms", 1e6}, {"s", 1e9}}};

// "0.20 us" is as good as "200 ns", and leaves room for longer ones.
constexpr double kLeastOfUnit = 0.2;

// Three digits that count; whole above 999.
std::string ThreeDigits(double value) {
  const double size = std::fabs(value);
  return absl::StrFormat("%.*f", size < 9.995 ? 2 : size < 99.95 ? 1 : 0, value);
}

// Bytes that begin a character.
bool BeginsCharacter(char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; }

// How many bytes hold the first `columns` characters.
size_t BytesOf(const std::string& text, size_t columns) {
  size_t at = 0;
  while (at < text.size()) {
    if (BeginsCharacter(text[at]) && columns-- == 0) return at;
    ++at;
  }
  return at;
}

// Words, a unit with its number.
std::vector<std::string> WordsOf(const std::string& text) {
  constexpr std::array<const char*, 9> kUnitWords = {"%", "ns", "us", "ms", "s", "KiB", "MiB", "GiB", "GB/s"};
  std::vector<std::string> words;
  for (const std::string& word : std::vector<std::string>(absl::StrSplit(text, ' ', absl::SkipEmpty()))) {
    const std::string bare = word.substr(0, word.find_first_of(",.;:)"));
    const bool unit = std::find(kUnitWords.begin(), kUnitWords.end(), bare) != kUnitWords.end();
    if (unit && !words.empty() && absl::ascii_isdigit(static_cast<unsigned char>(words.back().back()))) {
      absl::StrAppend(&words.back(), " ", word);
    } else {
      words.push_back(word);
    }
  }
  return words;
}

}  // namespace

std::string FormatNs(double ns) {
  if (!std::isfinite(ns)) return "-";
  size_t unit = 0;
  // 999.6 ns are 1.00 us and not 1000 ns.
  while (unit + 1 < kUnits.size() && std::fabs(ns) / kUnits[unit].ns >= 999.5) ++unit;
  const double value = ns / kUnits[unit].ns;
  // Nothing here is known to parts of a nanosecond, except where it is a mean of many.
  const bool whole = unit == 0 && (std::fabs(value) >= 9.995 || value == std::floor(value));
  return absl::StrCat(whole ? absl::StrFormat("%.0f", value) : ThreeDigits(value), " ", kUnits[unit].name);
}

std::string FormatSignedNs(double ns) { return absl::StrCat(ns > 0 ? "+" : "", FormatNs(ns)); }

std::string FormatShare(double share) {
  if (!std::isfinite(share)) return "-";
  if (share == 0) return "0 %";
  const double percent = share * 100;
  return absl::StrFormat("%.*f %%", std::fabs(percent) < 0.0995 ? 2 : 1, percent);
}

std::string FormatCount(uint64_t count) {
  std::string text = absl::StrCat(count);
  for (size_t at = text.size(); at > 3; at -= 3) text.insert(at - 3, 1, ',');
  return text;
}

std::optional<double> ParseDecimal(const std::string& text) {
  double value;
  if (text.empty() || text.find_first_not_of("0123456789.") != std::string::npos) return std::nullopt;
  if (!absl::SimpleAtod(text, &value)) return std::nullopt;
  return value;
}

std::optional<double> ParseNs(const std::string& text) {
  constexpr double kDayNs = 86'400e9;
  for (const TimeUnit& unit : kUnits) {  // "s" last: the others end with it
    const std::string name = unit.name;
    if (!text.ends_with(name)) continue;
    const std::optional<double> number = ParseDecimal(text.substr(0, text.size() - name.size()));
    if (!number || *number <= 0 || *number * unit.ns > kDayNs) return std::nullopt;
    return *number * unit.ns;
  }
  return std::nullopt;
}

std::optional<double> ParsePercentage(const std::string& text) {
  if (!text.ends_with('%')) return std::nullopt;
  const std::optional<double> number = ParseDecimal(text.substr(0, text.size() - 1));
  return number ? std::optional<double>(*number / 100) : std::nullopt;
}

TimeUnit ChooseUnit(std::vector<double> ns) {
  std::erase_if(ns, [](double value) { return !(std::isfinite(value) && value > 0); });
  if (ns.empty()) return kUnits[1];
  const auto middle = ns.begin() + static_cast<ptrdiff_t>(ns.size() / 2);
  std::nth_element(ns.begin(), middle, ns.end());
  size_t unit = 0;
  while (unit + 1 < kUnits.size() && *middle >= kLeastOfUnit * kUnits[unit + 1].ns) ++unit;
  return kUnits[unit];
}

std::string FormatIn(const TimeUnit& unit, double ns) {
  if (!std::isfinite(ns)) return "-";
  if (ns == 0) return "0";
  if (unit.ns == 1 && ns == std::floor(ns)) return absl::StrFormat("%.0f", ns);
  return ThreeDigits(ns / unit.ns);
}

size_t Columns(const std::string& text) {
  return static_cast<size_t>(std::count_if(text.begin(), text.end(), BeginsCharacter));
}

std::vector<std::string> Wrap(const std::string& text, size_t width) {
  std::vector<std::string> lines(1);
  for (std::string word : WordsOf(text)) {
    if (!lines.back().empty() && Columns(lines.back()) + 1 + Columns(word) > width) lines.emplace_back();
    while (Columns(word) > width) {
      const size_t bytes = BytesOf(word, width);
      lines.back() = word.substr(0, bytes);
      word = word.substr(bytes);
      lines.emplace_back();
    }
    absl::StrAppend(&lines.back(), lines.back().empty() ? "" : " ", word);
  }
  return lines;
}

}  // namespace fastdecode
