#ifndef FASTDECODE_ENGINE_RPART_HOME_H_
#define FASTDECODE_ENGINE_RPART_HOME_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/rpart/home_loop.h"
#include "engine/rpart/messages.h"
#include "kernels/isa.h"
#include "numa/arena.h"
#include "numa/log.h"
#include "numa/pinned_thread.h"
#include "numa/spin.h"
#include "rdma/link.h"

namespace fastdecode {

struct HomeOptions {
  std::string name = "home";      // of threads and in messages
  int node = -1;                  // os_index of the NUMA node that holds the KV; -1: anywhere
  std::vector<int> cores = {-1};  // OS numbers of the team's PUs, the leader's first; -1: not pinned
  uint64_t kv_bytes = 0;          // of KV memory, taken and touched at once
  PollMode poll = PollMode::kSpin;
  bool park = true;                  // false: keeps polling while the engine is idle (--poll always)
  Isa isa = Isa::kNone;              // kNone: the best that this CPU has
  uint32_t sequences_max = 1 << 16;  // of one peer
  Logger* logger = nullptr;          // may be null; outlives the home
};

// KV memory of one NUMA node and the team of threads that computes attention next to it, at the service of one peer at
// a time. Owns: the arena; while a peer is attached also its link, sequences and the team. Thread: one control thread
// calls everything; the team's threads run in between.
class Home {
 public:
  // Takes and touches the KV memory; what a page is, only a peer's shape says.
  // Errors: InvalidArgument (no cores, no bytes, an ISA that this CPU has not); FailedPrecondition (CPU too old); those
  // of Arena::Create.
  static absl::StatusOr<std::unique_ptr<Home>> Create(HomeOptions options);
  // Detaches.
  ~Home();

  // Whether a peer of this shape could be served. Errors: those of ValidateShape; ResourceExhausted if not one page
  // fits.
  absl::Status CheckShape(const RPartShape& shape) const;
  // What such a peer gets. REQUIRES: CheckShape(shape) is ok.
  HomeDescription Describe(const RPartShape& shape) const;

  // Starts to serve the peer at the other end of the link, whose size is LinkSizeFor(shape).
  // Errors: FailedPrecondition while another is served; InvalidArgument if shape and link do not fit; those of
  // CheckShape; ResourceExhausted. The link is then closed.
  absl::Status Attach(const RPartShape& shape, std::unique_ptr<HomeLink> link);
  // False as soon as the link is lost and all that the peer had here is dropped.
  bool serving() const { return serving_.load(std::memory_order_acquire); }
  // The link's liveness; null unless attached. Whoever attached a link with a liveness_fd watches it.
  LinkEnd* link() { return loop_ == nullptr ? nullptr : &loop_->link(); }
  // Ends the service, if it has not ended by itself, and frees the home for the next peer. Returns why it ended, empty
  // if nobody was attached.
  std::string Detach();

  const HomeOptions& options() const { return options_; }
  // Of the KV memory, for people.
  std::string DescribeMemory() const { return arena_.Describe(); }

 private:
  Home(HomeOptions options, Arena arena);

  // Constant after construction.
  const HomeOptions options_;
  const Arena arena_;

  // The control thread's.
  std::unique_ptr<HomeLoop> loop_;
  PinnedThread leader_;

  std::string end_cause_;             // the leader's; the control thread reads it after joining
  std::atomic<bool> serving_{false};  // set by the control thread, cleared by the leader
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_RPART_HOME_H_
