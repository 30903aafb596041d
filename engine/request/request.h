#ifndef FASTDECODE_ENGINE_REQUEST_REQUEST_H_
#define FASTDECODE_ENGINE_REQUEST_REQUEST_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <memory_resource>
#include <optional>
#include <string>
#include <vector>

#include "engine/text/stop_matcher.h"
#include "engine/text/stream_detokenizer.h"
#include "engine/pipeline/sequence.h"

namespace fastdecode {

// How a request ended, as its caller sees it.
enum class RequestFinish : uint8_t { kStop, kLength, kCancelled, kError };

// One thing that a caller is told about its request.
struct RequestEvent {
  bool finished = false;  // the last one
  int32_t token = 0;
  uint32_t token_index = 0;  // of the generated tokens
  float logprob = 0;
  std::vector<TokenLogprob> top_logprobs;
  std::string text;
  RequestFinish finish = RequestFinish::kStop;
  std::string error;
  uint32_t prompt_tokens = 0;
  uint32_t generated_tokens = 0;
  uint64_t submit_ns = 0;
  uint64_t time_ns = 0;
};

// A request between submit and the last event taken.
// Owns: its sequence and the events not taken yet.
// Thread: `sequence` as its own comment says; detokenizer and matcher the desk thread; the rest under the
//         desk's mutex. Bounded: by max_tokens + 1 events.
struct Request {
  explicit Request(std::pmr::memory_resource* sampling_memory) : sequence(sampling_memory) {}

  Sequence sequence;
  std::optional<StreamDetokenizer> detokenizer;  // absent: no text
  std::optional<StopMatcher> stops;
  uint64_t submit_ns = 0;
  uint32_t announced = 0;  // generated tokens told so far

  // Under the mutex.
  std::deque<RequestEvent> events;
  std::condition_variable changed;  // events came, or in_pipeline has ended
  bool ended = false;               // the caller's last event is queued; later tokens are dropped
  bool in_pipeline = false;         // the sequence is lent out
  bool listed = false;              // in the desk's list of requests with events
  bool forgotten = false;           // the caller wants nothing more
  int waiters = 0;                  // threads in Next and Forget; the request stays until they have left
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_REQUEST_REQUEST_H_
