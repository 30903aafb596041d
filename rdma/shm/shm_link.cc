#include "rdma/shm/shm_link.h"

#include <cstdio>
#include <utility>

#include "numa/parker.h"

namespace fastdecode {

namespace {

constexpr size_t kDefectTextBytesMax = 160;

}  // namespace

ShmEngineLink::ShmEngineLink(const LinkSize& size, uint64_t epoch, const ShmRegions& regions,
                             std::unique_ptr<ShmBacking> backing)
    : size_(size),
      epoch_(epoch),
      backing_(std::move(backing)),
      loss_(backing_->loss()),
      regions_(regions),
      control_out_(regions.home.control_indices(), regions.home.control_data(), size.control_ring_bytes),
      control_in_(regions.engine.control_indices(), regions.engine.control_data(), size.control_ring_bytes) {}

ShmEngineLink::~ShmEngineLink() { MarkLost("the engine closed the link"); }

void ShmEngineLink::RingHome() { Parker(regions_.home.park_word()).RingAfterRelease(); }

void ShmEngineLink::MarkLost(const char* cause) {
  if (loss_->Set(cause)) backing_->TellPeer(cause);
}

void ShmEngineLink::CheckPeer() {
  std::string cause;
  if (backing_->PeerGone(&cause)) MarkLost(cause.c_str());
}

LinkPoll ShmEngineLink::Lose(int slot, const char* defect) {
  char cause[kDefectTextBytesMax];
  if (slot < 0) {
    std::snprintf(cause, sizeof(cause), "protocol error by the home: %s", defect);
  } else {
    std::snprintf(cause, sizeof(cause), "protocol error by the home: %s (slot %d, step %llu, layer %u)", defect, slot,
                  static_cast<unsigned long long>(slots_[slot].hop.step), unsigned{slots_[slot].hop.layer});
  }
  MarkLost(cause);
  return LinkPoll::kLost;
}

ShmHomeLink::ShmHomeLink(const LinkSize& size, uint64_t epoch, const ShmRegions& regions,
                         std::unique_ptr<ShmBacking> backing)
    : size_(size),
      epoch_(epoch),
      backing_(std::move(backing)),
      loss_(backing_->loss()),
      regions_(regions),
      control_in_(regions.home.control_indices(), regions.home.control_data(), size.control_ring_bytes),
      control_out_(regions.engine.control_indices(), regions.engine.control_data(), size.control_ring_bytes) {}

ShmHomeLink::~ShmHomeLink() { MarkLost("the home closed the link"); }

void ShmHomeLink::Arm() { Parker(regions_.home.park_word()).Arm(); }

void ShmHomeLink::Disarm() { Parker(regions_.home.park_word()).Disarm(); }

void ShmHomeLink::Sleep(uint64_t timeout_ns) { Parker(regions_.home.park_word()).Sleep(timeout_ns); }

void ShmHomeLink::MarkLost(const char* cause) {
  if (!loss_->Set(cause)) return;
  backing_->TellPeer(cause);
  // A leader that slept before the loss is woken; one that arms after it sees lost() in the poll before it sleeps.
  Parker(regions_.home.park_word()).RingAfterRelease();
}

void ShmHomeLink::CheckPeer() {
  std::string cause;
  if (backing_->PeerGone(&cause)) MarkLost(cause.c_str());
}

LinkPoll ShmHomeLink::Lose(int slot, const char* defect) {
  char cause[kDefectTextBytesMax];
  if (slot < 0) {
    std::snprintf(cause, sizeof(cause), "protocol error by the engine: %s", defect);
  } else {
    std::snprintf(cause, sizeof(cause), "protocol error by the engine: %s (slot %d)", defect, slot);
  }
  MarkLost(cause);
  return LinkPoll::kLost;
}

}  // namespace fastdecode
