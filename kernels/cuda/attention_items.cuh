#ifndef FASTDECODE_KERNELS_CUDA_ATTENTION_ITEMS_CUH_
#define FASTDECODE_KERNELS_CUDA_ATTENTION_ITEMS_CUH_

// How attention is cut into items of work (KvSplit), how a block finds its own, and where its queries lie.

#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/simt.h"

namespace fastdecode::simt {

// The first position that a query sees.
FD_DEVICE unsigned FirstSeen(const KvSplit& split, unsigned position) {
  return split.window == 0 || position < split.window ? 0 : position - split.window + 1;
}
FD_DEVICE unsigned TilesOf(const KvSplit& split, const KvEntry& entry) {
  return (entry.rows * split.group + split.tile_queries - 1) / split.tile_queries;
}
FD_DEVICE unsigned FirstCutOf(const KvSplit& split, const KvEntry& entry) {
  return CutOf(FirstSeen(split, entry.position));
}
FD_DEVICE unsigned LastCutOf(const KvEntry& entry) { return CutOf(entry.position + entry.rows - 1); }
// As if all tiles saw the same cuts: those that do not are passed over.
FD_DEVICE unsigned ItemsOf(const KvSplit& split, const KvEntry& entry) {
  return split.kv_heads * TilesOf(split, entry) * (LastCutOf(entry) - FirstCutOf(split, entry) + 1);
}

// The K and V of one head that an item reads.
struct KvSpan {
  uint32_t slot = 0;
  unsigned kv_head = 0;
  unsigned begin = 0, end = 0;  // positions; an end of 0: none
};

struct AttendItem {
  KvEntry entry;
  KvSpan kv;                              // of the cut, as far as the tile sees it
  unsigned first_query = 0, queries = 0;  // of the entry and KV head
  unsigned cut = 0;
  unsigned first_cut = 0, last_cut = 0;  // that the tile sees
};

// The entry that item `number` belongs to: the last one that begins at it or before. Where all entries have as many
// items, the first look finds it: one after another each would take as long as the copies that wait for it.
FD_DEVICE uint32_t EntryOf(const KvRoster& roster, const KvCounts& counts, uint32_t number) {
  const auto guess = static_cast<uint32_t>(uint64_t{number} * counts.entries / counts.items);
  const uint32_t begin = roster.first_items[guess], end = roster.first_items[guess + 1];
  if (begin <= number && number < end) return guess;
  uint32_t low = begin <= number ? guess : 0, high = begin <= number ? counts.entries : guess;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    (roster.first_items[middle] <= number ? low : high) = middle;
  }
  return low;
}

// An entry's items go from its last cut, which may be short, to its first: long ones before short ones. False: the tile
// sees nothing of the cut.
FD_DEVICE bool FindItem(const KvRoster& roster, const KvCounts& counts, const KvSplit& split, uint32_t number,
                        AttendItem* item) {
  const uint32_t index = EntryOf(roster, counts, number);
  const KvEntry entry = roster.entry[index];
  const unsigned tiles = TilesOf(split, entry), of_entry = number - roster.first_items[index];
  item->entry = entry;
  item->first_query = of_entry % tiles * split.tile_queries;
  item->kv.slot = entry.slot;
  item->kv.kv_head = of_entry / tiles % split.kv_heads;
  item->cut = LastCutOf(entry) - of_entry / tiles / split.kv_heads;
  const unsigned left = entry.rows * split.group - item->first_query;
  item->queries = left < split.tile_queries ? left : split.tile_queries;
  const unsigned first = FirstSeen(split, entry.position + item->first_query / split.group);
  const unsigned last = entry.position + (item->first_query + item->queries - 1) / split.group;
  item->first_cut = CutOf(first);
  item->last_cut = CutOf(last);
  const unsigned cut_begin = CutBegin(item->cut), cut_end = CutBegin(item->cut + 1);
  item->kv.begin = first > cut_begin ? first : cut_begin;
  item->kv.end = last + 1 < cut_end ? last + 1 : cut_end;
  return item->cut >= item->first_cut && item->cut <= item->last_cut;
}

