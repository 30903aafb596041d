#ifndef FASTDECODE_ENGINE_HOMES_RETRY_SCHEDULE_H_
#define FASTDECODE_ENGINE_HOMES_RETRY_SCHEDULE_H_

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/string_view.h"

namespace fastdecode {

// When a lost home is to be asked again. To ask a worker that is not there holds up nobody. Where one refuses, or its
// link cannot be made, a link's memory has been made for nothing: it is left alone twice as long each time that the
// answer is of the same kind, whatever its words. So it is after whatever answer if to ask was dear: a GPU's steps were
// held, or other homes waited for their turn as long as for kPauseNs. But for no longer than kSilencePauseNsMax after
// silence, which may end at any time: so a worker is silent that takes its memory. Thread: one.
class RetrySchedule {
 public:
  static constexpr uint64_t kPauseNs = 200'000'000, kPauseNsMax = 5'000'000'000;
  static constexpr uint64_t kSilencePauseNsMax = 1'000'000'000;

  explicit RetrySchedule(uint64_t pause_ns_max = kPauseNsMax) : pause_ns_max_(pause_ns_max) {}

  bool IsDue(uint64_t now_ns) const { return now_ns >= due_ns_; }

  // An attempt has failed; whether otherwise than the one before, but for the numbers in its text: bytes that are free
  // and process ids change from one to the next.
  bool Fail(const absl::Status& failure, bool dear, uint64_t now_ns) {
    const bool same_kind = failure.code() == code_;
    const std::string words = WithoutNumbers(failure.message());
    const bool new_failure = !same_kind || words != words_;
    const bool silence = absl::IsDeadlineExceeded(failure);
    const bool nobody_there = silence || absl::IsNotFound(failure) || absl::IsUnavailable(failure);
    const uint64_t pause_ns_max = silence ? std::min(kSilencePauseNsMax, pause_ns_max_) : pause_ns_max_;
    pause_ns_ = same_kind && (dear || !nobody_there) ? std::min(2 * pause_ns_, pause_ns_max) : kPauseNs;
    due_ns_ = now_ns + pause_ns_;
    code_ = failure.code();
    words_ = words;
    return new_failure;
  }

 private:
  static std::string WithoutNumbers(absl::string_view text) {
    std::string words(text);
    std::erase_if(words, [](char c) { return absl::ascii_isdigit(static_cast<unsigned char>(c)) || c == '.'; });
    return words;
  }

  uint64_t pause_ns_max_, pause_ns_ = 0, due_ns_ = 0;
  absl::StatusCode code_ = absl::StatusCode::kOk;  // of the last attempt's failure; OK: there was none
  std::string words_;                              // of its text
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_HOMES_RETRY_SCHEDULE_H_
