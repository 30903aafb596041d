// FAST PATH (docs/FAST_PATH.md)
#include "engine/rpart/home_loop.h"
#include "numa/clock.h"

namespace fastdecode {

// One look at everything that may have come, from whomever. False: nothing had.
bool HomeLoop::Turn() {
  bool worked = false;
  PeerSession* arrival = nullptr;
  while (arrivals_.TryPop(&arrival)) {
    TakeArrival(arrival);
    worked = true;
  }
  for (size_t i = 0; i < served_.count;) {
    const PeerSession::Outcome outcome = served_.sessions[i]->Turn();
    worked = worked || outcome != PeerSession::Outcome::kNothing;
    if (outcome == PeerSession::Outcome::kLost) {
      EndSession(i);  // the next one has its index now
    } else {
      ++i;
    }
  }
  worked = TakeSegment() || worked;
  if (!worked && served_.empty_since_ticks == 0) served_.empty_since_ticks = NowTicks();
  return worked;
}

// One segment a turn at most, of all peers', behind whatever hops there were: none waits for more than one.
bool HomeLoop::TakeSegment() {
  for (size_t looked = 0; looked < served_.count; ++looked) {
    const size_t index = next_segment_ % served_.count;
    next_segment_ = index + 1;
    const PeerSession::Outcome outcome = served_.sessions[index]->TakeSegment();
    if (outcome == PeerSession::Outcome::kNothing) continue;
    if (outcome == PeerSession::Outcome::kLost) EndSession(index);
    return true;
  }
  return false;
}

// A home without peers parks even where it is told to go on polling for them.
bool HomeLoop::MayPark() const {
  if (served_.count > 0 && !options_.park) return false;
  for (size_t i = 0; i < served_.count; ++i) {
    if (!served_.sessions[i]->idle()) return false;
  }
  return true;
}

}  // namespace fastdecode
