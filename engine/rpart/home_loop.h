#ifndef FASTDECODE_ENGINE_RPART_HOME_LOOP_H_
#define FASTDECODE_ENGINE_RPART_HOME_LOOP_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/rpart/kv_pool.h"
#include "engine/rpart/peer_session.h"
#include "engine/rpart/served_peers.h"
#include "numa/parker.h"
#include "numa/spin.h"
#include "numa/spsc_queue.h"
#include "numa/ticket_team.h"

namespace fastdecode {

// What a loop is made of; see HomeOptions for the fields that they share.
struct HomeLoopOptions {
  std::string name;
  std::vector<int> cores;
  PollMode poll = PollMode::kSpin;
  bool park = true;
  uint32_t peers = 1;
  std::span<std::byte> kv_memory;
  RPartShape page_shape;  // of all peers: what a page is
};

// The leader of one home and what its peers share: the pool and the team. A turn looks at every peer once, in order of
// arrival: at most a hop and a few control messages each, so that none waits for more than one of every other. Then it
// stores one bulk segment, of any peer.
//
// Idle costs nothing: when all peers have said that they are idle the leader sleeps. A home for one peer sleeps on that
// peer's link, and its ring wakes the leader at once. A home for several sleeps on a word of its own, which the links'
// wakers ring (LinkWaker); a home that serves nobody just now sleeps on that word, too.
//
// Owns: the pool's accounts, the team's helpers; not the KV memory, not the sessions.
// Thread: Serve and all below it run on the leader's; the rest is the control thread's.
// Bounded: kPeersMax sessions; hops allocate nothing.
class HomeLoop {
 public:
  // REQUIRES: ValidateShape(page_shape), 1 <= peers <= kPeersMax.
  explicit HomeLoop(const HomeLoopOptions& options);

  KvPool* pool() { return &pool_; }
  // What a session's waker is to ring; null: the leader sleeps on the link itself.
  ParkWord* word_for_wakers() { return options_.peers > 1 ? &leader_word_ : nullptr; }

  // Starts the team's helpers; throws as PinnedThread does. Thread: the leader, already on its core.
  void MakeTeam();
  // For the control thread. REQUIRES: MakeTeam has returned, and nobody has said Stop.
  const TicketTeam& team() const { return *team_; }
  // Serves until Stop. Thread: the leader. REQUIRES: MakeTeam.
  void Serve();

  // The leader begins to serve the session, which stays the caller's, until its link is lost: then session->ended().
  void Add(PeerSession* session);
  // Waits until the leader has let go of the session. REQUIRES: its link is lost.
  void AwaitEnd(const PeerSession& session);
  // Serve returns. REQUIRES: all sessions have ended.
  void Stop();

 private:
  // home_loop_fastpath.cc
  bool Turn();
  bool TakeSegment();
  bool MayPark() const;

  // home_loop.cc
  void ServeUntilStopped();
  void TakeArrival(PeerSession* session);
  void EndSession(size_t index);
  void Park();
  void ParkOnLink(HomeLink* link);
  void Ring() { Parker(&leader_word_).RingAfterRelease(); }

  // Constant after construction.
  const HomeLoopOptions options_;

  // The leader only.
  KvPool pool_;
  ServedPeers served_;
  std::unique_ptr<TicketTeam> team_;
  size_t next_segment_ = 0;  // the session that is asked first
  bool stopping_ = false;

  // Between the threads.
  SpscQueue<PeerSession*> arrivals_;  // from the control thread; null: stop
  ParkWord leader_word_;              // rung by the control thread and by wakers
  ParkWord control_word_;             // rung by the leader when a session has ended
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_RPART_HOME_LOOP_H_
