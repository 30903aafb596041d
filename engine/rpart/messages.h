#ifndef FASTDECODE_ENGINE_RPART_MESSAGES_H_
#define FASTDECODE_ENGINE_RPART_MESSAGES_H_

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/attention.h"

namespace fastdecode {

// What engine and home agree on and say to each other over a link. All plain little-endian structs.

inline constexpr uint32_t kRPartLayersMax = 1024;

// The R-Part's view of a model: agreed at connect, equal at both ends or the link is refused.
struct RPartShape {
  uint32_t layers = 0;
  uint32_t kv_heads = 0;
  uint32_t group = 0;
  uint32_t head_dim = 0;      // padded to a multiple of 16
  uint32_t element_type = 0;  // ElementType of rows
  uint32_t kv_type = 0;       // KvType of pages
  float scale = 0;
  float soft_cap = 0;
  uint32_t sliding_window = 0;  // tokens that a query sees in windowed layers, its own included; 0: there are none
  uint32_t micro_batches = 0;   // K
  uint32_t max_rows = 0;        // rows of one hop
  uint32_t max_context = 0;     // tokens of one sequence
  uint32_t window_bits[kRPartLayersMax / 32] = {};  // layer l is windowed: bit l % 32 of word l / 32

  // REQUIRES: layer < kRPartLayersMax.
  bool windowed(uint32_t layer) const { return (window_bits[layer / 32] >> layer % 32 & 1) != 0; }
  void SetWindowed(uint32_t layer) { window_bits[layer / 32] |= 1u << layer % 32; }
  // Whether there are layers that are windowed, or that are not.
  bool has_layers(bool with_window) const {
    for (uint32_t layer = 0; layer < layers; ++layer) {
      if (windowed(layer) == with_window) return true;
    }
    return false;
  }
  // This is the attention of layers without a window. Sizes that follow from it hold for windowed layers, too.
  AttentionShape attention() const {
    return {static_cast<ElementType>(element_type),
            static_cast<KvType>(kv_type),
            static_cast<int>(kv_heads),
            static_cast<int>(group),
            static_cast<int>(head_dim),
            scale,
            soft_cap,
            /*sliding_window=*/0};
  }
  AttentionShape attention(uint32_t layer) const {
    AttentionShape of_layer = attention();
    if (windowed(layer)) of_layer.sliding_window = static_cast<int>(sliding_window);
    return of_layer;
  }
  size_t element_bytes() const { return ElementBytes(static_cast<ElementType>(element_type)); }
  uint32_t heads() const { return kv_heads * group; }
  // A hop row: q [heads][head_dim], k [kv_heads][head_dim], v [kv_heads][head_dim], contiguous.
  size_t hop_row_bytes() const { return (heads() + 2 * size_t{kv_heads}) * head_dim * element_bytes(); }
  size_t k_offset_bytes() const { return heads() * size_t{head_dim} * element_bytes(); }
  size_t v_offset_bytes() const { return k_offset_bytes() + kv_heads * size_t{head_dim} * element_bytes(); }
  // Of these k and v, which follow each other.
  size_t kv_row_bytes() const { return 2 * kv_heads * size_t{head_dim} * element_bytes(); }
  // A reply row: o [heads][head_dim].
  size_t reply_row_bytes() const { return heads() * size_t{head_dim} * element_bytes(); }
  friend bool operator==(const RPartShape&, const RPartShape&) = default;
};
static_assert(sizeof(RPartShape) == 176 && std::is_trivially_copyable_v<RPartShape>);

// What a peer wants of a home besides; follows the shape in a proposal.
struct PeerDemand {
  uint32_t version = 1;
  uint32_t reserved = 0;
  uint64_t pages_wanted = 0;  // reserved for this peer alone, as far as they are free; 0: an equal share
};
static_assert(sizeof(PeerDemand) == 16 && std::is_trivially_copyable_v<PeerDemand>);

// Control messages. Each starts with this word; sizes are exact. One that makes no sense (unknown kind, wrong size,
// roster out of order, truncating or forking what is not stored, filling without room) ends the link, with the reason
// as cause. Sequence numbers are the peer's own: another peer's are out of its reach, but for a hand-over.
enum class ControlKind : uint32_t {
  kRoster = 1,    // engine -> home: RosterMessage + entries
  kRelease = 2,   // engine -> home: SequenceMessage; the sequence's pages are freed. Unknown ones are fine
  kTruncate = 3,  // engine -> home: SequenceMessage; keeps the first `tokens` tokens. With int4 there must be
                  // room for the pieces of a closed page that is opened again: of one that is kept whole there are
                  // none, and its rows are not computed again
  kFork = 4,      // engine -> home: ForkMessage; a new sequence shares the first `tokens` tokens. With int4
                  // it takes its open page's pieces at once, under the same rule: as for a fill, there must be room
  kFill = 5,      // engine -> home: SequenceMessage; `tokens` tokens of random KV in an empty one (for measuring)
  kIdle = 6,      // engine -> home: IdleMessage; nothing in flight until RingHome, the home may park. Any
                  // other message ends that, and after it idle must be said again
  kStats = 8,     // home -> engine: StatsMessage, unasked: behind each kIdle, and at most every
                  // kStatsPeriodNs while something changes. Dropped if there is no room
  kHandOver = 9,  // engine -> home: HandOverMessage; the sequence and its pages become another peer's
  kHandOverAnswer = 10,  // home -> engine: HandOverAnswer, one for each kHandOver, in order
  kHandedOver = 11,      // home -> engine: HandedOverMessage, to the peer that has it now
  kReserve = 12,  // engine -> home: SequenceMessage; the first `tokens` tokens of an empty sequence will come as bulk
                  // segments. Their pages are taken at once: as for a fill, there must be room
  kDraining = 7,  // home -> engine, once: DrainingMessage; the home ends soon: no more sequences are to come
  kLeft = 13,     // engine -> home: LeftMessage, the answer to kDraining once nothing of the engine's is at the home
                  // any more, and nothing will come. The home ends the link
};

// One sequence in a micro-batch: rows [first_row, first_row + query_tokens), in roster order. A sequence that the home
// does not know begins empty.
struct RosterEntry {
  uint64_t sequence = 0;
  uint64_t step_from = 0;       // the step that this entry holds from
  uint32_t first_position = 0;  // of its first row at step_from
  uint32_t query_tokens = 0;    // rows; > 1 holds for step_from alone
  uint32_t prompt_tokens = 0;   // rows before this position are a prompt's: all of the entry's rows, or none
  uint32_t reserved = 0;
};
static_assert(sizeof(RosterEntry) == 32);
// A one-row entry's position in a later step s is first_position + (s - step_from).

struct RosterMessage {
  uint32_t kind = static_cast<uint32_t>(ControlKind::kRoster);
  uint32_t micro_batch = 0;
  uint32_t version = 0;  // grows by one with each roster of this micro-batch, from 1
  uint32_t entries = 0;  // RosterEntry[entries] follow; 0: no rows here
};
static_assert(sizeof(RosterMessage) == 16);

struct SequenceMessage {
  uint32_t kind = 0;  // kRelease, kTruncate, kFill, kReserve
  uint32_t tokens = 0;
  uint64_t sequence = 0;
};
static_assert(sizeof(SequenceMessage) == 16);

struct ForkMessage {
  uint32_t kind = static_cast<uint32_t>(ControlKind::kFork);
  uint32_t tokens = 0;
  uint64_t sequence = 0;  // the existing one
  uint64_t new_sequence = 0;
};
static_assert(sizeof(ForkMessage) == 24);

// Hand-over of a sequence from one peer of a home to another, which pays for the pages from now on. Refusals change
// nothing.
//
// Order: as a release, it is sent after the last reply whose roster held the sequence, and before a roster without it.
// The receiver may name the sequence from kHandedOver on. A repeated one finds no sequence any more (kNoSequence), so
// repeating is harmless. The answer is never dropped: a sender that does not read its answers loses its link.
//
// If a peer dies: the home does all of a hand-over between two polls. Until then the sequence is the sender's and goes
// with the sender, which includes a kHandOver that was sent but not read before the loss; from then on it is the
// receiver's and goes with the receiver, whatever becomes of the sender. A receiver that dies before is no peer
// (kNoPeer), and the sender keeps the sequence. A receiver that does not expect a sequence releases it.
struct HandOverMessage {
  uint32_t kind = static_cast<uint32_t>(ControlKind::kHandOver);
  uint32_t role = 0;  // the receiver's (PeerId)
  uint64_t engine_id = 0;
  uint64_t sequence = 0;      // the sender's number
  uint64_t new_sequence = 0;  // the receiver's
};
static_assert(sizeof(HandOverMessage) == 32);

enum class HandOverOutcome : uint32_t {
  kDone = 0,
  kNoSequence = 1,  // the sender has none of that number
  kMidStep = 2,     // a step of it is not over
  kNoPeer = 3,      // the home does not serve the receiver, or the receiver is the sender
  kTooLong = 4,     // for the receiver's max_context
  kIdTaken = 5,     // the receiver has a new_sequence
  kNoPages = 6,     // the receiver's reservation has no room
  kBusy = 7,        // the receiver has sequences_max, or does not read its messages
};

struct HandOverAnswer {
  uint32_t kind = static_cast<uint32_t>(ControlKind::kHandOverAnswer);
  HandOverOutcome outcome = HandOverOutcome::kDone;
  uint64_t sequence = 0;  // as in the HandOverMessage
};
static_assert(sizeof(HandOverAnswer) == 16);

struct HandedOverMessage {
  uint32_t kind = static_cast<uint32_t>(ControlKind::kHandedOver);
  uint32_t tokens = 0;    // stored
  uint64_t sequence = 0;  // the receiver's number
};
static_assert(sizeof(HandedOverMessage) == 16);

// Bulk, engine -> home: K and V in one layer of tokens that were attended to elsewhere, such as a prompt's on a GPU. A
// segment is this, and from kPushRowsOffset on [tokens] rows of k [kv_heads][head_dim], v [kv_heads][head_dim]. One
// that makes no sense ends the link, with the reason as cause.
//
// Order: there is none between the channels. A segment belongs to a reservation, the how manieth kReserve of the link,
// and waits at the home until that has been read. It is dropped if its sequence was released meanwhile, so that a
// release waits for no segment. Of tokens that are stored already it changes nothing; tokens in between must not be
// missing. A home frees a segment when it is stored: once it has freed all that it was sent of a sequence
// (EngineLink::BulkFreed), hops may go on from there.
struct PushHeader {
  uint64_t sequence = 0;
  uint64_t reservation = 0;  // from 1
  uint32_t layer = 0;
  uint32_t first_position = 0;
  uint32_t tokens = 0;  // > 0
  uint32_t reserved = 0;
};
static_assert(sizeof(PushHeader) == 32 && std::is_trivially_copyable_v<PushHeader>);
inline constexpr size_t kPushRowsOffset = 64;

struct DrainingMessage {
  uint32_t kind = static_cast<uint32_t>(ControlKind::kDraining);
  uint32_t reserved = 0;
};
static_assert(sizeof(DrainingMessage) == 8);

struct LeftMessage {
  uint32_t kind = static_cast<uint32_t>(ControlKind::kLeft);
  uint32_t reserved = 0;
};
static_assert(sizeof(LeftMessage) == 8);

struct IdleMessage {
  uint32_t kind = static_cast<uint32_t>(ControlKind::kIdle);
  uint32_t reserved = 0;
};

inline constexpr uint64_t kStatsPeriodNs = 100'000'000;

struct StatsMessage {
  uint32_t kind = static_cast<uint32_t>(ControlKind::kStats);
  uint32_t idle = 0;  // 1: said behind kIdle, when all messages before it had been applied; else 0
  uint32_t sequences = 0;
  uint32_t reserved = 0;
  uint64_t pages_total = 0;  // reserved for this peer
  uint64_t pages_free = 0;   // of these
  uint64_t pages_held = 0;   // of the whole home: free ones that are kept behind sequences of any peer (PageRuns)
  uint64_t hops = 0;
  uint64_t busy_ns = 0;        // in hops, from seen to last thread finished
  uint64_t kv_bytes_read = 0;  // stored KV bytes attended to
};
static_assert(sizeof(StatsMessage) == 64);

// What a home tells the engine when a link is made.
struct HomeDescription {
  uint32_t version = 1;
  int32_t node = -1;  // NUMA node (os index)
  uint32_t threads = 0;
  uint32_t read_mb_per_s = 0;  // what its KV memory was read with when it was made, in 10^6 bytes; 0: not known
  uint64_t pages = 0;          // reserved for this peer
  uint64_t page_bytes = 0;     // of one page, all layers
  uint64_t id = 0;             // random, the same by whatever name an engine finds the home; 0: it has one name only
  char isa[16] = {};           // "avx512bf16"
  char memory[80] = {};        // "3.0 GiB on node 0 (verified), 2 MiB pages (transparent, 100 %)"
};
static_assert(sizeof(HomeDescription) == 136);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_RPART_MESSAGES_H_
