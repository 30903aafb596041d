#ifndef FASTDECODE_ENGINE_HOMES_RETRY_SCHEDULE_H_
#define FASTDECODE_ENGINE_HOMES_RETRY_SCHEDULE_H_

#include <algorithm>
#include <cstdint>

namespace fastdecode {

// When the next attempt to get a lost home back is due. One schedule serves all homes of a worker: an attempt may take as
// long as the worker is silent, and the homes of other workers wait for it.
//
// Exponential: the pause doubles with each failure, until a link is lost that has brought a reply. One that was made and
// lost without a reply is a failure, too: such a home, being empty, would draw every new sequence. Thread: one.
class RetrySchedule {
 public:
  static constexpr uint64_t kPauseNs = 200'000'000, kPauseNsMax = 5'000'000'000;

  bool IsDue(uint64_t now_ns) const { return now_ns >= due_ns_; }

  // An attempt has failed, or a link was lost over which hops went out and no reply came back.
  void Fail(uint64_t now_ns) {
    pause_ns_ = pause_ns_ == 0 ? kPauseNs : std::min(2 * pause_ns_, kPauseNsMax);
    due_ns_ = now_ns + pause_ns_;
  }
  // A home is back: the next one of the worker need not wait.
  void Connected() { due_ns_ = 0; }
  // Links were lost one of which had brought a reply.
  void Reset() { pause_ns_ = due_ns_ = 0; }

 private:
  uint64_t pause_ns_ = 0, due_ns_ = 0;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_HOMES_RETRY_SCHEDULE_H_
