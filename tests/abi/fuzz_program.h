#ifndef FASTDECODE_TESTS_ABI_FUZZ_PROGRAM_H_
#define FASTDECODE_TESTS_ABI_FUZZ_PROGRAM_H_

#include <fastdecode/fastdecode.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/abi/fuzz_call.h"
#include "tests/abi/fuzz_oracle.h"

namespace fastdecode {

// A tiny engine with options drawn at random, which one program or several run on, one after the other.
// Owns: the engine. Thread: any.
class FuzzEngine {
 public:
  FuzzEngine(Dice* dice, const FuzzModel& model);
  ~FuzzEngine();

  fd_engine* get() const { return engine_; }
  fd_stats Stats() const;

  const FuzzModel& model;
  bool polls = false;  // its callers use fd_poll, else fd_next
  int max_context = 0;
  uint32_t max_choices = 0;
  std::atomic<bool> has_event_fd{false};
  std::atomic<uint64_t> log_lines{0};

 private:
  fd_engine* engine_ = nullptr;
};

// What programs have come across, for a test to see that it tests something.
struct FuzzSeen {
  uint64_t finished[6] = {};  // requests, by fd_finish
  uint64_t forgotten = 0;     // requests
  uint64_t refused = 0;       // for a full queue
  uint64_t unavailable = 0;   // since the engine was draining
  uint64_t destroyed = 0;     // requests that ran when their engine was destroyed
  uint64_t preemptions = 0;
  uint64_t several = 0;  // requests of several choices
  uint64_t cached = 0;   // tokens of prompts that others had computed
};

// One random program: threads that call whatever they like, in any order, as far as the header allows it.
class FuzzProgram {
 public:
  // `kept`: the engine of the program before, or null; this one's, if another program may have it.
  FuzzProgram(uint64_t seed, const FuzzOracle& oracle, std::unique_ptr<FuzzEngine>* kept);

  void Run(FuzzSeen* seen);

 private:
  // --- threads
  void Caller(uint64_t seed);
  void Poller(uint64_t seed);
  void Watcher(uint64_t seed);

  // --- what they do
  void Submit(Dice* dice, std::vector<std::shared_ptr<FuzzCall>>* own);
  void Cancel(FuzzCall* call);
  void Forget(FuzzCall* call);
  void Drain(Dice* dice);
  void AskForEventFd();
  void CallAnything(Dice* dice);
  void ReadRecord(Dice* dice, fd_record* record);
  bool Next(Dice* dice, FuzzCall* call, int64_t timeout_ns);
  void ReadToEnd(Dice* dice, FuzzCall* call);
  void Poll(Dice* dice, size_t capacity, int64_t timeout_ns);
  void PollWhenReadable(Dice* dice);
  void PollWhatIsLeft(Dice* dice);
  FuzzCall* Find(uint64_t id);
  std::shared_ptr<FuzzCall> Any(Dice* dice);

  // --- what must hold
  void CheckBatch();
  void CheckStats(const fd_stats& stats);
  bool Readable();
  void AwaitQuiet();
  void CheckEnd();
  void CountWhatWasSeen(FuzzSeen* seen) const;
  uint64_t Tick() { return ++clock_; }

  Dice dice_;
  std::unique_ptr<FuzzEngine>* const kept_;
  std::unique_ptr<FuzzEngine> engine_;
  fd_stats before_ = {};
  const bool to_the_end_;  // every answer is read; else the engine is destroyed while requests run
  bool forgets_ = false;   // some thread forgets requests
  int actions_ = 0;

  std::atomic<uint64_t> clock_{0};
  std::atomic<int> callers_left_{0};
  std::atomic<bool> callers_done_{false};
  std::atomic<uint64_t> drain_began_{0}, drain_ended_{0};  // by the clock; 0: not yet
  std::atomic<uint64_t> refused_{0}, unavailable_{0};
  std::atomic<int> outstanding_{0};  // accepted, and neither forgotten nor their last event taken

  std::mutex calls_mutex_;
  std::vector<std::shared_ptr<FuzzCall>> calls_;  // that were accepted

  // What the poller took last, in memory of the size that it asked with.
  struct Taken {
    FuzzCall* call;
    fd_event event;
    std::vector<int32_t> tokens;
    std::string text;
  };
  std::vector<uint8_t> batch_;
  std::vector<Taken> taken_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_ABI_FUZZ_PROGRAM_H_
