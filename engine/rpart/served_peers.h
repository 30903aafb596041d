#ifndef FASTDECODE_ENGINE_RPART_SERVED_PEERS_H_
#define FASTDECODE_ENGINE_RPART_SERVED_PEERS_H_

#include <array>
#include <cstddef>
#include <cstdint>

#include "engine/rpart/peer.h"
#include "numa/team_barrier.h"
#include "numa/ticket_team.h"
#include "rdma/link.h"

namespace fastdecode {

class PeerSession;

// The peers that a leader serves now, and what their sessions share. Owns: nothing.
// Thread: the leader; thread 0 of the team, which is the leader, adds progress. Bounded: kPeersMax.
struct ServedPeers {
  std::array<PeerSession*, kPeersMax> sessions = {};  // in order of arrival
  std::array<HomeLink*, kPeersMax> links = {};        // theirs
  size_t count = 0;

  TicketTeam* team = nullptr;
  TeamBarrier* part = nullptr;     // of those of the team that attend; null: all do
  uint64_t empty_since_ticks = 0;  // first turn in vain since the last work for whomever; 0: none

  // From inside a hop's work, by each thread that attends: returns when all of them have come.
  void Meet(int thread) const { part != nullptr ? part->Await() : team->Barrier(thread); }
  // Work for one peer is a sign of life for all: their hops wait for it.
  void AddProgress(uint64_t items) const {
    for (size_t i = 0; i < count; ++i) links[i]->AddProgress(items);
  }
  // Null if the peer is not served. Control path.
  PeerSession* Find(const PeerId& id) const;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_RPART_SERVED_PEERS_H_
