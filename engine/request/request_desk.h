#ifndef FASTDECODE_ENGINE_REQUEST_REQUEST_DESK_H_
#define FASTDECODE_ENGINE_REQUEST_REQUEST_DESK_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "engine/pipeline/home_keeper.h"
#include "engine/pipeline/pipeline.h"
#include "engine/record/event_ring.h"
#include "engine/request/request.h"
#include "numa/parker.h"
#include "numa/pinned_thread.h"

namespace fastdecode {

// What a desk has counted since it was made, and what it has now.
struct DeskStatistics {
  uint64_t submitted = 0, refused = 0;  // refused: for a full queue
  uint64_t prompt_tokens = 0;           // of accepted requests
  uint64_t generated_tokens = 0;        // announced
  uint64_t finished[5] = {};            // by RequestFinish
  uint64_t running = 0;                 // requests whose last event is not queued yet
  uint64_t running_answers = 0;         // the same of their answers
  uint64_t undelivered = 0;             // requests with events that nobody has taken
  bool draining = false;
};

// An event that was taken. It lives as long as Next and Poll say; its request as long as this, so that others may
// forget it while it is read.
struct TakenEvent {
  std::shared_ptr<const Request> request;
  const RequestEvent* event = nullptr;
};

// Between the callers and the pipeline: passes sequences on in order of submission, turns tokens into text, finds stop
// strings, ends requests whose deadline has passed, and keeps each request's events until its caller takes them.
//
// Owns: requests from Submit until the last event was taken or the request forgotten; the desk thread (unpinned); the
//       event descriptor.
// Thread: the public functions may be called from any thread. One mutex guards the requests' events. The desk thread
//         takes it once for all events that the pipeline has for it; the pipeline thread never does.
// Bounded: `queue_max` answers that have not ended, and what Request says of each request.
class RequestDesk {
 public:
  // `record`: of the desk thread.
  RequestDesk(Pipeline* pipeline, ParkWord* own_word, size_t queue_max, HomeKeeper* keeper,
              const EventWriter& record = EventWriter());
  ~RequestDesk();
  RequestDesk(const RequestDesk&) = delete;
  RequestDesk& operator=(const RequestDesk&) = delete;

  void Start();
  // Cancels all, waits until the pipeline has given every sequence back and ended, then ends the thread.
  void Stop();

  // Takes a request that is ready to run (ids of it and its sequences are set here). ResourceExhausted: too many;
  // Unavailable: the engine is draining.
  absl::Status Submit(std::unique_ptr<Request> request, uint64_t* id);
  void Cancel(uint64_t id);
  // Commands of the home keeper go through the desk thread, the pipeline's one producer.
  void Command(const PipelineCommand& command);

  enum class NextResult { kEvent, kTimeout, kUnknown };
  // timeout_ns < 0: for ever. kUnknown: never heard of, forgotten (perhaps while we waited), or its last event was
  // taken. *out lives until the next call for this request, or its Forget; one thread at a time for each.
  NextResult Next(uint64_t id, TakenEvent* out, int64_t timeout_ns);
  // Takes up to `capacity` events of any requests, which take turns, and waits for the first one. What is in *out lives
  // until the next Poll; one thread at a time. A request whose last event is among them is forgotten. Throws
  // std::bad_alloc before anything is taken.
  void Poll(size_t capacity, int64_t timeout_ns, std::vector<TakenEvent>* out);
  // A descriptor that is readable while an event waits; the desk's. -1: errno says why there is none.
  int EventFd();
  // With prompt_logits: returns when the pipeline writes there no more, which it says through the desk thread; so
  // never from there, nor from a log sink, which may be called there.
  void Forget(uint64_t id);

  // Refuses new requests. Returns when all have ended or the time is over (timeout_ns < 0: never): how many have not.
  size_t Drain(int64_t timeout_ns);

  DeskStatistics statistics() const;

