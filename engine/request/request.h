#ifndef FASTDECODE_ENGINE_REQUEST_REQUEST_H_
#define FASTDECODE_ENGINE_REQUEST_REQUEST_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <memory_resource>
#include <optional>
#include <string>
#include <vector>

#include "engine/pipeline/sequence.h"
#include "engine/text/stop_matcher.h"
#include "engine/text/stream_detokenizer.h"
#include "engine/text/text_range.h"

namespace fastdecode {

// How a request ended, as its caller sees it.
enum class RequestFinish : uint8_t { kStop, kLength, kCancelled, kError, kDeadline };

// Text of an answer, and what of it special tokens wrote.
struct RequestText {
  std::string text;
  std::vector<TextRange> special;  // ascending, and apart

  void Append(const RequestText& next);
};

// One thing that a caller is told about its request. Tokens and logprobs lie in the answer's sequence.
struct RequestEvent {
  enum class Kind : uint8_t { kToken, kFinished, kPrompt, kPaused };
  Kind kind = Kind::kToken;
  uint32_t answer = 0;       // index in Request::answers
  uint32_t token_index = 0;  // kToken: the first one, of the generated tokens
  uint32_t token_count = 0;  // kToken
  int32_t home = -1;         // kPaused: which was lost
  RequestText text;
  uint64_t time_ns = 0;
};

// Where the time of a request went, as it is handed out (event_layout.cc).
struct RequestTimes {
  RequestTimes() = default;
  explicit RequestTimes(const SequenceTimes& times)
      : preemptions(times.preemptions),
        queue_ns(times.queue_ns),
        prefill(times.prefill),
        decode(times.decode),
        recovery_ns(times.recovery_ns),
        recoveries(times.recoveries) {}

  uint32_t struct_size = sizeof(RequestTimes);
  uint32_t preemptions = 0;
  uint64_t queue_ns = 0;
  StepTimes prefill, decode;
  uint64_t recovery_ns = 0;
  uint32_t recoveries = 0;
  uint32_t reserved = 0;
};

// What an answer's last event says.
struct RequestEnd {
  RequestFinish finish = RequestFinish::kStop;
  std::string error;
  int32_t stop_index = -1;  // kStop: of the stop strings; -1: none of them
  int32_t stop_token = -1;  // kStop: -1: none
  uint32_t generated_tokens = 0;
  uint32_t cached_tokens = 0;  // of the prompt: those whose KV other requests had computed
  RequestTimes times;

  // What a sequence has counted goes out with the end.
  void TakeTimes(const SequenceTimes& of) {
    times = RequestTimes(of);
    cached_tokens = of.cached_tokens;
  }
};

struct Request;

// One answer to a request: a sequence, and its text on the way to the caller.
// Thread: `sequence` as its own comment says; what is marked as the desk's, the desk thread; the rest under the desk's
//         mutex.
struct RequestAnswer {
  RequestAnswer(Request* of, uint32_t number, std::pmr::memory_resource* sampling_memory)
      : request(of), index(number), sequence(sampling_memory) {}

  Request* const request;
  const uint32_t index;
  Sequence sequence;

  // Desk thread.
  std::optional<StreamDetokenizer> detokenizer;  // absent: no text
  std::optional<StopMatcher> stops;
  size_t unmatched_bytes = 0;             // of text to come that no stop string is looked for in
  size_t untold_bytes = 0;                // of text that has been made and may be the beginning of a stop string...
  std::vector<TextRange> untold_special;  // ...and what of it special tokens wrote
  uint32_t announced = 0;                 // generated tokens told so far
  bool over = false;                      // the last event is made; later tokens are dropped

  // Under the mutex.
  RequestEnd end;  // what the last event says, once it is queued
};

// A request between submit and the last event taken. It has one answer or several, which are sampled from one prompt.
// Owns: its answers and the events not taken yet. Shared: by the desk and whoever reads an event that was taken.
// Thread: what is marked as the desk's, the desk thread; the rest under the desk's mutex.
// Bounded: kUndeliveredMax events and the last ones, of tokens that the sequences have memory for.
struct Request : std::enable_shared_from_this<Request> {
  explicit Request(std::pmr::memory_resource* sampling_memory, uint32_t answer_count = 1) : place(this) {
    for (uint32_t i = 0; i < answer_count; ++i) {
      answers.push_back(std::make_unique<RequestAnswer>(this, i, sampling_memory));
    }
  }

  // So many events wait at most; tokens that come then are added to the last one.
  static constexpr size_t kUndeliveredMax = 1024;

  // The one that computes the prompt.
  Sequence& first() { return answers.front()->sequence; }
  const Sequence& first() const { return answers.front()->sequence; }
  // All of them leave the pipeline soon. Any thread.
  void CancelSequences() {
    for (const auto& answer : answers) answer->sequence.cancelled.store(true, std::memory_order_release);
  }

  // Constant once submitted.
  std::vector<std::unique_ptr<RequestAnswer>> answers;  // at least one
  uint64_t id = 0;
  void* user = nullptr;
  uint64_t submit_ns = 0;
  uint64_t deadline_ns = UINT64_MAX;  // NowNs
  bool hides_special = false;         // special tokens are in the text for whoever reads their marks alone

  // Desk thread.
  bool prompt_told = false;  // that the logprobs of its prompt are there
  bool overdue = false;      // its time is over, but the last event waits until prompt_logits are left alone

  // Under the mutex.
  std::deque<RequestEvent> events;
  RequestEvent taken;               // the last one that RequestDesk::Next gave out
  std::condition_variable changed;  // for whoever waits for this request alone
  size_t ended = 0;                 // answers whose last event is queued
  bool released = false;            // the last event was taken, and the desk is asked for no more
  size_t lent = 0;                  // sequences that the pipeline has
  bool forgotten = false;           // the caller wants nothing more
  int waiters = 0;                  // threads in Next and Forget; the request stays until they have left

  // Its place in the desk's list of requests with events: a list of one where it is not there.
  struct Place {
    explicit Place(Request* request) : own{request}, at(own.begin()) {}
    std::list<Request*> own;
    std::list<Request*>::iterator at;
    bool listed = false;
  } place;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_REQUEST_REQUEST_H_
