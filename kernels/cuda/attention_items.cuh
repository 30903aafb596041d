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

struct AttendItem {
  KvEntry entry;
  unsigned kv_head = 0;
  unsigned first_query = 0, queries = 0;  // of the entry and KV head
  unsigned cut = 0;
  unsigned first_cut = 0, last_cut = 0;  // that the tile sees
  unsigned begin = 0, end = 0;           // positions of the cut that the tile sees
};

// The entry that item `number` belongs to: the last one that begins at it or before.
FD_DEVICE uint32_t EntryOf(const KvRoster& roster, uint32_t number) {
  uint32_t low = 0, high = *roster.entries;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    (roster.first_items[middle] <= number ? low : high) = middle;
  }
  return low;
}

// An entry's items go from its last cut, which may be short, to its first: long ones before short ones. False: the tile
// sees nothing of the cut.
FD_DEVICE bool FindItem(const KvRoster& roster, const KvSplit& split, uint32_t number, AttendItem* item) {
  const uint32_t index = EntryOf(roster, number);
  const KvEntry entry = roster.entry[index];
  const unsigned tiles = TilesOf(split, entry), of_entry = number - roster.first_items[index];
  item->entry = entry;
  item->first_query = of_entry % tiles * split.tile_queries;
  item->kv_head = of_entry / tiles % split.kv_heads;
  item->cut = LastCutOf(entry) - of_entry / tiles / split.kv_heads;
  const unsigned left = entry.rows * split.group - item->first_query;
  item->queries = left < split.tile_queries ? left : split.tile_queries;
  const unsigned first = FirstSeen(split, entry.position + item->first_query / split.group);
  const unsigned last = entry.position + (item->first_query + item->queries - 1) / split.group;
  item->first_cut = CutOf(first);
  item->last_cut = CutOf(last);
  const unsigned cut_begin = CutBegin(item->cut), cut_end = CutBegin(item->cut + 1);
  item->begin = first > cut_begin ? first : cut_begin;
  item->end = last + 1 < cut_end ? last + 1 : cut_end;
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
  return {number / group, item.kv_head * group + number % group};
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

// The item that the block does next, for thread 0: there is none if it is not less than `items`. Each block asks until
// there is none, once too often, and who asks last of all leaves zero.
FD_DEVICE uint32_t DrawItem(const AttendKvArgs& args, uint32_t items) {
  const uint32_t number = AtomicAdd(args.drawn, 1u);
  if (number == items + BlocksX() - 1) *args.drawn = 0;
  return number;
}

// The block's items, one after another, by an Attends(args).Do(item). `shared`: a word that Do leaves alone.
template <class Attends>
FD_DEVICE void AttendToItems(const AttendKvArgs& args, uint32_t* shared) {
  if (args.state->gave_up != 0) return;
  const uint32_t items = args.roster.first_items[*args.roster.entries];
  uint32_t next = 0;
  if (Thread() == 0) next = DrawItem(args, items);
  Attends attends(args);
  while (true) {
    if (Thread() == 0) *shared = next;
    SyncBlock();
    const uint32_t number = *shared;
    SyncBlock();
    if (number >= items) return;
    if (Thread() == 0) next = DrawItem(args, items);  // comes while the block works
    AttendItem item;
    if (FindItem(args.roster, args.split, number, &item)) attends.Do(item);
  }
}

}  // namespace fastdecode::simt

#endif  // FASTDECODE_KERNELS_CUDA_ATTENTION_ITEMS_CUH_
