// FAST PATH (docs/FAST_PATH.md)
#ifndef FASTDECODE_ENGINE_RPART_SEQUENCE_TABLE_H_
#define FASTDECODE_ENGINE_RPART_SEQUENCE_TABLE_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "engine/rpart/page_account.h"
#include "engine/rpart/page_counts.h"

namespace fastdecode {

// What an append does, by the rule that makes replays harmless.
enum class AppendRule : uint8_t {
  kWrite,          // the position is the stored length
  kSkip,           // stored already; the page is left as it is
  kProtocolError,  // above the stored length: tokens in between are missing
};

// One sequence's KV at this home.
struct KvSequence {
  uint64_t id = 0;
  std::vector<PageId> pages;            // [position / 32]; shared ones have several references. No open one
  std::vector<uint32_t> stored_tokens;  // [layer]
  uint64_t reservation = 0;             // that its segments name; 0: none
  // With int4: hold the open page of the last stored token, layer by layer, even if it is full, until a cut or a fork
  // ends there.
  PageId open_pieces[kOpenPieces] = {kNoPage, kNoPage, kNoPage, kNoPage};
  uint32_t pieces = 0;  // of these, the others are kNoPage

  // Whether the open page has this page's tokens of the layer. One that is full is closed, too, and lost to layers that
  // are still to come once others have begun the next page.
  bool IsOpen(int layer, uint32_t page) const {
    const uint32_t stored = stored_tokens[static_cast<size_t>(layer)];
    if (stored == 0 || (stored - 1) / kPageTokens != page) return false;
    const bool is_full = stored % kPageTokens == 0;
    return !is_full || (pieces == kOpenPieces && StoredTokensMax() == stored);
  }
  // The same for all layers between two steps.
  uint32_t StoredTokensMin() const;
  uint32_t StoredTokensMax() const;
  AppendRule Append(int layer, uint32_t position) const {
    const uint32_t stored = stored_tokens[static_cast<size_t>(layer)];
    return position < stored ? AppendRule::kSkip : position == stored ? AppendRule::kWrite : AppendRule::kProtocolError;
  }
};

// How taking pages for a sequence ended.
enum class GrowOutcome : uint8_t { kOk, kNoPage };

// The sequences of one peer at one home, and the only user of the peer's page account.
// Owns: the sequences; their pages are returned to the account on release.
// Thread: the team's leader; the team reads sequences while the leader waits for it.
// Bounded: by sequences_max and by the account. Grow, Find and the KvSequence's own functions never allocate.
class SequenceTable {
 public:
  SequenceTable(PageAccount* account, int layers, uint32_t max_context, uint32_t sequences_max);
  ~SequenceTable();

  SequenceTable(const SequenceTable&) = delete;
  SequenceTable& operator=(const SequenceTable&) = delete;

  // Null if unknown. The pointer is good until the sequence is released.
  KvSequence* Find(uint64_t id) const;
  // The sequence, made empty and without pages if it is new. Null: sequences_max are there already.
  KvSequence* FindOrCreate(uint64_t id);

  // Makes all sequences that there may be once, so that later ones need no memory. REQUIRES: there are none.
  void MakeSpares();

  // Makes positions [first, first + tokens) writable: takes the pages that are missing, contiguous ones as far as they
  // are found, and copies of those that are shared (only a fork's last, partial page can be), and between two steps
  // returns pieces of an open page that is closed: PageCounts::OfStep. Without room nothing changes. REQUIRES: first <=
  // stored tokens of some layer, first + tokens <= max_context, tokens > 0.
  GrowOutcome Grow(KvSequence* sequence, uint32_t first, uint32_t tokens);

  // Keeps the first `tokens` tokens and returns the pages behind. With int4 a closed page that becomes the last is
  // opened again, as it was rounded. Errors, after which nothing has changed: NotFound; InvalidArgument above the
  // stored length; ResourceExhausted if more pages are opened than returned, and there are none.
  absl::Status Truncate(uint64_t id, uint32_t tokens);
  // A new sequence that shares the first `tokens` tokens of another; whoever writes to the last, partial page first
  // gets its own copy of it. With int4 it has one at once, as its open page, unless the page is full. Errors: NotFound;
  // AlreadyExists; InvalidArgument above the stored length; ResourceExhausted.
  absl::Status Fork(uint64_t id, uint32_t tokens, uint64_t new_id);
  // The sequence becomes number `new_id` of another peer's table at this home, with its pages. REQUIRES: `to` is
  // another table of the same pool and layers, has room for a sequence of this length, knows no `new_id`, and its
  // account is free to take those of the pages that it has not.
  void MoveTo(SequenceTable* to, uint64_t id, uint64_t new_id);
  // Returns all its pages. Unknown ids are fine: a release is repeated after a failure.
  void Release(uint64_t id);
  void ReleaseAll();

  // Grows by one whenever a sequence was released, truncated, forked or moved away: pointers and pages noted before may
  // be stale.
  uint64_t changes() const { return changes_; }
  uint32_t sequences_max() const { return sequences_max_; }
  uint32_t max_context() const { return max_context_; }
  uint32_t size() const { return static_cast<uint32_t>(by_id_.size()); }

 private:
  void ReturnPagesFrom(KvSequence* sequence, size_t first_page);
  uint32_t PagesAlone(const KvSequence& sequence, size_t first_page) const;
  void TakePieces(KvSequence* sequence, uint32_t count);    // until it has so many
  void ReturnPieces(KvSequence* sequence, uint32_t count);  // the same
  void ReopenFrom(const KvSequence& from, uint32_t tokens, KvSequence* to) const;

  // Constant after construction.
  PageAccount* const account_;
  const PageCounts counts_;
  const int layers_;
  const uint32_t max_context_;
  const uint32_t sequences_max_;

  absl::flat_hash_map<uint64_t, std::unique_ptr<KvSequence>> by_id_;
  std::vector<std::unique_ptr<KvSequence>> spare_;  // released ones, whose vectors are used again
  uint64_t changes_ = 0;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_RPART_SEQUENCE_TABLE_H_
