#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "nlohmann/json.hpp"
#include "tools/doctor/doctor.h"

namespace fastdecode {

namespace {

constexpr size_t kLineWidth = 110;
constexpr size_t kTextWidthMin = 40;
constexpr size_t kStatusWidth = 9;  // with the blanks behind it
constexpr char kBold[] = "\033[1m";
constexpr char kReset[] = "\033[0m";

const char* Colour(CheckStatus status) {
  switch (status) {
    case CheckStatus::kOk:
      return "\033[32m";
    case CheckStatus::kUnknown:
      return "\033[36m";
    case CheckStatus::kWarning:
      return "\033[33m";
    case CheckStatus::kError:
      return "\033[31m";
  }
  return "";
}

// Text in lines of at most `width`, broken between words.
std::vector<std::string> Wrap(const std::string& text, size_t width) {
  std::vector<std::string> lines(1);
  for (const std::string& word : std::vector<std::string>(absl::StrSplit(text, ' '))) {
    if (!lines.back().empty() && lines.back().size() + 1 + word.size() > width) lines.emplace_back();
    absl::StrAppend(&lines.back(), lines.back().empty() ? "" : " ", word);
  }
  return lines;
}

void AppendCheck(const Check& check, size_t name_width, bool colours, std::string* out) {
  const std::string status = absl::StrFormat("%-*s", static_cast<int>(kStatusWidth), StatusName(check.status));
  absl::StrAppend(out, "  ", colours ? Colour(check.status) : "", status, colours ? kReset : "");
  absl::StrAppendFormat(out, "%-*s  ", static_cast<int>(name_width), check.name);
  const size_t indent = 2 + kStatusWidth + name_width + 2;
  const size_t width = std::max(kTextWidthMin, kLineWidth - std::min(kLineWidth, indent));
  bool first = true;
  const auto append = [&](const std::vector<std::string>& lines, const std::string& begin, const std::string& next) {
    for (size_t i = 0; i < lines.size(); ++i) {
      absl::StrAppend(out, first ? "" : std::string(indent, ' '), i == 0 ? begin : next, lines[i], "\n");
      first = false;
    }
  };
  append(Wrap(check.found, width), "", "");
  if (!check.advice.empty()) append(Wrap(check.advice, width - 3), "-> ", "   ");
}

std::string Count(size_t number, const char* what) { return absl::StrCat(number, " ", what, number == 1 ? "" : "s"); }

}  // namespace

const char* StatusName(CheckStatus status) {
  switch (status) {
    case CheckStatus::kOk:
      return "ok";
    case CheckStatus::kUnknown:
      return "unknown";
    case CheckStatus::kWarning:
      return "warning";
    case CheckStatus::kError:
      return "error";
  }
  return "";
}

std::string FormatChecks(const std::vector<Check>& checks, bool colours) {
  size_t name_width = 0;
  for (const Check& check : checks) name_width = std::max(name_width, check.name.size());
  std::string out;
  const std::string* group = nullptr;
  for (const Check& check : checks) {
    if (group == nullptr || *group != check.group) {
      absl::StrAppend(&out, out.empty() ? "" : "\n", colours ? kBold : "", check.group, colours ? kReset : "", "\n");
    }
    group = &check.group;
    AppendCheck(check, name_width, colours, &out);
  }
  const auto count = [&checks](CheckStatus status) {
    return static_cast<size_t>(
        std::count_if(checks.begin(), checks.end(), [status](const Check& check) { return check.status == status; }));
  };
  absl::StrAppend(&out, "\n", Count(count(CheckStatus::kError), "error"), ", ",
                  Count(count(CheckStatus::kWarning), "warning"), ", ", count(CheckStatus::kUnknown), " unknown, ",
                  count(CheckStatus::kOk), " ok\n");
  return out;
}

std::string FormatChecksAsJson(const std::vector<Check>& checks) {
  nlohmann::json array = nlohmann::json::array();
  for (const Check& check : checks) {
    array.push_back({{"group", check.group},
                     {"name", check.name},
                     {"status", StatusName(check.status)},
                     {"found", check.found},
                     {"advice", check.advice}});
  }
  // What the kernel says need not be UTF-8.
  return nlohmann::json{{"checks", array}}.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace fastdecode