 private:
  // What the desk thread has made of an event of the pipeline, for the request's caller.
  struct Delivery {
    RequestAnswer* answer = nullptr;
    uint64_t id = 0;  // of the request
    uint64_t time_ns = 0;
    bool prompt = false;            // the logprobs of its prompt are there
    std::optional<uint32_t> token;  // its index, of the generated ones...
    RequestText text;               // ...and what became certain with it
    int lost_home = -1;             // whose loss is a pause; -1: there is none
    std::optional<RequestEnd> end;  // what the last event says, which comes after that...
    RequestText last_text;          // ...and its text
    bool given_back = false;        // the sequence is the desk's again
  };

  // --- the desk thread
  void Run();
  uint64_t SleepNs() const;
  bool ForwardCommands();
  bool HandleEvents();
  static void MakePrompt(Request& request, Delivery* out);
  void MakeToken(RequestAnswer& answer, const PipelineEvent& event, Delivery* out);
  void MakeEnd(RequestAnswer& answer, const PipelineEvent& event, Delivery* out);
  void Deliver(Delivery* delivery);
  bool EndOverdue();
  void RecordSubmission(const PipelineCommand& command);
  void RecordDelivery(uint64_t id, uint32_t index, uint64_t step_end_ns);
  std::string DescribeFailure(const PipelineEvent& event);
  static std::string MakeText(RequestAnswer& answer, int32_t token);
  static std::string EndText(RequestAnswer& answer);
  static std::string MatchStops(RequestAnswer& answer, std::string_view text);
  static RequestText Tell(RequestAnswer& answer, std::string text);
  static RequestText LastText(RequestAnswer& answer);

  // --- events and callers, with the mutex held (request_events.cc)
  void Lend(std::unique_ptr<Request> request);
  void Push(Request& request, RequestEvent event);
  void PushPause(Request& request, RequestEvent event);
  void End(RequestAnswer& answer, RequestEnd end, RequestText text, uint64_t time_ns);
  void EndOverdue(Request& request, uint64_t now_ns);
  void List(Request& request);
  void Unlist(Request& request);
  void TakeFront(Request& request, RequestEvent* out);
  void SignalEvents();
  void EraseIfDone(uint64_t id);

  Pipeline* const pipeline_;
  Parker own_parker_;
  const size_t queue_max_;
  HomeKeeper* const keeper_;

  mutable std::mutex mutex_;
  std::condition_variable any_changed_;                              // some request got an event
  std::condition_variable fewer_;                                    // a request ended, or a sequence or command left
  std::unordered_map<uint64_t, std::shared_ptr<Request>> requests_;  // by id
  std::list<Request*> with_events_;                                  // the next one to be polled first
  std::set<std::pair<uint64_t, uint64_t>> deadlines_;                // (when, id) of those that have not ended
  std::deque<PipelineCommand> commands_;                             // not passed on yet
  std::vector<RequestEvent> polled_;                                 // that Poll gave out last
  uint64_t next_id_ = 1;                                             // of a request
  uint64_t next_sequence_id_ = 1;                                    // a number space of its own
  size_t lent_ = 0;                                                  // sequences that the pipeline has
  size_t running_answers_ = 0;  // whose last event is not queued yet: each takes a place in the queue
  int any_waiters_ = 0;         // threads that wait for any_changed_
  int event_fd_ = -1;
  bool signalled_ = false;  // event_fd_ is readable
  DeskStatistics counts_;   // but for `undelivered` and `running_answers`

  // Desk thread.
  EventWriter record_;
  std::vector<Delivery> deliveries_;  // used again and again
  uint64_t commands_forwarded_ = 0;

  std::atomic<uint64_t> commands_seen_{0};            // bumped after each push to commands_
  std::atomic<uint64_t> first_deadline_{UINT64_MAX};  // of deadlines_
  std::atomic<bool> stop_{false};
  std::unique_ptr<PinnedThread> thread_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_REQUEST_REQUEST_DESK_H_