// One of an item's queries: its row, counted from the entry's first, and its head. Two divisions: who needs it more
// than once keeps it.
struct QueryPlace {
  unsigned row, head;
};
FD_DEVICE QueryPlace PlaceOf(const AttendKvArgs& args, const AttendItem& item, unsigned query) {
  const auto group = static_cast<unsigned>(args.split.group);
  const unsigned number = item.first_query + query;
  return {number / group, item.kv.kv_head * group + number % group};
}
// Its number among all queries of the step that have their home here.
FD_DEVICE size_t QueryIndex(const AttendKvArgs& args, const AttendItem& item, const QueryPlace& place) {
  return size_t{item.entry.home_row + place.row} * args.wire.heads + place.head;
}
// Its q, [head_dim].
template <class W>
FD_DEVICE const W* QueryAt(const AttendKvArgs& args, const AttendItem& item, const QueryPlace& place) {
  const auto row_heads = static_cast<size_t>(args.wire.heads + 2 * args.wire.kv_heads);
  const size_t head = (item.entry.home_row + place.row) * row_heads + place.head;
  return reinterpret_cast<const W*>(args.area) + head * args.pages.head_dim;
}
FD_DEVICE unsigned PositionOf(const AttendKvArgs& args, const AttendItem& item, unsigned query) {
  return item.entry.position + (item.first_query + query) / args.split.group;
}

// What the threads of a block know of the item after the one that they work on. In shared memory. Who reads `kv` reads
// 16 bytes at once, which `number`, that changes earlier, must not be among.
struct NextItem {
  alignas(16) KvSpan kv;
  uint32_t number = 0;
};

// The numbers of the block's items, and one that is not less than `items` at the end. What is next is known while the
// block works, and what it reads is in `next` before that ends: for who begins to copy it.
//
// A block's first item has the block's own number. Who has one asks for another until there is none, so that as many
// ask as there are items, and who is told so last of all leaves zero.
class ItemNumbers {
 public:
  FD_DEVICE ItemNumbers(const AttendKvArgs& args, NextItem* next)
      : args_(args), next_(next), counts_(*args.roster.counts) {}

  FD_DEVICE uint32_t Next() {
    while (true) {
      if (Thread() == 0) next_->number = Drawn();
      SyncBlock();
      const uint32_t number = next_->number;
      AttendItem item;
      const bool is_one = IsOne(number), sees = is_one && Find(number, &item);
      if (Thread() == 0) next_->kv = is_one ? item.kv : KvSpan{};
      SyncBlock();
      if (Thread() == 0 && is_one) Draw();
      if (sees || !is_one) return number;
    }
  }
  FD_DEVICE bool IsOne(uint32_t number) const { return number < counts_.items; }
  FD_DEVICE bool Find(uint32_t number, AttendItem* item) const {
    return FindItem(args_.roster, counts_, args_.split, number, item);
  }

 private:
  // The answer comes while the block works: nothing looks at it before it is needed.
  FD_DEVICE void Draw() {
    before_ = AtomicAdd(args_.drawn, 1u);
    asked_ = true;
  }
  FD_DEVICE uint32_t Drawn() const {
    if (!asked_) return BlockX();
    if (before_ == counts_.items - 1) *args_.drawn = 0;
    return BlocksX() + before_;
  }

  const AttendKvArgs& args_;
  NextItem* const next_;
  const KvCounts counts_;
  // Thread 0's: how often was asked before it did the last time.
  uint32_t before_ = 0;
  bool asked_ = false;
};

// The block's items, one after another: Attends(args).Begin(what the first one reads), and Do(item) of each, which
// begins what is in `next` when it has come so far.
template <class Attends>
FD_DEVICE void AttendToItems(const AttendKvArgs& args, NextItem* next) {
  if (args.state->gave_up != 0) return AwaitKernelBefore();
  ItemNumbers numbers(args, next);
  Attends attends(args);
  uint32_t number = numbers.Next();
  AwaitKernelBefore();
  LetKernelBehindBegin();
  attends.Begin(next->kv);
  while (numbers.IsOne(number)) {
    const uint32_t after = numbers.Next();
    AttendItem item;
    numbers.Find(number, &item);
    attends.Do(item);
    number = after;
  }
}

}  // namespace fastdecode::simt

#endif  // FASTDECODE_KERNELS_CUDA_ATTENTION_ITEMS_CUH_
