#ifndef FASTDECODE_TOOLS_LATENCY_ANALYSIS_CRITICAL_PATH_H_
#define FASTDECODE_TOOLS_LATENCY_ANALYSIS_CRITICAL_PATH_H_

#include <array>
#include <cstddef>
#include <vector>

#include "tools/latency/analysis/timeline.h"
#include "tools/latency/result.h"

namespace fastdecode {

// The time of a token is that between two of its sequence: of steps that follow another. The first token of a request
// has no such time.
inline bool MakesTokens(const StepTimes& step) { return step.follows && step.tokens > 0; }

// The time of all such tokens together, by where it was spent. Every step counts as often as it made tokens.
class TokenTime {
 public:
  explicit TokenTime(const Timeline& timeline);

  size_t tokens() const { return tokens_; }
  double ns() const { return ns_; }
  double residual_ns() const { return residual_ns_; }
  // Of wire and queue together: what may be the other.
  double queue_uncertain_ns() const { return queue_uncertain_ns_; }
  // home: -1 is the engine. 0 for a home that the timeline does not have.
  double At(Place place, int home) const;
  double At(Place place) const;
  // Of ns(); 0 if there is no token.
  double Share(double ns) const { return ns_ > 0 ? ns / ns_ : 0; }

 private:
  size_t tokens_ = 0;
  double ns_ = 0, residual_ns_ = 0, queue_uncertain_ns_ = 0;
  std::vector<std::array<double, kPlaces>> by_home_;  // [home + 1]
};

CriticalPath DescribePath(const TokenTime& time, int homes);

// The slowest tokens, longest first, one of each step: the others of a step took as long.
std::vector<TokenStory> TellWorst(const Timeline& timeline, size_t count);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_ANALYSIS_CRITICAL_PATH_H_
