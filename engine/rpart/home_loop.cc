#include "engine/rpart/home_loop.h"

#include "numa/check.h"

namespace fastdecode {

namespace {

// Arrivals that the leader has not taken yet: one of each peer's, its successor's, the stop.
constexpr size_t kArrivalsMax = 64;
static_assert(kArrivalsMax > 2 * kPeersMax);

}  // namespace

HomeLoop::HomeLoop(const HomeLoopOptions& options)
    : options_(options),
      pool_(options.page_shape.attention(), static_cast<int>(options.page_shape.layers), options.kv_memory),
      arrivals_(kArrivalsMax) {
  FD_CHECK(options.peers >= 1 && options.peers <= kPeersMax, "number of peers");
}

void HomeLoop::MakeTeam() {
  team_ = std::make_unique<TicketTeam>(options_.name, options_.cores, options_.poll);
  served_.team = team_.get();
}

void HomeLoop::Serve() {
  SetFlushDenormals();
  ServeUntilStopped();
  team_.reset();  // without a turn: helpers need theirs to end
  FD_CHECK(served_.count == 0, "the home stops while it serves");
  FD_CHECK(pool_.free() == pool_.total(), "a page leaked");
}

void HomeLoop::ServeUntilStopped() {
  const CoreTurn turn(options_.poll == PollMode::kTurns ? options_.cores[0] : -1);
  PollBackoff backoff(options_.poll);
  while (!stopping_) {
    if (Turn()) {
      backoff.Reset();
    } else if (MayPark()) {
      Park();
      backoff.Reset();
    } else {
      backoff.Idle();
    }
  }
}

void HomeLoop::TakeArrival(PeerSession* session) {
  if (session == nullptr) {
    stopping_ = true;
    return;
  }
  FD_CHECK(served_.count < options_.peers, "one peer too many");
  session->Begin(&served_);
  served_.sessions[served_.count] = session;
  served_.links[served_.count] = &session->link();
  ++served_.count;
}

void HomeLoop::EndSession(size_t index) {
  PeerSession* const session = served_.sessions[index];
  --served_.count;
  for (size_t i = index; i < served_.count; ++i) {
    served_.sessions[i] = served_.sessions[i + 1];
    served_.links[i] = served_.links[i + 1];
  }
  session->End();
  Parker(&control_word_).RingAfterRelease();
}

// Sleeps until something rings. The ring comes after the message that it is for, so whatever ends the sleep, the next
// turns find it; only they end the idle time.
void HomeLoop::Park() {
  team_->Park();
  if (options_.peers == 1 && served_.count == 1) {
    ParkOnLink(served_.links[0]);
    return;
  }
  for (size_t i = 0; i < served_.count; ++i) served_.sessions[i]->waker()->Watch();
  Parker parker(&leader_word_);
  parker.Arm();
  if (Turn()) {
    parker.Disarm();
  } else {
    parker.Sleep(served_.count == 0 ? Parker::kForever : LinkWaker::kSleepNsMax);
  }
}

void HomeLoop::ParkOnLink(HomeLink* link) {
  link->Arm();
  if (!Turn()) {
    link->Sleep(LinkWaker::kSleepNsMax);
  } else if (served_.count == 1 && served_.links[0] == link) {  // else it was lost and is not ours any more
    link->Disarm();
  }
}

void HomeLoop::Add(PeerSession* session) {
  FD_CHECK(arrivals_.TryPush(session), "the leader does not take its arrivals");
  Ring();
}

void HomeLoop::AwaitEnd(const PeerSession& session) {
  Parker parker(&control_word_);
  while (!session.ended()) {
    parker.Arm();
    if (session.ended()) {
      parker.Disarm();
    } else {
      parker.Sleep(LinkWaker::kSleepNsMax);
    }
  }
}

void HomeLoop::Stop() {
  FD_CHECK(arrivals_.TryPush(nullptr), "the leader does not take its arrivals");
  Ring();
}

}  // namespace fastdecode
