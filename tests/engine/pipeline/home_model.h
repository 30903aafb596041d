#ifndef FASTDECODE_TESTS_ENGINE_PIPELINE_HOME_MODEL_H_
#define FASTDECODE_TESTS_ENGINE_PIPELINE_HOME_MODEL_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "engine/rpart/messages.h"
#include "rdma/wire.h"

namespace fastdecode {

// What a home must do, as plainly as can be: sequences, rosters, the append rule, the position of a row in a step, and
// a number of pages. Says what an engine did wrong; a correct pipeline never does. Thread: one at a time.
class HomeModel {
 public:
  HomeModel(const RPartShape& shape, uint32_t pages);

  // Empty, or the rule that the message breaks.
  std::string Apply(std::span<const std::byte> message);
  // The roster that the hop names has not come yet.
  bool Awaits(const HopHeader& hop) const;
  // Of the step whose first row here is at this position: what its hops would say. REQUIRES: the roster has an entry.
  HopHeader HopOf(uint32_t micro_batch, uint32_t layer, uint32_t first_position) const;
  // Computes o [rows] and fills in *reply. Empty, or the rule that the hop breaks. REQUIRES: !Awaits(hop).
  std::string RunHop(const HopHeader& hop, const std::byte* rows, std::byte* o, ReplyHeader* reply);

  // The next hop of this sequence at this layer or above fails as kBadRow does.
  void SpoilRow(uint64_t sequence) { spoiled_ = sequence; }
  bool spoiled() const { return spoiled_ == 0; }

  // So many rows that come are of a step that its S-Part has given up, and mean nothing.
  void ExpectDeadRows(int rows) { dead_rows_ = rows; }

  // The engine has a prefix cache: what it has is truncated, and there are sequences while it is idle.
  void ExpectKept() { expects_kept_ = true; }

  // What its replies say that it worked.
  void SetWork(uint32_t ns) { work_ns_ = ns; }

  bool idle() const { return idle_; }
  // The engine has said that it will say nothing more.
  bool left() const { return left_; }
  uint32_t pages_total() const { return pages_total_; }
  uint32_t pages_used() const { return pages_used_; }
  size_t sequences() const { return sequences_.size(); }
  std::vector<uint64_t> SequencesOf(uint32_t micro_batch) const;
  uint32_t PromptTokensOf(uint64_t sequence) const;  // as rosters said; 0: none did

 private:
  struct KvSequence {
    std::vector<uint32_t> pages;  // numbers, of those that others may share
    uint32_t pieces = 0;          // pages of its own besides: with int4, those of its last tokens
    uint32_t prompt_tokens = 0;
    std::vector<std::vector<uint64_t>> history;  // [layer][position]: all KV up to it
  };
  struct MicroBatch {
    uint32_t version = 0;
    uint64_t step = 0;
    uint32_t next_layer = 0;
    uint32_t rows = 0;
    std::vector<RosterEntry> entries;
    std::vector<bool> bad;  // [entry], until the step ends
  };

  std::string ApplyRoster(std::span<const std::byte> message);
  std::string Fill(const SequenceMessage& message);
  std::string Fork(const ForkMessage& message);
  std::string Truncate(const SequenceMessage& message);
  uint32_t PiecesOfCut(uint32_t tokens) const;
  uint32_t TakePage();
  void ReturnPages(KvSequence* sequence);
  KvSequence* FindOrCreate(uint64_t id);
  bool TakePages(KvSequence* sequence, uint32_t first, uint32_t end);
  std::string CheckHop(const MicroBatch& batch, const HopHeader& hop) const;
  std::string RunRow(KvSequence& sequence, uint32_t position, uint32_t layer, const std::byte* row, std::byte* o);

  const RPartShape shape_;
  const uint32_t pages_total_;
  uint32_t pages_used_ = 0;
  std::vector<uint32_t> users_;  // [page]
  std::map<uint64_t, std::unique_ptr<KvSequence>> sequences_;
  std::vector<std::unique_ptr<KvSequence>> spare_;  // keeps its memory, for the test that counts allocations
  std::vector<MicroBatch> batches_;
  uint64_t spoiled_ = 0;
  bool idle_ = false;
  bool left_ = false;
  bool expects_kept_ = false;
  int dead_rows_ = 0;
  uint32_t work_ns_ = 1;
};

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_ENGINE_PIPELINE_HOME_MODEL_H_
