#ifndef FASTDECODE_ENGINE_BENCH_RPART_BENCH_H_
#define FASTDECODE_ENGINE_BENCH_RPART_BENCH_H_

#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/rpart/hop_work.h"
#include "engine/rpart/micro_batch.h"
#include "engine/rpart/page_account.h"
#include "engine/rpart/random_kv.h"
#include "engine/rpart/sequence_table.h"
#include "engine/rpart/workspace.h"
#include "kernels/dot_loop.h"
#include "kernels/isa.h"
#include "numa/arena.h"
#include "numa/ticket_team.h"

namespace fastdecode {

struct RPartBenchOptions {
  KvType kv_type = KvType::kBf16;  // rows are in f32 with f32, else in bf16
  uint32_t heads = 0;              // a multiple of kv_heads
  uint32_t kv_heads = 0;
  uint32_t head_size = 0;
  uint32_t layers = 1;
  uint32_t context = 0;        // tokens that the last row of each sequence attends to, its own included
  uint32_t shared_prefix = 0;  // of these, the first ones that all sequences share: whole blocks
  uint32_t rows = 1;           // query rows of each sequence, the last of its context
  bool of_prompts = false;     // these rows are a prompt's
  uint32_t sequences = 0;      // 0: as many as fill the memory
  uint64_t pool_bytes = 0;
  bool fragmented = false;      // the measured sequences grow in what others have left
  std::vector<int> cores = {};  // OS numbers of the team's PUs, the calling thread's first
  int node = -1;                // os_index of the NUMA node of all memory
  Isa isa = Isa::kAvx2;         // one that this CPU has
};

// The R-Part of one home as a micro-batch's hops see it, for measuring: pool, page tables, roster, plan, workspace and
// team are the engine's own, only the link is left out. A step is one hop for each layer, k and v appended, over
// sequences of random KV; after it they are cut back to where they were, so that every step does the same.
// Owns: all of its memory, the team's helpers. Thread: the team's leader, pinned to cores[0], calls everything.
class RPartBench {
 public:
  // Makes and fills the sequences. Sets the calling thread's denormals to be flushed, as all of a team's are.
  // Errors: InvalidArgument that names the option (as the command line says it) and its value; ResourceExhausted.
  static absl::StatusOr<std::unique_ptr<RPartBench>> Create(const RPartBenchOptions& options);
  ~RPartBench();

  RPartBench(const RPartBench&) = delete;
  RPartBench& operator=(const RPartBench&) = delete;

  // One step of all sequences. Returns ns from the first hop's arrival to the last one's end: what a home counts as its
  // work, so with preparing and planning, without a link. Errors: Internal, if the R-Part finds fault with it.
  absl::StatusOr<uint64_t> RunStep();

  // The same step in parts, of chunks: only what the team does is timed. Errors: as RunStep.
  struct ChunkTimes {
    uint64_t append_ns = 0;  // k and v to pages
    uint64_t attend_ns = 0;  // the rest
  };
  absl::StatusOr<ChunkTimes> RunChunks();

  TicketTeam& team() { return *team_; }
  const Arena& memory() const { return memory_; }
  // Stored KV bytes that a step's rows attend to, all layers, each counted once. REQUIRES: a step was run.
  uint64_t kv_bytes_per_step() const { return kv_bytes_per_step_; }
  // Bytes of k and v that a step's rows bring, and of what they become in pages.
  uint64_t appended_bytes_per_step() const;
  uint32_t sequences() const { return static_cast<uint32_t>(sequences_.size()); }
  const char* kernel_name() const { return work_.kernels.name; }
  // What its arithmetic is compared with.
  DotLoop dot_loop() const { return SelectDotLoop(options_.isa, shape_.attention(), options_.of_prompts); }
  // Of the last hop, [rows][heads][head_size]. REQUIRES: a step was run.
  std::span<const std::byte> o() const { return {work_.o, micro_batch_.roster().rows() * shape_.reply_row_bytes()}; }
  // Of the whole pool, as the last step's hops left it. REQUIRES: a step was run.
  struct PageUse {
    uint32_t total = 0;
    uint32_t used = 0;
    uint32_t held = 0;  // of the others: those that are kept behind sequences (PageRuns)
  };
  const PageUse& page_use() const { return page_use_; }
  // Bytes of one layer that lie together, on average over the sequences' page tables.
  double contiguous_bytes_mean() const;

 private:
  RPartBench(const RPartBenchOptions& options, const RPartShape& shape, Arena memory, Arena rows,
             TeamWorkspace workspace);

  void FillRows();
  absl::Status MakeSequences();
  absl::Status MakePrefix(uint32_t count);
  void LeaveHoles();
  uint32_t stored_tokens() const { return options_.context - options_.rows; }  // between two steps
  absl::Status GrowTo(KvSequence* sequence, uint32_t tokens);
  absl::Status ReplaceRoster();
  absl::Status RunHops(ChunkTimes* parts);
  void RunParts(ChunkTimes* times);
  absl::Status CutBack();

  // Constant after construction.
  const RPartBenchOptions options_;
  const RPartShape shape_;
  const Arena memory_;  // the pool's
  const Arena rows_;    // q, k, v of all rows, then o
  const TeamWorkspace workspace_;

  KvPool pool_;
  PageAccount account_;
  SequenceTable table_;
  MicroBatch micro_batch_;
  ServedPeers served_;
  std::unique_ptr<TicketTeam> team_;
  HopWork work_;
  RandomKv random_kv_;
  std::mt19937_64 random_;
  std::vector<KvSequence*> sequences_;  // the measured ones
  std::vector<std::byte> roster_;       // the message of the next step
  uint64_t step_ = 0;
  uint64_t kv_bytes_per_step_ = 0;
  PageUse page_use_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_BENCH_RPART_BENCH_H_
