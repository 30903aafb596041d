#ifndef FASTDECODE_TOOLS_LOAD_RESULT_H_
#define FASTDECODE_TOOLS_LOAD_RESULT_H_

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace fastdecode::load {

// What became of one request. Times are CLOCK_MONOTONIC, and durations count from the intended start: what a request
// waited because others were late is part of what its user feels.
struct RequestResult {
  uint64_t id = 0;          // the engine's; 0: a server's, or it was never taken
  std::string error;        // why it failed; empty: it succeeded
  int status = 0;           // of HTTP; 0: none came
  int64_t intended_ns = 0;  // open loop: when it was to start; closed loop: when it did; 0: it never came to that
  int64_t start_ns = 0;     // when it was sent, or its connection begun; 0: it was not
  int64_t end_ns = 0;       // when its end was seen; 0: it was not sent, or the run was over before
  int64_t ttft_ns = 0;      // to the first chunk that has choices; of a whole answer 0
  int64_t latency_ns = 0;   // to the last such chunk, or to the end of a whole answer
  std::vector<int64_t> itl_ns;
  int64_t prompt_tokens = 0;
  int64_t output_tokens = 0;
  std::string text;  // if it was to be kept

  bool ended() const { return end_ns != 0; }
  bool succeeded() const { return ended() && error.empty(); }
  int64_t last_token_ns() const { return intended_ns + latency_ns; }
  // Time from the first chunk to the last, by the tokens that came meanwhile; 0 where there were none.
  double ns_per_token() const {
    if (output_tokens <= 1) return 0;
    return static_cast<double>(latency_ns - ttft_ns) / static_cast<double>(output_tokens - 1);
  }
};

struct LoadRun {
  std::vector<RequestResult> results;  // in the order in which they were to start
  int64_t start_ns = 0, end_ns = 0;
  int64_t cpu_ns = 0;       // what this thread spent of it
  int64_t connections = 0;  // those made
};

// How requests follow each other.
struct Pace {
  // In an open loop, when each request is to start, in seconds from the begin of the run; as many are sent as there are
  // times. Empty: a closed loop of all requests.
  std::vector<double> arrivals_s;
  int concurrency = 0;  // the most that are in flight; 0: no limit, in an open loop

  bool is_open() const { return !arrivals_s.empty(); }
};

// Who watches a run. All may be empty.
struct RunHooks {
  std::function<bool()> is_interrupted;               // asked some times a second; true: the run is over
  std::function<void(size_t ended)> report_progress;  // called some times a second
  std::function<bool(const RequestResult&)> goes_on;  // asked as each request ends; false: the run is over
};

}  // namespace fastdecode::load

#endif  // FASTDECODE_TOOLS_LOAD_RESULT_H_
