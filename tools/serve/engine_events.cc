#include "tools/serve/engine_events.h"

#include <fastdecode/fastdecode.hpp>

#include "tools/serve/clock.h"

namespace fastdecode::serve {

namespace {

constexpr size_t kEventsAtOnce = 256;
constexpr int kBatches = 8;  // before the sockets have their turn again

int EventDescriptor(fd_engine* engine) {
  const int fd = fd_engine_event_fd(engine);
  if (fd < 0) throw Error(FD_RESOURCE_EXHAUSTED, "the process has no file descriptor left for the engine's events");
  return fd;
}

}  // namespace

EngineEvents::EngineEvents(asio::io_context& io, fd_engine* engine)
    : engine_(engine), descriptor_(io, EventDescriptor(engine)), events_(kEventsAtOnce) {
  Wait();
}

EngineEvents::~EngineEvents() { descriptor_.release(); }

void EngineEvents::Wait() {
  descriptor_.async_wait(asio::posix::stream_descriptor::wait_read, [this](const error_code& error) {
    if (error) return;
    Take();
    Wait();
  });
}

void EngineEvents::Take() {
  for (int batch = 0; batch < kBatches; ++batch) {
    events_[0].struct_size = sizeof(fd_event);
    const int count = fd_poll(engine_, events_.data(), events_.size(), 0);
    if (count <= 0) break;
    const uint64_t now = MonotonicNs();
    for (int i = 0; i < count; ++i) {
      auto* const slot = static_cast<EventSlot*>(events_[static_cast<size_t>(i)].user);
      const std::shared_ptr<EventOwner> owner = slot->owner;
      try {
        owner->OnEvent(slot->index, events_[static_cast<size_t>(i)], now);
      } catch (const std::exception&) {
        owner->OnFault();
      }
      if (owner->touched_) continue;
      owner->touched_ = true;
      touched_.push_back(owner);
    }
    for (const std::shared_ptr<EventOwner>& owner : touched_) {
      owner->touched_ = false;
      try {
        owner->OnBatchEnd();
      } catch (const std::exception&) {
        owner->OnFault();
      }
    }
    touched_.clear();
  }
}

}  // namespace fastdecode::serve
