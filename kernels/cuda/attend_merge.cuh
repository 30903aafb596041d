#ifndef FASTDECODE_KERNELS_CUDA_ATTEND_MERGE_CUH_
#define FASTDECODE_KERNELS_CUDA_ATTEND_MERGE_CUH_

// What becomes of a query's sums: a partial in memory, several partials in one, rows of o.

#include "kernels/cuda/attention_items.cuh"
#include "kernels/cuda/kv_codec.cuh"

namespace fastdecode::simt {

FD_DEVICE float MinusInfinity() { return FloatOfBits(0xff800000u); }

FD_DEVICE size_t PartialIndex(const AttendKvArgs& args, size_t query, unsigned cut) {
  return query * args.split.cuts_max + cut;
}
FD_DEVICE void PutPartial(const AttendKvArgs& args, size_t query, unsigned cut, int dim, DimPair acc, float maximum,
                          float sum) {
  const size_t index = PartialIndex(args, query, cut);
  StorePack(args.partials + index * args.pages.head_dim + dim, Pack<float, 2>{acc.v[0], acc.v[1]});
  if (dim != 0) return;
  args.maxima[index] = maximum;
  args.sums[index] = sum;
}

// Whether all other cuts of the item's tile have left their partials. `count`: a word that the block shares.
FD_DEVICE bool IsLastOfTile(const AttendKvArgs& args, const AttendItem& item, uint32_t* count) {
  SyncBlock();
  if (Thread() == 0) {
    // For all threads of the block, whose writes the barrier has made this one's past.
    uint32_t* const arrived = args.arrived + QueryIndex(args, item, PlaceOf(args, item, 0));
    *count = CountIn(arrived) + 1;
    if (*count == item.last_cut - item.first_cut + 1) *arrived = 0;
  }
  SyncBlock();
  return *count == item.last_cut - item.first_cut + 1;
}

inline constexpr int kMergeDims = 4;  // a thread merges so many at once

// acc / sum of all cuts in ascending order, from `dim` on. Several cuts are loaded at once, since each load takes
// longer than all that is done with it: those of a group of eight that begin at multiples of eight, whatever the tile's
// first one is, which a query that sees nothing of it may only have for its neighbour. Beyond the tile's, one of these
// for nothing.
FD_DEVICE Pack<float, kMergeDims> MergePartials(const AttendKvArgs& args, size_t query, unsigned first_cut,
                                                unsigned last_cut, int dim) {
  constexpr unsigned kAtOnce = 8;
  float most = MinusInfinity(), sum = 0;
  Pack<float, kMergeDims> acc = {};
  for (unsigned cut = first_cut / kAtOnce * kAtOnce; cut <= last_cut; cut += kAtOnce) {
    float maxima[kAtOnce], sums[kAtOnce];
    Pack<float, kMergeDims> more[kAtOnce];
    FD_UNROLL(unroll)
    for (unsigned i = 0; i < kAtOnce; ++i) {
      const unsigned at = cut + i < first_cut ? first_cut : cut + i < last_cut ? cut + i : last_cut;
      const size_t index = PartialIndex(args, query, at);
      maxima[i] = args.maxima[index];
      sums[i] = args.sums[index];
      more[i] = LoadPack<kMergeDims>(args.partials + index * args.pages.head_dim + dim);
    }
    const float before = most;
    FD_UNROLL(unroll)
    for (const float maximum : maxima) most = maximum > most ? maximum : most;
    const float base = most == MinusInfinity() ? 0 : most, shrinks = Exp2(before - base);
    sum *= shrinks;
    for (float& value : acc.v) value *= shrinks;
    FD_UNROLL(unroll)
    for (unsigned i = 0; i < kAtOnce; ++i) {
      if (cut + i < first_cut || cut + i > last_cut) continue;
      const float weight = Exp2(maxima[i] - base);
      sum = Fma(sums[i], weight, sum);
      for (int d = 0; d < kMergeDims; ++d) acc.v[d] = Fma(more[i].v[d], weight, acc.v[d]);
    }
  }
  for (float& value : acc.v) value /= sum;
  return acc;
}

template <class T>
FD_DEVICE void StoreOutput(T* to, DimPair values) {
  StorePack(to, Pack<T, 2>{FromFloat<T>(values.v[0]), FromFloat<T>(values.v[1])});
}
// o of one of the item's queries, two dims from `dim` on; padding is left out.
FD_DEVICE void PutOutput(const AttendKvArgs& args, const AttendItem& item, const QueryPlace& place, int dim,
                         DimPair values) {
  if (dim >= args.wire.head_dim) return;
  const size_t row = item.entry.row + place.row, at = (row * args.wire.heads + place.head) * args.wire.head_dim + dim;
  switch (args.type) {
    case ElementType::kF32:
      return StoreOutput(static_cast<float*>(args.out) + at, values);
    case ElementType::kBf16:
      return StoreOutput(static_cast<Bf16*>(args.out) + at, values);
    case ElementType::kFp16:
      return StoreOutput(static_cast<Fp16*>(args.out) + at, values);
  }
}

// o of all of a tile's queries, by the whole block.
FD_DEVICE void MergeTile(const AttendKvArgs& args, const AttendItem& item) {
  const unsigned quads = static_cast<unsigned>(args.pages.head_dim) / kMergeDims;
  FD_UNROLL(unroll 2)
  for (unsigned i = Thread(); i < item.queries * quads; i += kAttendThreads) {
    const int dim = static_cast<int>(i % quads) * kMergeDims;
    const QueryPlace place = PlaceOf(args, item, i / quads);
    const size_t index = QueryIndex(args, item, place);
    const Pack<float, kMergeDims> o = MergePartials(args, index, item.first_cut, item.last_cut, dim);
    PutOutput(args, item, place, dim, {o.v[0], o.v[1]});
    PutOutput(args, item, place, dim + 2, {o.v[2], o.v[3]});
  }
}

}  // namespace fastdecode::simt

#endif  // FASTDECODE_KERNELS_CUDA_ATTEND_MERGE_CUH_
