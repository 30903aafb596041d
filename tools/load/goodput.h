#ifndef FASTDECODE_TOOLS_LOAD_GOODPUT_H_
#define FASTDECODE_TOOLS_LOAD_GOODPUT_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/load/result.h"

namespace fastdecode::load {

// What a limit is set on. Durations count from the intended start of a request.
enum class LimitKind : uint8_t {
  kTtft,    // to the first token
  kTpot,    // from the first token to the last, by the tokens but one; an answer of one token meets any limit
  kE2e,     // to the last token
  kEmaItl,  // the highest moving average of the gaps between tokens: about the last ten of them
};
inline constexpr std::array kLimitKinds = {LimitKind::kTtft, LimitKind::kTpot, LimitKind::kE2e, LimitKind::kEmaItl};
// "ttft", "tpot", "e2el", "ema_itl": the names in options and JSON.
const char* LimitName(LimitKind kind);

// The limits of a good request in ms, by LimitKind; nothing: there is none.
class Limits {
 public:
  std::optional<double>& operator[](LimitKind kind) { return ms_[static_cast<size_t>(kind)]; }
  std::optional<double> operator[](LimitKind kind) const { return ms_[static_cast<size_t>(kind)]; }
  bool empty() const;
  Limits Scaled(double factor) const;

 private:
  std::array<std::optional<double>, kLimitKinds.size()> ms_;
};

// The values of --goodput: NAME:MS, or `reader`, who reads 20 tokens a second: ema_itl:50. Throws Error naming the
// option. `stream`: the times of single tokens are known.
Limits ParseLimits(const std::vector<std::string>& values, bool stream);

// The highest value of the moving average of gaps: each moves it by a tenth of what it is off; 0 without gaps.
double HighestEmaNs(const std::vector<int64_t>& gaps_ns);
bool Meets(const RequestResult& result, const Limits& limits, LimitKind kind);
bool MeetsAll(const RequestResult& result, const Limits& limits);

// Which share of a run's requests met their limits. Those that failed count, and have missed all; those that had not
// ended when the run was interrupted do not.
struct Attainment {
  size_t requests = 0, attained = 0;
  double joint = 0;                                   // share that met all limits
  std::array<double, kLimitKinds.size()> alone = {};  // by LimitKind; only of those that have a limit
  double second_half = 0;                             // `joint` of those that were to start last
  double good_per_s = 0;  // attained ones over the time from the begin of the run to the last token
  double drain_s = 0;     // from the last intended start to the last token
  // The queue did not grow: the rest was served within three TTFT limits and the mean time of a request. Only known
  // with a limit of TTFT.
  std::optional<bool> drained;

  // Met by so many requests, and, as a queue that only grows shows late, by so many of the second half.
  bool Reaches(double target) const { return requests > 0 && joint >= target && second_half >= target; }
};
Attainment Judge(const LoadRun& run, const Limits& limits);

// The figures for every limit multiplied by the same factor.
struct ScaledAttainment {
  double scale = 1;
  Attainment attainment;
};
std::vector<ScaledAttainment> JudgeScaled(const LoadRun& run, const Limits& limits);

// Where a line through points crosses `level` from above, between neighbours of which one lies above it and the next
// one below; nothing: it does not.
std::optional<double> FindCrossing(const std::vector<std::pair<double, double>>& points, double level);

}  // namespace fastdecode::load

#endif  // FASTDECODE_TOOLS_LOAD_GOODPUT_H_
