#ifndef FASTDECODE_KERNELS_CUDA_ATTENTION_KERNELS_CUH_
#define FASTDECODE_KERNELS_CUDA_ATTENTION_KERNELS_CUH_

// The kernels of attention_kernels.h but for attention itself, which is in attend_kernel.cuh.

#include "kernels/cuda/attention_items.cuh"
#include "kernels/cuda/kv_codec.cuh"

namespace fastdecode::simt {

// The sum of `value` over the threads up to this one, and that of all. `shared`: a word a warp.
struct PrefixSum {
  uint32_t up_to_here, all;
};
FD_DEVICE PrefixSum SumUpToHere(uint32_t value, uint32_t* shared) {
  const unsigned lane = Thread() % kWarp, warp = Thread() / kWarp;
  for (unsigned distance = 1; distance < kWarp; distance *= 2) {
    const uint32_t before = ShuffleFrom(value, lane >= distance ? lane - distance : lane);
    if (lane >= distance) value += before;
  }
  if (lane == kWarp - 1) shared[warp] = value;
  SyncBlock();
  PrefixSum sum = {value, 0};
  for (unsigned w = 0; w < Threads() / kWarp; ++w) {
    if (w < warp) sum.up_to_here += shared[w];
    sum.all += shared[w];
  }
  SyncBlock();
  return sum;
}

FD_KERNEL void TakeKvStep(TakeKvStepArgs args) {
  AwaitKernelBefore();
  const uint32_t entries = args.board->entries, changes = args.board->changes;
  for (uint32_t i = Thread(); i < changes; i += Threads()) {
    const KvTableChange change = args.changes[i];
    args.tables[size_t{change.slot} * args.table_pages + change.index] = change.page;
  }
  uint32_t items = 0;  // of the entries before
  for (uint32_t first = 0; first < entries; first += Threads()) {
    const uint32_t i = first + Thread();
    uint32_t mine = 0;
    if (i < entries) {
      const KvEntry entry = args.board_entries[i];
      args.roster.entry[i] = entry;
      mine = ItemsOf(args.split, entry);
    }
    const PrefixSum sum = SumUpToHere(mine, reinterpret_cast<uint32_t*>(SharedMemory()));
    if (i < entries) args.roster.first_items[i] = items + sum.up_to_here - mine;
    items += sum.all;
  }
  if (Thread() != 0) return;
  *args.roster.counts = {entries, items};
  args.roster.first_items[entries] = items;
}

// ---- Appending, by a warp a row of k or v: `head_dim` elements to a token's place in a page

template <class Kv, class W>
FD_DEVICE void AppendPlain(const W* from, int head_dim, typename Kv::Element* to) {
  for (int i = 4 * static_cast<int>(Thread() % kWarp); i < head_dim; i += 4 * static_cast<int>(kWarp)) {
    const Pack<W, 4> in = LoadPack<4>(from + i);
    Pack<typename Kv::Element, 4> out;
    for (int j = 0; j < 4; ++j) out.v[j] = FromFloat<typename Kv::Element>(ToFloat(in.v[j]));
    StorePack(to + i, out);
  }
}

template <class W>
FD_DEVICE void AppendCodes(const W* from, int head_dim, uint8_t* to, Bf16* to_scale) {
  const int first = 4 * static_cast<int>(Thread() % kWarp), step = 4 * static_cast<int>(kWarp);
  uint32_t largest = 0;  // as bits, of which those of NaN are the largest
  for (int i = first; i < head_dim; i += step) {
    const Pack<W, 4> in = LoadPack<4>(from + i);
    for (int j = 0; j < 4; ++j) {
      const uint32_t magnitude = BitsOf(ToFloat(in.v[j])) & 0x7fffffffu;
      largest = magnitude > largest ? magnitude : largest;
    }
  }
  const Bf16 scale = CodedKv::Scale(FloatOfBits(MostOverWarp(largest)));
  for (int i = first; i < head_dim; i += step) {
    const Pack<W, 4> in = LoadPack<4>(from + i);
    Pack<uint8_t, 4> out;
    for (int j = 0; j < 4; ++j) out.v[j] = CodedKv::Code(ToFloat(in.v[j]), ToFloat(scale));
    StorePack(to + i, out);
  }
  if (first == 0) *to_scale = scale;
}

template <class W>
FD_DEVICE void AppendRow(const KvPages& pages, const W* from, bool of_v, unsigned slot_in_page, std::byte* head) {
  std::byte* const rows = head + (of_v ? GpuVOffset(pages.type, pages.head_dim) : 0);
  std::byte* const to = rows + slot_in_page * GpuRowBytes(pages.type, pages.head_dim);
  switch (pages.type) {
    case KvType::kF32:
      return AppendPlain<PlainKv<float>>(from, pages.head_dim, reinterpret_cast<float*>(to));
    case KvType::kBf16:
      return AppendPlain<PlainKv<Bf16>>(from, pages.head_dim, reinterpret_cast<Bf16*>(to));
    case KvType::kFp16:
      return AppendPlain<PlainKv<Fp16>>(from, pages.head_dim, reinterpret_cast<Fp16*>(to));
    case KvType::kInt8: {
      Bf16* const scales = reinterpret_cast<Bf16*>(head + GpuScalesOffset(pages.type, pages.head_dim));
      return AppendCodes(from, pages.head_dim, reinterpret_cast<uint8_t*>(to),
                         scales + (of_v ? kPageTokens : 0) + slot_in_page);
    }
    case KvType::kInt4:
      return;
  }
}

template <class W>
FD_DEVICE void CopyRow(const W* from, int elements, W* to) {
  for (int i = 4 * static_cast<int>(Thread() % kWarp); i < elements; i += 4 * static_cast<int>(kWarp)) {
    StorePack(to + i, LoadPack<4>(from + i));
  }
}

// ---- Copying tokens of a page to another page, by a warp the K or V of a head

FD_DEVICE void CopyTokens(const KvPages& pages, const std::byte* from, bool of_v, unsigned tokens, std::byte* to) {
  constexpr size_t kWidth = 16;
  const size_t begin = of_v ? GpuVOffset(pages.type, pages.head_dim) : 0;
  const size_t bytes = tokens * GpuRowBytes(pages.type, pages.head_dim);  // rows are of 16 elements or more
  for (size_t i = kWidth * (Thread() % kWarp); i < bytes; i += kWidth * kWarp) {
    StorePack(to + begin + i, LoadPack<kWidth>(from + begin + i));
  }
  if (pages.type != KvType::kInt8) return;
  const size_t scales = GpuScalesOffset(pages.type, pages.head_dim) + (of_v ? kPageTokens * sizeof(Bf16) : 0);
  const Bf16* const from_scales = reinterpret_cast<const Bf16*>(from + scales);
  Bf16* const to_scales = reinterpret_cast<Bf16*>(to + scales);
  for (unsigned t = Thread() % kWarp; t < tokens; t += kWarp) to_scales[t] = from_scales[t];
}

template <class W>
FD_KERNEL void AppendKv(AppendKvArgs args) {
  const unsigned row = BlockX();
  StepRow place = args.rows[row];
  KeepAllBefore(place);
  const bool appends = args.state->gave_up == 0 && row < args.state->rows && place.slot != kNoSlot;
  const auto position = static_cast<unsigned>(place.position);
  uint32_t page = 0;
  if (appends) page = args.pages.tables[size_t{place.slot} * args.pages.table_pages + position / kPageTokens];
  AwaitKernelBefore();
  LetKernelBehindBegin();
  if (!appends) return;
  const WireRows& wire = args.wire;
  const int64_t elements = int64_t{wire.heads + 2 * wire.kv_heads} * wire.padded_head_dim;
  const W* const from =
      reinterpret_cast<const W*>(args.area) + place.home_row * elements + int64_t{wire.heads} * wire.padded_head_dim;
  const auto kv_heads = static_cast<unsigned>(wire.kv_heads);
  for (unsigned unit = Thread() / kWarp; unit < 2 * kv_heads; unit += Threads() / kWarp) {
    const W* const head = from + int64_t{unit} * wire.padded_head_dim;
    std::byte* const to = HeadOf(args.pages, page, unit % kv_heads);
    AppendRow(args.pages, head, unit >= kv_heads, position % kPageTokens, to);
    if (place.copied_page != kNoCopy) {
      CopyTokens(args.pages, HeadOf(args.pages, place.copied_page, unit % kv_heads), unit >= kv_heads,
                 position % kPageTokens, to);
    }
    if (place.push_row == kNoPush) continue;
    W* const push =
        reinterpret_cast<W*>(args.push) + int64_t{place.push_row} * 2 * wire.kv_heads * wire.padded_head_dim;
    CopyRow(head, wire.padded_head_dim, push + int64_t{unit} * wire.padded_head_dim);
  }
}

}  // namespace fastdecode::simt

#endif  // FASTDECODE_KERNELS_CUDA_ATTENTION_KERNELS_CUH_
