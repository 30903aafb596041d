#include "tools/serve/admission.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "numa/check.h"

namespace fastdecode::serve {

namespace {

constexpr double kHalfLifeSeconds = 15;
constexpr int kRetryUnknownSeconds = 5;
constexpr double kRetrySecondsMax = 120;

ApiError QueueFull(std::string message, int retry_after_s) {
  message += " Try again in " + std::to_string(retry_after_s) + " s.";
  return ApiError{.status = 503,
                  .message = std::move(message),
                  .type = "overloaded_error",
                  .param = "",
                  .code = "queue_full",
                  .retry_after_s = retry_after_s};
}

}  // namespace

std::optional<ApiError> Admission::CheckRequests(uint64_t now_ns) {
  const std::lock_guard lock(mutex_);
  Advance(now_ns);
  return RefuseForRequests();
}

bool Admission::full() const {
  const std::lock_guard lock(mutex_);
  return limits_.requests != 0 && counts_.requests >= limits_.requests;
}

std::optional<ApiError> Admission::Enter(uint64_t prompt_tokens, uint64_t now_ns, uint64_t sequences) {
  const std::lock_guard lock(mutex_);
  Advance(now_ns);
  const uint64_t others = counts_.requests == 0 ? 0 : sequences - 1;  // who is alone may be more than the limit
  if (std::optional<ApiError> refusal = RefuseForRequests(others)) return refusal;
  if (limits_.tokens != 0 && counts_.requests != 0 && counts_.tokens + prompt_tokens > limits_.tokens) {
    ++counts_.refused_tokens;
    // A prompt that is longer than the limit has to be alone.
    const uint64_t leaving = std::min(counts_.tokens, counts_.tokens + prompt_tokens - limits_.tokens);
    return QueueFull("The queue is full: the requests that wait for their first token have " +
                         std::to_string(counts_.tokens) + " prompt tokens, and with the " +
                         std::to_string(prompt_tokens) + " of this request they would exceed the limit of " +
                         std::to_string(limits_.tokens) + ".",
                     RetryAfter(static_cast<double>(leaving), recent_tokens_));
  }
  counts_.requests += sequences;
  counts_.tokens += prompt_tokens;
  return std::nullopt;
}

void Admission::Leave(uint64_t prompt_tokens, bool progressed, uint64_t now_ns, uint64_t sequences) {
  const std::lock_guard lock(mutex_);
  FD_CHECK(counts_.requests >= sequences && counts_.tokens >= prompt_tokens, "a request left that did not wait");
  Advance(now_ns);
  counts_.requests -= sequences;
  counts_.tokens -= prompt_tokens;
  if (!progressed) return;
  recent_requests_ += static_cast<double>(sequences);
  recent_tokens_ += static_cast<double>(prompt_tokens);
}

Admission::Counts Admission::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

void Admission::Advance(uint64_t now_ns) {
  if (now_ns <= last_ns_) return;  // another thread read the clock later and was here first
  const double seconds = static_cast<double>(now_ns - last_ns_) * 1e-9;
  last_ns_ = now_ns;
  if (counts_.requests == 0) return;
  const double kept = std::exp2(-seconds / kHalfLifeSeconds);
  recent_requests_ *= kept;
  recent_tokens_ *= kept;
  // The time fades as the counts do, so that their ratio is a rate from the first second on.
  recent_seconds_ = recent_seconds_ * kept + (1 - kept) * kHalfLifeSeconds / std::log(2.0);
}

std::optional<ApiError> Admission::RefuseForRequests(uint64_t more) {
  if (limits_.requests == 0 || counts_.requests + more < limits_.requests) return std::nullopt;
  ++counts_.refused_requests;
  const uint64_t leaving = counts_.requests + more - limits_.requests + 1;
  return QueueFull("The queue is full: " + std::to_string(counts_.requests) +
                       " requests wait for their first token, and the limit is " + std::to_string(limits_.requests) +
                       ".",
                   RetryAfter(static_cast<double>(leaving), recent_requests_));
}

int Admission::RetryAfter(double leaving, double recent) const {
  if (recent <= 0 || recent_seconds_ <= 0) return kRetryUnknownSeconds;
  return static_cast<int>(std::ceil(std::clamp(leaving * recent_seconds_ / recent, 1.0, kRetrySecondsMax)));
}

}  // namespace fastdecode::serve
