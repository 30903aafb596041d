#include "tools/load/trace.h"

#include <algorithm>
#include <cmath>
#include <fastdecode/fastdecode.hpp>
#include <sstream>
#include <string_view>

#include "nlohmann/json.hpp"
#include "tools/option_values.h"
#include "tools/read_file.h"

namespace fastdecode::load {

namespace {

constexpr int64_t kTokensMax = 1 << 24;
constexpr double kSecondsMax = 1e10;

// One line of a trace; it throws with the place where something is wrong.
struct Line {
  std::string where;  // "--trace: FILE:3: "
  std::string text;

  [[noreturn]] void Refuse(const std::string& what) const { throw Error(FD_INVALID_ARGUMENT, where + what); }
};

struct Recorded {
  double time_s = 0;
  int64_t prompt_tokens = 0, output_tokens = 0;
};

std::vector<std::string_view> Cells(std::string_view line) {
  std::vector<std::string_view> cells;
  for (size_t comma = line.find(','); comma != std::string_view::npos; comma = line.find(',')) {
    cells.push_back(line.substr(0, comma));
    line.remove_prefix(comma + 1);
  }
  cells.push_back(line);
  return cells;
}

// BurstGPT's columns, which are found by their names.
class CsvReader {
 public:
  explicit CsvReader(const Line& head) {
    const std::vector<std::string_view> names = Cells(head.text);
    for (size_t i = 0; i < kColumns; ++i) {
      const auto at = std::find(names.begin(), names.end(), kNames[i]);
      if (at == names.end()) {
        head.Refuse(std::string("there is no column '") + kNames[i] +
                    "'; a trace is BurstGPT's CSV, whose first line names its columns, or Mooncake's JSONL");
      }
      columns_[i] = static_cast<size_t>(at - names.begin());
    }
  }

  Recorded Read(const Line& line) const {
    const std::vector<std::string_view> cells = Cells(line.text);
    const auto refuse = [&](size_t column, const char* what) {
      line.Refuse(std::string(kNames[column]) + " is '" + std::string(cells[columns_[column]]) + "', not " + what);
    };
    const size_t last = *std::max_element(std::begin(columns_), std::end(columns_));
    if (last >= cells.size()) {
      line.Refuse("it has " + std::to_string(cells.size()) + " columns, and " + kNames[2] + " should be number " +
                  std::to_string(columns_[2] + 1));
    }
    Recorded recorded;
    if (!ParseNumber(cells[columns_[0]], &recorded.time_s) || recorded.time_s < 0 || recorded.time_s > kSecondsMax) {
      refuse(0, "a number of seconds");
    }
    for (const auto& [column, tokens] :
         {std::pair<size_t, int64_t*>(1, &recorded.prompt_tokens), {2, &recorded.output_tokens}}) {
      if (!ParseNumber(cells[columns_[column]], tokens) || *tokens < 0 || *tokens > kTokensMax) {
        refuse(column, "a whole number of tokens");
      }
    }
    return recorded;
  }

 private:
  static constexpr size_t kColumns = 3;
  static constexpr const char* kNames[kColumns] = {"Timestamp", "Request tokens", "Response tokens"};
  size_t columns_[kColumns] = {};
};

// A line of Mooncake's.
Recorded ReadObject(const Line& line) {
  const nlohmann::json object = nlohmann::json::parse(line.text, nullptr, false);
  if (!object.is_object()) line.Refuse("it is no JSON object, as the lines before it");
  const auto number = [&](const char* name, double max) {
    const auto at = object.find(name);
    if (at == object.end()) line.Refuse(std::string("it has no ") + name);
    if (!at->is_number() || at->get<double>() < 0 || at->get<double>() > max) {
      line.Refuse(std::string(name) + " is " + at->dump() + ", not a number from 0 to " + std::to_string(int64_t(max)));
    }
    return at->get<double>();
  };
  const auto tokens = [&](const char* name) {
    const double value = number(name, kTokensMax);
    if (value != std::floor(value))
      line.Refuse(std::string(name) + " is " + object[name].dump() + ", not a whole number");
    return static_cast<int64_t>(value);
  };
  return {number("timestamp", kSecondsMax * 1e3) * 1e-3, tokens("input_length"), tokens("output_length")};
}

void SetArrivals(const std::vector<double>& times_s, Trace* trace) {
  const double span_s = times_s.back() - times_s.front();
  if (span_s > 0) trace->rate = static_cast<double>(times_s.size() - 1) / span_s;
  for (size_t i = 0; i < times_s.size(); ++i) {
    trace->requests[i].arrival = (times_s[i] - times_s.front()) * trace->rate;
  }
}

}  // namespace

Trace ReadTrace(const std::string& option, const std::string& path, size_t count) {
  std::istringstream lines(ReadFile(path));
  Trace trace;
  std::vector<double> times_s;
  std::optional<CsvReader> csv;
  Line line;
  for (int number = 1; (count == 0 || trace.requests.size() < count) && std::getline(lines, line.text); ++number) {
    if (!line.text.empty() && line.text.back() == '\r') line.text.pop_back();
    if (line.text.empty()) continue;
    line.where = option + ": " + path + ":" + std::to_string(number) + ": ";
    if (!csv.has_value() && line.text.front() != '{' && times_s.empty() && trace.left_out == 0) {
      csv.emplace(line);
      continue;
    }
    const Recorded recorded = csv.has_value() ? csv->Read(line) : ReadObject(line);
    if (recorded.prompt_tokens == 0 || recorded.output_tokens == 0) {
      ++trace.left_out;
      continue;
    }
    if (!times_s.empty() && recorded.time_s < times_s.back()) {
      line.Refuse(std::string(csv.has_value() ? "Timestamp" : "timestamp") +
                  " is earlier than that of the line before");
    }
    times_s.push_back(recorded.time_s);
    trace.requests.push_back({0, recorded.prompt_tokens, recorded.output_tokens});
  }
  if (trace.requests.empty()) {
    throw Error(FD_INVALID_ARGUMENT, option + ": " + path + ": there is no request in it that has prompt and answer");
  }
  SetArrivals(times_s, &trace);
  return trace;
}

}  // namespace fastdecode::load
