#ifndef FASTDECODE_ENGINE_RETRY_SCHEDULE_H_
#define FASTDECODE_ENGINE_RETRY_SCHEDULE_H_

#include <algorithm>
#include <cstdint>

#include "absl/status/status.h"

namespace fastdecode {

// When a lost home is to be asked again. To ask a worker that is not there holds up nobody. Where one refuses, or its
// link cannot be made, a link's memory has been made for nothing: it is left alone twice as long each time that the
// answer is the same. So it is after whatever answer if to ask was dear: a GPU's steps were held, or other homes waited
// for their turn as long as for kPauseNs. But for no longer than kSilencePauseNsMax after silence, which may end at any
// time: so a worker is silent that takes its memory. Thread: one.
class RetrySchedule {
 public:
  static constexpr uint64_t kPauseNs = 200'000'000, kPauseNsMax = 5'000'000'000;
  static constexpr uint64_t kSilencePauseNsMax = 1'000'000'000;

  explicit RetrySchedule(uint64_t pause_ns_max = kPauseNsMax) : pause_ns_max_(pause_ns_max) {}

  bool IsDue(uint64_t now_ns) const { return now_ns >= due_ns_; }

  // An attempt has failed; whether otherwise than the one before.
  bool Fail(const absl::Status& failure, bool dear, uint64_t now_ns) {
    const bool new_failure = failure != failure_;
    const bool silence = absl::IsDeadlineExceeded(failure);
    const bool nobody_there = silence || absl::IsNotFound(failure) || absl::IsUnavailable(failure);
    const uint64_t pause_ns_max = silence ? std::min(kSilencePauseNsMax, pause_ns_max_) : pause_ns_max_;
    pause_ns_ = !new_failure && (dear || !nobody_there) ? std::min(2 * pause_ns_, pause_ns_max) : kPauseNs;
    due_ns_ = now_ns + pause_ns_;
    failure_ = failure;
    return new_failure;
  }

 private:
  uint64_t pause_ns_max_, pause_ns_ = 0, due_ns_ = 0;
  absl::Status failure_;  // of the last attempt; OK: there was none
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_RETRY_SCHEDULE_H_
