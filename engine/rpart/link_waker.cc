#include "engine/rpart/link_waker.h"

namespace fastdecode {

LinkWaker::LinkWaker(const std::string& name, HomeLink* link, ParkWord* leader)
    : link_(link), leader_(leader), thread_(name + "-wake", -1, [this] { Run(); }) {}

LinkWaker::~LinkWaker() {
  stopping_.store(true, std::memory_order_release);
  Parker(&own_word_).RingAfterRelease();
  thread_.Join();
}

void LinkWaker::Watch() {
  // Acquire: pairs with Run's release; if it has just stopped watching, its ring is on its way to us.
  if (watching_.load(std::memory_order_acquire)) return;
  watching_.store(true, std::memory_order_release);
  Parker(&own_word_).RingAfterRelease();
}

void LinkWaker::AwaitRequest() {
  Parker parker(&own_word_);
  parker.Arm();
  const bool asked = watching_.load(std::memory_order_acquire) || stopping_.load(std::memory_order_acquire);
  if (asked) {
    parker.Disarm();
  } else {
    parker.Sleep(Parker::kForever);
  }
}

void LinkWaker::Run() {
  while (!stopping_.load(std::memory_order_acquire)) {
    if (!watching_.load(std::memory_order_acquire)) {
      AwaitRequest();
      continue;
    }
    link_->Arm();
    if (link_->lost()) {  // before Arm: nothing would end the sleep
      link_->Disarm();
    } else {
      Parker(leader_).RingAfterRelease();
      link_->Sleep(kSleepNsMax);
    }
    // Release, and before the ring: a leader that the ring reaches may ask again.
    watching_.store(false, std::memory_order_release);
    Parker(leader_).RingAfterRelease();
  }
}

}  // namespace fastdecode
