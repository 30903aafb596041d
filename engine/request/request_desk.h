#ifndef FASTDECODE_ENGINE_REQUEST_REQUEST_DESK_H_
#define FASTDECODE_ENGINE_REQUEST_REQUEST_DESK_H_

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "engine/pipeline/home_keeper.h"
#include "engine/pipeline/pipeline.h"
#include "engine/record/event_ring.h"
#include "engine/request/request.h"
#include "numa/parker.h"
#include "numa/pinned_thread.h"

namespace fastdecode {

// Between the callers and the pipeline: passes sequences on in order of submission, turns tokens into text, finds stop
// strings, and keeps each request's events until its caller takes them.
//
// Owns: requests from Submit until the last event was taken or the request forgotten; the desk thread (unpinned).
// Thread: the public functions may be called from any thread. One mutex guards the requests' events; the pipeline
//         thread never takes it.
// Bounded: `queue_max` requests that have not ended.
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

  // Takes a request that is ready to run (its sequence's id is set here). ResourceExhausted: too many; Unavailable: the
  // engine is draining.
  absl::Status Submit(std::unique_ptr<Request> request, uint64_t* id);
  void Cancel(uint64_t id);
  // Commands of the home keeper go through the desk thread, the pipeline's one producer.
  void Command(const PipelineCommand& command);

  enum class NextResult { kEvent, kTimeout, kUnknown };
  // timeout_ns < 0: for ever. kUnknown: never heard of, forgotten (perhaps while we waited), or its last event was
  // taken.
  NextResult Next(uint64_t id, RequestEvent* out, int64_t timeout_ns);
  bool WaitAny(uint64_t* id, int64_t timeout_ns);
  // With prompt_logits: returns when the pipeline writes there no more, which it says through the desk thread; so
  // never from there, nor from a log sink, which may be called there.
  void Forget(uint64_t id);

  // Refuses new requests, and returns when all have ended.
  void Drain();

  size_t running() const;

 private:
  void Run();
  bool ForwardCommands();
  bool HandleEvents();
  void Lend(std::unique_ptr<Request> request);
  void OnToken(Request& request, const PipelineEvent& event);
  void RecordSubmission(const PipelineCommand& command);
  void RecordDelivery(uint64_t id, uint32_t index, uint64_t step_end_ns);
  void OnFinished(Request& request, const PipelineEvent& event);
  std::string DescribeFailure(const PipelineEvent& event);
  static std::string LastText(Request& request);
  void End(Request& request, RequestFinish finish, std::string error, std::string text, uint64_t time_ns);
  void Push(Request& request, RequestEvent event);
  void EraseIfDone(uint64_t id);

  Pipeline* const pipeline_;
  Parker own_parker_;
  const size_t queue_max_;
  HomeKeeper* const keeper_;

  mutable std::mutex mutex_;
  std::condition_variable any_changed_;                              // some request got an event, or ended
  std::unordered_map<uint64_t, std::unique_ptr<Request>> requests_;  // by id
  std::deque<uint64_t> with_events_;                                 // listed requests, next first; may hold stale ids
  std::deque<PipelineCommand> commands_;                             // not passed on yet
  uint64_t next_id_ = 1;
  size_t running_ = 0;  // requests whose last event is not queued yet
  size_t lent_ = 0;     // sequences that the pipeline has
  bool draining_ = false;

  EventWriter record_;                      // desk thread
  std::atomic<uint64_t> commands_seen_{0};  // bumped after each push to commands_
  uint64_t commands_forwarded_ = 0;         // desk thread
  std::atomic<bool> stop_{false};
  std::unique_ptr<PinnedThread> thread_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_REQUEST_REQUEST_DESK_H_
