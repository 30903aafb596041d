#ifndef FASTDECODE_TOOLS_SERVE_ADMISSION_H_
#define FASTDECODE_TOOLS_SERVE_ADMISSION_H_

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>

#include "tools/serve/api_error.h"
#include "tools/serve/clock.h"

namespace fastdecode::serve {

// Who may wait for a first token: so many requests, and so many tokens of their prompts. What comes then is refused
// with 503 and told when to come back, from the rate at which first tokens have come lately. The rate is that of the
// time in which somebody waited: an idle hour does not make it smaller, and an engine that hangs does. Thread: any.
class Admission {
 public:
  struct Limits {
    uint64_t requests = 0;  // that wait, each choice of each prompt for itself; 0: no limit
    uint64_t tokens = 0;    // of their prompts; 0: no limit
  };
  explicit Admission(Limits limits) : limits_(limits) {}

  // An overloaded_error with Retry-After if one more request would be too many; asked before its body is read. It
  // takes no place, and a refusal counts.
  std::optional<ApiError> CheckRequests(uint64_t now_ns = MonotonicNs());
  // Whether CheckRequests would refuse; nothing counts.
  bool full() const;
  // Takes places for a request of so many sequences whose prompts have so many tokens, or says why there are none. A
  // request that is alone may have more tokens than the limit.
  std::optional<ApiError> Enter(uint64_t prompt_tokens, uint64_t now_ns = MonotonicNs(), uint64_t sequences = 1);
  // Its last sequence has its first token, or has ended without one. `progressed`: a first token has come, which counts
  // for the rate. REQUIRES: Enter took places for a request with so many tokens, which has not left yet.
  void Leave(uint64_t prompt_tokens, bool progressed, uint64_t now_ns, uint64_t sequences = 1);

  struct Counts {
    uint64_t requests = 0, tokens = 0;                  // that wait now
    uint64_t refused_requests = 0, refused_tokens = 0;  // since the start, by the limit that refused them
  };
  Counts counts() const;

 private:
  // All three want mutex_.
  void Advance(uint64_t now_ns);
  std::optional<ApiError> RefuseForRequests(uint64_t more = 0);
  int RetryAfter(double leaving, double recent) const;  // seconds, 1 to 120, until so much has left

  const Limits limits_;
  mutable std::mutex mutex_;
  Counts counts_;
  // Sums of the last half a minute or so: first tokens, the tokens of their prompts, and the time in which somebody
  // waited. What is in them halves in 15 seconds of that time.
  double recent_requests_ = 0, recent_tokens_ = 0, recent_seconds_ = 0;
  uint64_t last_ns_ = 0;  // until when that time is counted
};

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_ADMISSION_H_
