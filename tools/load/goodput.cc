#include "tools/load/goodput.h"

#include <algorithm>
#include <fastdecode/fastdecode.hpp>
#include <string_view>
#include <utility>

#include "tools/option_values.h"

namespace fastdecode::load {

namespace {

constexpr double kNsPerMs = 1e6;
constexpr double kNsPerS = 1e9;
constexpr double kReaderMs = 50;
// What a run may be scaled to: 0.5 is twice as strict.
constexpr double kScales[] = {2, 1.5, 1.25, 1, 0.75, 0.5};

double ValueNs(const RequestResult& result, LimitKind kind) {
  switch (kind) {
    case LimitKind::kTtft:
      return static_cast<double>(result.ttft_ns);
    case LimitKind::kTpot:
      return result.ns_per_token();
    case LimitKind::kE2e:
      return static_cast<double>(result.latency_ns);
    case LimitKind::kEmaItl:
      break;
  }
  return HighestEmaNs(result.itl_ns);
}

double Share(size_t part, size_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

const char* LimitName(LimitKind kind) {
  constexpr const char* kNames[kLimitKinds.size()] = {"ttft", "tpot", "e2el", "ema_itl"};
  return kNames[static_cast<size_t>(kind)];
}

bool Limits::empty() const {
  return std::none_of(ms_.begin(), ms_.end(), [](const auto& limit) { return limit.has_value(); });
}

Limits Limits::Scaled(double factor) const {
  Limits scaled = *this;
  for (std::optional<double>& limit : scaled.ms_) {
    if (limit.has_value()) *limit *= factor;
  }
  return scaled;
}

Limits ParseLimits(const std::vector<std::string>& values, bool stream) {
  Limits limits;
  for (const std::string& value : values) {
    const std::string text = value == "reader" ? "ema_itl:" + std::to_string(static_cast<int>(kReaderMs)) : value;
    const size_t colon = std::min(text.find(':'), text.size());
    const std::string name = text.substr(0, colon);
    const auto* kind =
        std::find_if(kLimitKinds.begin(), kLimitKinds.end(), [&](LimitKind each) { return name == LimitName(each); });
    double limit_ms = 0;
    if (kind == kLimitKinds.end()) {
      throw Error(FD_INVALID_ARGUMENT,
                  "--goodput: '" + value + "' begins with none of ttft:, tpot:, e2el:, ema_itl:, nor is it reader");
    }
    if (colon == text.size() || !ParseNumber(std::string_view(text).substr(colon + 1), &limit_ms) || limit_ms < 0) {
      throw Error(FD_INVALID_ARGUMENT,
                  "--goodput: '" + value + "' has no milliseconds after " + name + ":, as in " + name + ":200");
    }
    if (!stream && *kind != LimitKind::kE2e) {
      throw Error(FD_INVALID_ARGUMENT, "--goodput: " + name + " is not known with --no-stream; give e2el:MS");
    }
    limits[*kind] = limit_ms;
  }
  return limits;
}

double HighestEmaNs(const std::vector<int64_t>& gaps_ns) {
  constexpr double kWeight = 0.1;
  double average = 0, highest = 0;
  for (size_t i = 0; i < gaps_ns.size(); ++i) {
    const auto gap = static_cast<double>(gaps_ns[i]);
    average = i == 0 ? gap : average + kWeight * (gap - average);
    highest = std::max(highest, average);
  }
  return highest;
}

bool Meets(const RequestResult& result, const Limits& limits, LimitKind kind) {
  if (!result.succeeded()) return false;
  return !limits[kind].has_value() || ValueNs(result, kind) <= *limits[kind] * kNsPerMs;
}

bool MeetsAll(const RequestResult& result, const Limits& limits) {
  return std::all_of(kLimitKinds.begin(), kLimitKinds.end(),
                     [&](LimitKind kind) { return Meets(result, limits, kind); });
}

Attainment Judge(const LoadRun& run, const Limits& limits) {
  std::vector<const RequestResult*> ended;
  for (const RequestResult& result : run.results) {
    if (result.ended()) ended.push_back(&result);
  }
  Attainment out;
  out.requests = ended.size();
  std::array<size_t, kLimitKinds.size()> met = {};
  size_t in_second_half = 0, succeeded = 0;
  int64_t last_token_ns = run.start_ns, last_start_ns = run.start_ns;
  double latency_ns = 0;
  for (size_t i = 0; i < ended.size(); ++i) {
    const RequestResult& result = *ended[i];
    last_start_ns = std::max(last_start_ns, result.intended_ns);
    if (result.succeeded()) {
      ++succeeded;
      latency_ns += static_cast<double>(result.latency_ns);
      last_token_ns = std::max(last_token_ns, result.last_token_ns());
    }
    for (const LimitKind kind : kLimitKinds) met[static_cast<size_t>(kind)] += Meets(result, limits, kind) ? 1 : 0;
    if (!MeetsAll(result, limits)) continue;
    ++out.attained;
    in_second_half += i >= ended.size() / 2 ? 1 : 0;
  }
  out.joint = Share(out.attained, ended.size());
  out.second_half = Share(in_second_half, ended.size() - ended.size() / 2);
  for (size_t i = 0; i < kLimitKinds.size(); ++i) out.alone[i] = Share(met[i], ended.size());
  const double until_last_s = static_cast<double>(last_token_ns - run.start_ns) / kNsPerS;
  if (until_last_s > 0) out.good_per_s = static_cast<double>(out.attained) / until_last_s;
  out.drain_s = std::max(0.0, static_cast<double>(last_token_ns - last_start_ns) / kNsPerS);
  if (const std::optional<double> ttft_ms = limits[LimitKind::kTtft]; ttft_ms.has_value() && succeeded > 0) {
    const double mean_s = latency_ns / static_cast<double>(succeeded) / kNsPerS;
    out.drained = out.drain_s <= 3 * *ttft_ms * 1e-3 + mean_s;
  }
  return out;
}

std::vector<ScaledAttainment> JudgeScaled(const LoadRun& run, const Limits& limits) {
  std::vector<ScaledAttainment> out;
  for (const double scale : kScales) out.push_back({scale, Judge(run, limits.Scaled(scale))});
  return out;
}

std::optional<double> FindCrossing(const std::vector<std::pair<double, double>>& points, double level) {
  for (size_t i = 1; i < points.size(); ++i) {
    const auto& [x0, y0] = points[i - 1];
    const auto& [x1, y1] = points[i];
    if (y0 >= level && y1 < level) return x0 + (x1 - x0) * (y0 - level) / (y0 - y1);
  }
  return std::nullopt;
}

}  // namespace fastdecode::load
