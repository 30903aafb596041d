#ifndef FASTDECODE_TOOLS_LATENCY_TEXT_UNITS_H_
#define FASTDECODE_TOOLS_LATENCY_TEXT_UNITS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace fastdecode {

// Figures as people read them: plain ASCII, "us" for microseconds.

// Three digits that count, in the unit that suits: "850 ns", "12.3 us", "1.23 ms", "75.0 s". NaN and infinity: "-".
std::string FormatNs(double ns);
// The same with a sign: "+12.3 us".
std::string FormatSignedNs(double ns);

// "12.3 %"; below 0.1 % "0.02 %"; 0 "0 %". NaN: "-".
std::string FormatShare(double share);

// "1,234,567".
std::string FormatCount(uint64_t count);

// The other way round, as options have them. "12.5": digits and at most one point, so that neither "inf" nor "0x10" is
// one.
std::optional<double> ParseDecimal(const std::string& text);
// "400ms" in ns: a decimal above 0 and ns, us, ms or s, at most a day.
std::optional<double> ParseNs(const std::string& text);
// "5%" as 0.05.
std::optional<double> ParsePercentage(const std::string& text);

// One unit for many durations, so that a column can be compared at sight.
struct TimeUnit {
  const char* name = "ns";
  double ns = 1;
};
// That in which the typical one, the median of those above 0, is 0.2 to 200.
TimeUnit ChooseUnit(std::vector<double> ns);
// With as many decimals as make three digits of 1 to 999, none above; "0" for 0; "-" for what is no number.
std::string FormatIn(const TimeUnit& unit, double ns);

// How many columns of a terminal a text in UTF-8 takes, if each of its characters takes one.
size_t Columns(const std::string& text);

// Lines of at most `width` columns, broken between words, though not between a number and its unit; a word that is
// longer is cut. Never empty.
std::vector<std::string> Wrap(const std::string& text, size_t width);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_TEXT_UNITS_H_
