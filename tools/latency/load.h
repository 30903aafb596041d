#ifndef FASTDECODE_TOOLS_LATENCY_LOAD_H_
#define FASTDECODE_TOOLS_LATENCY_LOAD_H_

#include <atomic>
#include <cstdint>
#include <exception>
#include <fastdecode/fastdecode.hpp>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "tools/latency/recording.h"
#include "tools/load/arrivals.h"
#include "tools/load/engine_load.h"

namespace fastdecode {

// A number, or a range of which each request draws its own.
struct TokenRange {
  int min = 0;
  int max = 0;
};

struct LoadFlags {
  int concurrency = 8;  // closed loop: requests in flight
  double rate = 0;      // requests a second; > 0: open loop
  load::Arrivals arrivals = load::Arrivals::Poisson();
  TokenRange prompt_tokens = {64, 64};
  TokenRange output_tokens = {64, 64};
  bool fill = false;  // prompts get random KV instead of being computed
  uint64_t seed = 1;

  void AddTo(CLI::App* command);
};

// Keeps an engine busy with requests of random tokens, from its making to Stop: always so many in flight, each followed
// by the next (closed loop), or one at each of its own times, whether the engine keeps up or not (open loop).
//
// Owns: its requests and the thread that submits them. Thread: one. Bounded: open loop by the engine's queue, whose
// refusals are tried again: a request's intended start stays what it was.
class Load {
 public:
  // REQUIRES: the engine takes such requests (CheckLoad).
  Load(InferenceEngine& engine, const LoadFlags& flags);
  ~Load() { Join(); }
  Load(const Load&) = delete;
  Load& operator=(const Load&) = delete;

  // Whether it has given up; Stop says why.
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  // Cancels what still runs. Throws Error if the engine failed a request, or refused one for good.
  void Stop();

  // After Stop: of every request that was submitted, and of those of an open loop that should have been.
  const std::vector<IntendedStart>& starts() const { return starts_; }
  // Open loop, after Stop: requests that should have started and were never taken.
  uint64_t never_started() const { return never_started_; }

 private:
  void Join();
  void Run(InferenceEngine& engine, const LoadFlags& flags);

  std::atomic<bool> stop_{false};
  std::atomic<bool> failed_{false};

  // The thread's, and after Stop the owner's.
  std::vector<IntendedStart> starts_;
  uint64_t never_started_ = 0;
  std::exception_ptr failure_;

  std::thread thread_;  // last: it uses all of the above
};

// Throws Error naming the option if the engine cannot take such requests.
void CheckLoad(const InferenceEngine& engine, const LoadFlags& flags);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_LOAD_H_
