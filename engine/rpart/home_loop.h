#ifndef FASTDECODE_ENGINE_RPART_HOME_LOOP_H_
#define FASTDECODE_ENGINE_RPART_HOME_LOOP_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/rpart/hop_work.h"
#include "engine/rpart/micro_batch.h"
#include "engine/rpart/sequence_table.h"
#include "engine/rpart/workspace.h"
#include "kernels/isa.h"
#include "numa/log.h"
#include "numa/spin.h"
#include "numa/ticket_team.h"
#include "rdma/link.h"

namespace fastdecode {

// What a loop is made of; see HomeOptions for the fields that they share.
struct HomeLoopOptions {
  std::string name;
  int node = -1;
  std::vector<int> cores;
  PollMode poll = PollMode::kSpin;
  bool park = true;
  Isa isa = Isa::kNone;
  uint32_t sequences_max = 0;
  Logger* logger = nullptr;
  std::span<std::byte> kv_memory;
};

// One home at the service of one peer, from the link's making to its loss.
// Owns: the link, the peer's sequences and rosters, the pool's accounts, the team's helpers; not the KV memory.
// Thread: made by the control thread; Serve and all below it run on the leader's; RequestStop may be called by any.
// Bounded: everything is allocated before Serve; hops allocate nothing.
class HomeLoop {
 public:
  // Errors: ResourceExhausted if the KV memory holds no page; those of TeamWorkspace::Create. REQUIRES:
  // ValidateShape(shape).
  static absl::StatusOr<std::unique_ptr<HomeLoop>> Create(const HomeLoopOptions& options, const RPartShape& shape,
                                                          std::unique_ptr<HomeLink> link);

  // Serves until the link is lost, then drops all sequences. Returns why it was lost.
  // Thread: the leader, already on its core.
  std::string Serve();

  const HomeLink& link() const { return *link_; }
  HomeLink& link() { return *link_; }

 private:
  enum class Outcome : uint8_t { kNothing, kWorked, kLost };

  // A hop that came before its roster.
  struct WaitingHop {
    bool waiting = false;
    HopHeader header;
    const std::byte* rows = nullptr;
    uint32_t idle_ns = 0;
    uint64_t seen_ticks = 0;
  };

  HomeLoop(const HomeLoopOptions& options, const RPartShape& shape, std::unique_ptr<HomeLink> link,
           TeamWorkspace workspace);

  // home_loop_fastpath.cc: the loop's turn.
  Outcome Turn();
  void TakeHop(const HopHeader& header, const std::byte* rows);
  void RunWaitingHops();
  void RunHop(const WaitingHop& hop);
  const char* ComputeHop(const WaitingHop& hop, ReplyHeader* reply);
  void ZeroBadRows(std::span<const StepEntry> entries, std::byte* o) const;

  // home_loop.cc: control.
  void Park();
  void ApplyControl(std::span<const std::byte> message);
  absl::Status Apply(std::span<const std::byte> message);
  absl::Status ApplyRoster(std::span<const std::byte> message);
  absl::Status Fill(uint64_t sequence, uint32_t tokens);
  void SendStats();

  // Constant after construction.
  const HomeLoopOptions options_;
  const RPartShape shape_;
  const std::unique_ptr<HomeLink> link_;
  const TeamWorkspace workspace_;

  // The leader only.
  KvPool pool_;
  SequenceTable table_;
  std::vector<std::unique_ptr<MicroBatch>> micro_batches_;
  std::vector<WaitingHop> waiting_;  // [micro-batch]
  uint32_t waiting_count_ = 0;
  uint64_t empty_since_ticks_ = 0;  // first empty poll since the last work; 0: none
  bool idle_ = false;               // the engine said so, and nothing came since
  std::unique_ptr<TicketTeam> team_;
  HopWork work_;
  StatsMessage stats_;
  std::vector<std::byte> control_buffer_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_RPART_HOME_LOOP_H_
