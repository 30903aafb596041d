#ifndef FASTDECODE_TESTS_TOOLS_SERVE_STUB_ENGINE_H_
#define FASTDECODE_TESTS_TOOLS_SERVE_STUB_ENGINE_H_

#include <fastdecode/fastdecode.h>

#include <array>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/tools/serve/stub_sequence.h"

namespace fastdecode::stub {

// Why a call of the C interface fails.
struct StubFailure {
  fd_code code;
  std::string message;
};

// An engine that plays what the prompts themselves say (stub_script.h). Programs link stub_api.cc and stub_chat.cc,
// which put it behind the C interface, in the place of the engine. Owns: one thread, which plays what is due, and the
// event fd. Thread: any, but Poll is one thread's at a time.
class StubEngine {
 public:
  struct Options {
    std::string model;
    uint32_t max_context = 8192;
    size_t max_sequences = 256;
    size_t max_queue = 4096;
    uint32_t max_choices = 128;
    uint64_t pause_ns = 1'000'000;  // before each token
    uint32_t homes_up = 2;          // of two
    bool has_tokenizer = true;
    bool has_chat_template = true;
    std::vector<int32_t> front_cores;
  };
  explicit StubEngine(Options options);
  ~StubEngine();
  StubEngine(const StubEngine&) = delete;
  StubEngine& operator=(const StubEngine&) = delete;

  // Throws StubFailure. `prompt`: the ids; what else `request` points to is copied.
  uint64_t Submit(const fd_request& request, std::vector<int32_t> prompt);
  void Cancel(uint64_t id);
  void Forget(uint64_t id);
  // The events live until the next call.
  const std::vector<StubEvent>& Poll(size_t capacity, int64_t timeout_ns);
  size_t Drain(int64_t timeout_ns);
  int event_fd() const { return event_fd_; }

  fd_stats Stats() const;
  // False: there is no such home. What was found of prompts, the first one had.
  bool Home(size_t index, fd_home_stats* out) const;
  const Options& options() const { return options_; }
  StubTokenizer* tokenizer() const { return &tokenizer_; }

 private:
  using Sequences = std::map<uint64_t, std::unique_ptr<StubSequence>>;  // by keys that ascend

  void Run();
  // Plays what is due; returns when something will be. REQUIRES of all below: the lock is held.
  uint64_t Play(uint64_t now_ns);
  void EndIfDue(StubSequence& sequence, uint64_t now_ns);
  // Counts the end of a choice, and of its request with the last one; lists its events for Poll.
  void AfterChange(Sequences::iterator at, size_t events_before);
  // A request's choices end soon, those that have not.
  void CancelAll(uint64_t id);
  void UpdateEventFd();
  // Waits on `wake` until `done` or the time is over.
  template <class Done>
  void WaitFor(std::unique_lock<std::mutex>& lock, std::condition_variable& wake, int64_t timeout_ns, Done done);

  const Options options_;
  mutable StubTokenizer tokenizer_;
  const int event_fd_;
  const uint64_t created_ns_;

  mutable std::mutex mutex_;
  std::condition_variable play_;     // the thread has something to look at
  std::condition_variable changed_;  // events have come, or a request has ended
  Sequences sequences_;
  std::map<uint64_t, uint32_t> open_;  // of requests that have not ended: how many of their choices have not
  std::deque<uint64_t> ready_;         // choices with events, in the order in which they take turns
  size_t waiting_ = 0, running_ = 0;   // choices
  bool fd_set_ = false, draining_ = false, stop_ = false;
  uint64_t next_id_ = 1, next_key_ = 1;
  std::array<uint64_t, 6> finished_{};  // by fd_finish
  fd_stats counts_ = {};                // what only grows
  std::vector<StubEvent> polled_;       // of the thread that polls
  std::thread thread_;
};

}  // namespace fastdecode::stub

#endif  // FASTDECODE_TESTS_TOOLS_SERVE_STUB_ENGINE_H_
