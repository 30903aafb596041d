#ifndef FASTDECODE_TOOLS_SERVE_ENGINE_EVENTS_H_
#define FASTDECODE_TOOLS_SERVE_ENGINE_EVENTS_H_

#include <fastdecode/fastdecode.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "tools/serve/http/asio.h"

namespace fastdecode::serve {

// Who takes the events of some requests of the engine. Thread: the I/O thread.
class EventOwner : public std::enable_shared_from_this<EventOwner> {
 public:
  virtual ~EventOwner() = default;
  // `index`: the slot's.
  virtual void OnEvent(size_t index, const fd_event& event, uint64_t now_ns) = 0;
  // All events that waited have been given, so that what they changed is written once.
  virtual void OnBatchEnd() = 0;
  // One of these has thrown: there is no memory for the answer. Must not throw.
  virtual void OnFault() = 0;

 private:
  friend class EngineEvents;
  bool touched_ = false;
};

// What the `user` of a request of the engine points to. It keeps its owner until its last event has been given.
struct EventSlot {
  std::shared_ptr<EventOwner> owner;
  size_t index = 0;
};

// Takes the engine's events as they come and gives each to its request's owner. Thread: the I/O thread.
class EngineEvents {
 public:
  // Throws Error if the process has no descriptor left. `engine` must outlive it.
  EngineEvents(asio::io_context& io, fd_engine* engine);
  ~EngineEvents();
  EngineEvents(const EngineEvents&) = delete;
  EngineEvents& operator=(const EngineEvents&) = delete;

 private:
  void Wait();
  void Take();

  fd_engine* const engine_;
  asio::posix::stream_descriptor descriptor_;  // the engine's own
  std::vector<fd_event> events_;
  std::vector<std::shared_ptr<EventOwner>> touched_;
};

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_ENGINE_EVENTS_H_
