#ifndef FASTDECODE_KERNELS_CUDA_STEP_KERNELS_CUH_
#define FASTDECODE_KERNELS_CUDA_STEP_KERNELS_CUH_

// The kernels of step_kernels.h, for GPUs and for emulated threads (simt.h). A block works on one row, but for
// SwiGlu. Those that not every model needs are in join_kernels.cuh and model_kernels.cuh.
//
// What a kernel takes is mostly how often it waits for memory, one load after another. So it loads whatever it can at
// once, before it looks whether its row is one of the step's: rows up to the bucket's last have memory, and homes,
// positions and slots of some step.

#include "kernels/cuda/simt.h"
#include "kernels/cuda/step_kernels.h"

namespace fastdecode::simt {

// ---- When a kernel began and was over

// By the first thread of the first block, which is among the first to run.
FD_DEVICE void StampBegin(const KernelStamps& stamps, const StepState& state) {
  if (stamps.begin == nullptr || state.timed == 0 || Thread() != 0 || BlockX() != 0 || BlockY() != 0) return;
  *stamps.begin = DeviceNs();
}
// By a thread of each block that had work. The clock goes on, so that the last one's stays.
FD_DEVICE void StampEnd(const KernelStamps& stamps, const StepState& state) {
  if (stamps.end == nullptr || state.timed == 0 || Thread() != 0) return;
  AtomicMax(stamps.end, DeviceNs());
}

// ---- The board's areas

// Each `step`th from `first` on, several on their way at once.
FD_DEVICE void TakeAreas(const StepAreas& areas, unsigned first, unsigned step) {
  constexpr unsigned kAtOnce = 8;
  FD_UNROLL(unroll 1)
  for (; first < areas.homes; first += kAtOnce * step) {
    StepArea taken[kAtOnce] = {};
    FD_UNROLL(unroll)
    for (unsigned n = 0; n < kAtOnce; ++n) {
      if (first + n * step < areas.homes) taken[n] = areas.board[first + n * step];
    }
    FD_UNROLL(unroll)
    for (unsigned n = 0; n < kAtOnce; ++n) {
      if (first + n * step < areas.homes) areas.here[first + n * step] = taken[n];
    }
  }
}

// ---- Norms

// A row of `hidden` floats in packs of four: a thread has kHeldPacks of them, Threads() packs apart, and if rows are
// longer than that of all threads, as many more after them.
inline constexpr int kHeldPacks = 4;
FD_DEVICE int PackAt(int first, int pack) {
  return first + 4 * (static_cast<int>(Thread()) + pack * static_cast<int>(Threads()));
}
FD_DEVICE int PacksOfBlock() { return 4 * kHeldPacks * static_cast<int>(Threads()); }
FD_DEVICE void LoadPacks(const float* from, int first, int hidden, Pack<float, 4>* packs) {
  FD_UNROLL(unroll)
  for (int p = 0; p < kHeldPacks; ++p) {
    if (PackAt(first, p) < hidden) packs[p] = LoadPack<4>(from + PackAt(first, p));
  }
}

FD_DEVICE const float* WeightsOf(const EmbedNormArgs& args) { return args.norm.weight; }
FD_DEVICE const float* WeightsOf(const BiasNormArgs& args) { return args.norm; }
FD_DEVICE float EpsilonOf(const EmbedNormArgs& args) { return args.norm.epsilon; }
FD_DEVICE float EpsilonOf(const BiasNormArgs& args) { return args.epsilon; }

// Of a row of x, of which make(i, load(i)) stores and gives the four elements from i on: normed = x / sqrt(mean(x²) +
// epsilon) * norm, by the whole block, but stored only if is_row(), which is asked when the loads are on their way:
// each takes longer than all that is done with it. Awaits the kernel before, and lets the one behind begin. sums:
// shared, one a warp.
//
// kHoldsWeights: so are the norm's weights, in registers of their own. With many rows, for whose blocks that would
// leave no room side by side, they are loaded when the row is done: by then they are in the core's own cache.
template <bool kHoldsWeights, class Args, class T, class IsRow, class Load, class Make>
FD_DEVICE void WriteNormed(const Args& args, float* sums, const float* x, T* normed, const IsRow& is_row,
                           const Load& load, const Make& make) {
  const int hidden = args.hidden;
  Pack<float, 4> held[kHeldPacks] = {}, weights[kHeldPacks] = {};
  if (kHoldsWeights) LoadPacks(WeightsOf(args), 0, hidden, weights);
  AwaitKernelBefore();
  LetKernelBehindBegin();
  float square_sum = 0;
  bool stores = false;
  for (int first = 0; first < hidden; first += PacksOfBlock()) {
    decltype(load(0)) loaded[kHeldPacks] = {};
    FD_UNROLL(unroll)
    for (int p = 0; p < kHeldPacks; ++p) {
      if (PackAt(first, p) < hidden) loaded[p] = load(PackAt(first, p));
    }
    if (first == 0) stores = is_row();
    FD_UNROLL(unroll)
    for (int p = 0; p < kHeldPacks; ++p) {
      if (PackAt(first, p) >= hidden) break;
      held[p] = make(PackAt(first, p), loaded[p], stores);
      for (const float value : held[p].v) square_sum += value * value;
    }
  }
  const float mean = SumOverBlock(square_sum, sums) / static_cast<float>(hidden);
  const float scale = 1.0f / sqrtf(mean + EpsilonOf(args));
  for (int first = 0; first < hidden; first += PacksOfBlock()) {
    if (hidden > PacksOfBlock()) {  // then the last ones are held
      LoadPacks(x, first, hidden, held);
      if (kHoldsWeights) LoadPacks(WeightsOf(args), first, hidden, weights);
    }
    FD_UNROLL(unroll)
    for (int p = 0; p < kHeldPacks; ++p) {
      if (PackAt(first, p) >= hidden) break;
      if (!kHoldsWeights) weights[p] = LoadPack<4>(WeightsOf(args) + PackAt(first, p));
      Pack<T, 4> out;
      for (int j = 0; j < 4; ++j) out.v[j] = FromFloat<T>(held[p].v[j] * scale * weights[p].v[j]);
      if (stores) StorePack(normed + PackAt(first, p), out);
    }
  }
}

// What the board says of the step and of the row, for all threads of the block. One warp asks, a word a lane, and all
// share the answer: the host's memory is far, and answers one question after another.
FD_DEVICE const TakenRow& TakeRow(const EmbedNormArgs& args) {
  constexpr unsigned kWord = sizeof(uint32_t), kOfStep = sizeof(StepHeader) / kWord, kOfRow = sizeof(StepRow) / kWord;
  static_assert(kOfStep + kOfRow <= kWarp && sizeof(TakenRow) == (kOfStep + kOfRow) * kWord);
  if (const unsigned word = Thread(); word < kOfStep + kOfRow) {
    const auto* const step = reinterpret_cast<const std::byte*>(&args.board->step);
    const auto* const row = reinterpret_cast<const std::byte*>(args.board_rows + BlockX());
    const std::byte* const from = word < kOfStep ? step + word * kWord : row + (word - kOfStep) * kWord;
    StorePack(SharedMemory() + word * kWord, LoadPack<kWord>(from));
  }
  SyncBlock();
  return *reinterpret_cast<const TakenRow*>(SharedMemory());
}

// What the rest of the step knows of the board is the first kernel's to write. Whether the block's row is one of the
// step's.
FD_DEVICE bool BeginStep(const EmbedNormArgs& args, const TakenRow& taken) {
  const unsigned row = BlockX();
  const StepHeader& now = taken.step;
  if (row == 0 && Thread() == 0) {
    *args.state = {.first = now.first,
                   .rows = now.rows,
                   .logit_rows = now.logit_rows,
                   .all_here = now.all_here,
                   .timed = now.timed,
                   .areas_version = now.areas_version};
    if (now.timed != 0) *args.stamps.begin = DeviceNs();
  }
  if (row == BlocksX() - 1) TakeAreas(args.areas, Thread(), Threads());
  if (row >= now.rows) return false;
  if (Thread() == 0) args.rows[row] = taken.row;
  return true;
}

template <class T>
FD_KERNEL void FD_BLOCK_MAX(kNormThreadsMax) EmbedNorm(EmbedNormArgs args) {
  const unsigned row = BlockX();
  const TakenRow taken = TakeRow(args);
  AwaitKernelBefore();
  if (!BeginStep(args, taken)) return;
  const T* const from = static_cast<const T*>(args.embedding) + int64_t{taken.row.token} * args.hidden;
  float* const x = args.x + int64_t{row} * args.hidden;
  const auto widen = [x](int i, const Pack<T, 4>& in, bool /*stores*/) {
    Pack<float, 4> value;
    for (int j = 0; j < 4; ++j) value.v[j] = ToFloat(in.v[j]);
    StorePack(x + i, value);
    return value;
  };
  WriteNormed</*kHoldsWeights=*/true>(
      args, reinterpret_cast<float*>(SharedMemory() + sizeof(TakenRow)), x,
      static_cast<T*>(args.normed) + int64_t{row} * args.hidden, [] { return true; },
      [from](int i) { return LoadPack<4>(from + i); }, widen);
  // By the board: another block may be writing the state.
  if (taken.step.timed != 0 && Thread() == 0) AtomicMax(args.stamps.end, DeviceNs());
}

template <class T, bool kBiased, bool kHoldsWeights>
FD_KERNEL void FD_BLOCKS_MIN(kNormThreadsMax, kHoldsWeights ? 1 : 2) BiasNorm(FD_ARGS BiasNormArgs args) {
  const StepState& state = *args.state;
  const unsigned row = BlockX();
  float* const x = args.x + int64_t{row} * args.hidden;
  const auto load = [x](int i) { return LoadPack<4>(x + i); };
  const auto is_row = [row, &args, &state] {
    StampBegin(args.stamps, state);
    return row < state.rows;
  };
  const auto add = [x, &args](int i, Pack<float, 4> value, bool stores) {
    if constexpr (kBiased) {
      const Pack<float, 4> bias = LoadPack<4>(args.bias + i);
      for (int j = 0; j < 4; ++j) value.v[j] += bias.v[j];
      if (stores) StorePack(x + i, value);
    }
    return value;
  };
  WriteNormed<kHoldsWeights>(args, reinterpret_cast<float*>(SharedMemory()), x,
                             static_cast<T*>(args.normed) + int64_t{row} * args.hidden, is_row, load, add);
  if (row < state.rows) StampEnd(args.stamps, state);
}

// ---- MLP

// For types that are rounded anyway, of what the hardware has.
template <class T>
FD_DEVICE float Silu(float gate) {
  if constexpr (std::is_same_v<T, float>) {
    return gate / (1.0f + Exp(-gate));
  } else {
    return Quotient(gate, 1.0f + Exp2(-kLog2E * gate));
  }
}

template <class T, int kWidth>
FD_KERNEL void SwiGlu(ActivateArgs args) {
  AwaitKernelBefore();
  LetKernelBehindBegin();
  const unsigned row = BlockX();
  const int unit = kWidth * static_cast<int>(BlockY() * Threads() + Thread()), last = args.intermediate - kWidth;
  const int i = unit < last ? unit : last;
  const T* const gates = static_cast<const T*>(args.gate_up) + int64_t{row} * 2 * args.intermediate;
  Pack<T, kWidth> gate = LoadPack<kWidth>(gates + i), up = LoadPack<kWidth>(gates + args.intermediate + i);
  KeepAllBefore(gate);
  KeepAllBefore(up);
  if (row >= args.state->rows || unit > last) return;
  Pack<T, kWidth> out;
  for (int j = 0; j < kWidth; ++j) {
    const float g = ToFloat(gate.v[j]) + (args.gate_bias == nullptr ? 0 : args.gate_bias[i + j]);
    const float u = ToFloat(up.v[j]) + (args.up_bias == nullptr ? 0 : args.up_bias[i + j]);
    out.v[j] = FromFloat<T>(Silu<T>(g) * u);
  }
  StorePack(static_cast<T*>(args.out) + int64_t{row} * args.intermediate + i, out);
  StampEnd(args.stamps, *args.state);
}

// ---- To and from the homes

// By one thread, when all that the stage has to show is written.
FD_DEVICE void PublishStage(StepBoard* board, const StepState& state, const StageStamps* times, unsigned stage) {
  if (state.timed != 0) {
    board->times = *times;
    board->times.published = DeviceNs();
  }
  StoreReleaseSystem(&board->ready, state.first + stage);
}

// Counts the block in, all of whose threads have written what they had to; the last one publishes the stage.
FD_DEVICE void PublishWithLastBlock(const RopeSendArgs& args) {
  SyncBlock();
  if (Thread() != 0) return;
  // For all threads of the block, whose writes the barrier has made this one's past.
  if (CountIn(&args.state->blocks_over) + 1 < BlocksX()) return;
  args.state->blocks_over = 0;
  PublishStage(args.board, *args.state, args.times, args.stage);
}

// `Width` elements of a head's first half, and those of its second half, that are rotated unless cosines is null.
template <class T, int Width>
struct HeadPairs {
  Pack<T, Width> low, high;
};
template <class T, class W, int Width>
FD_DEVICE void SendPairs(const HeadPairs<T, Width>& pairs, const float* bias, const float* cosines, const float* sines,
                         int64_t at, int half, W* to) {
  Pack<float, Width> cosine = {}, sine = {};
  if (cosines != nullptr) {
    cosine = LoadPack<Width>(cosines + at);
    sine = LoadPack<Width>(sines + at);
  }
  Pack<W, Width> out_low, out_high;
  for (int j = 0; j < Width; ++j) {
    float a = ToFloat(pairs.low.v[j]), b = ToFloat(pairs.high.v[j]);
    if (bias != nullptr) {
      a += bias[j];
      b += bias[half + j];
    }
    if (cosines != nullptr) {
      const float rotated = a * cosine.v[j] - b * sine.v[j];
      b = b * cosine.v[j] + a * sine.v[j];
      a = rotated;
    }
    out_low.v[j] = FromFloat<W>(a);
    out_high.v[j] = FromFloat<W>(b);
  }
  StorePack(to, out_low);
  StorePack(to + half, out_high);
}

// One of the step's rows; nothing where the step has no such row, its home is lost, or a wait was in vain: the host may
// have given the areas to others.
template <class T, class W, int Width>
FD_DEVICE void SendRow(const RopeSendArgs& args, unsigned row) {
  const WireRows& wire = args.wire;
  const int half = wire.head_dim / 2, units = half / Width;
  const int rotated = wire.heads + wire.kv_heads, heads = rotated + wire.kv_heads;
  const T* const from = static_cast<const T*>(args.qkv) + int64_t{row} * heads * wire.head_dim;
  const StepRow place = args.rows[row];
  for (int unit = static_cast<int>(Thread()); unit < heads * units; unit += static_cast<int>(Threads())) {
    const int head = unit / units, i = unit % units * Width;
    const T* const low = from + head * wire.head_dim + i;
    HeadPairs<T, Width> pairs = {LoadPack<Width>(low), LoadPack<Width>(low + half)};
    if constexpr (Width > 1) KeepAllBefore(pairs);
    W* const area = reinterpret_cast<W*>(args.areas[place.home].send);
    if (row >= args.state->rows || args.state->gave_up != 0 || area == nullptr) return;
    const int64_t at = int64_t{place.position} * half + i;
    const bool is_q = head < wire.heads;
    const float* const cosines = is_q ? args.q_cosines : args.k_cosines;
    const float* const sines = is_q ? args.q_sines : args.k_sines;
    SendPairs<T, W, Width>(pairs, args.bias == nullptr ? nullptr : args.bias + head * wire.head_dim + i,
                           head < rotated ? cosines : nullptr, sines, at, half,
                           area + (int64_t{place.home_row} * heads + head) * wire.padded_head_dim + i);
  }
  const int padding = wire.padded_head_dim - wire.head_dim;
  if (padding == 0) return;
  W* const area = reinterpret_cast<W*>(args.areas[place.home].send);
  if (row >= args.state->rows || args.state->gave_up != 0 || area == nullptr) return;
  W* const to = area + int64_t{place.home_row} * heads * wire.padded_head_dim;
  for (int i = static_cast<int>(Thread()); i < heads * padding; i += static_cast<int>(Threads())) {
    to[i / padding * wire.padded_head_dim + wire.head_dim + i % padding] = FromFloat<W>(0);
  }
}

template <class T, class W>
FD_KERNEL void FD_BLOCK_MAX(kSendThreadsMax) RopeSend(RopeSendArgs args) {
  AwaitKernelBefore();
  LetKernelBehindBegin();
  StampBegin(args.stamps, *args.state);
  const unsigned row = BlockX();
  constexpr int kWidth = 16 / sizeof(T);
  if (args.wire.head_dim % (2 * kWidth) == 0) {
    SendRow<T, W, kWidth>(args, row);
  } else {
    SendRow<T, W, 1>(args, row);
  }
  if (args.state->gave_up == 0) PublishWithLastBlock(args);
}

// What a thread reads is all on its way at once: it comes from as far as the host. So there is no branch at a load: who
// has nothing more to read reads the row's end again.
template <class T, class W, int Width>
FD_DEVICE void GatherRow(const WireRows& wire, const W* from, T* to) {
  constexpr int kAtOnce = 4;
  const int of_head = wire.head_dim / Width, units = wire.heads * of_head, step = static_cast<int>(Threads());
  for (int first = static_cast<int>(Thread()); first < units; first += kAtOnce * step) {
    Pack<W, Width> in[kAtOnce];
    FD_UNROLL(unroll)
    for (int n = 0; n < kAtOnce; ++n) {
      const int unit = first + n * step < units ? first + n * step : units - 1;
      in[n] = LoadPack<Width>(from + unit / of_head * wire.padded_head_dim + unit % of_head * Width);
    }
    FD_UNROLL(unroll)
    for (int n = 0; n < kAtOnce; ++n) {
      if (first + n * step >= units) break;
      Pack<T, Width> out;
      for (int j = 0; j < Width; ++j) out.v[j] = FromFloat<T>(ToFloat(in[n].v[j]));
      StorePack(to + (first + n * step) * Width, out);
    }
  }
}

template <class T, class W>
FD_KERNEL void GatherOutputs(GatherOutputsArgs args) {
  const unsigned row = BlockX();
  const WireRows& wire = args.wire;
  StepRow place = args.rows[row];
  KeepAllBefore(place);
  AwaitKernelBefore();
  LetKernelBehindBegin();
  StepArea area = args.areas[place.home];
  KeepAllBefore(area);
  if (row >= args.state->rows || place.slot != kNoSlot) return;
  const W* from = reinterpret_cast<const W*>(area.receive);
  T* const to = static_cast<T*>(args.out) + int64_t{row} * wire.heads * wire.head_dim;
  constexpr int kWidth = 16 / sizeof(W);
  if (from == nullptr || args.state->gave_up != 0) {
    for (int i = static_cast<int>(Thread()); i < wire.heads * wire.head_dim; i += static_cast<int>(Threads())) {
      to[i] = FromFloat<T>(0);
    }
  } else {
    from += int64_t{place.home_row} * wire.heads * wire.padded_head_dim;
    wire.head_dim % kWidth == 0 ? GatherRow<T, W, kWidth>(wire, from, to) : GatherRow<T, W, 1>(wire, from, to);
  }
  StampEnd(args.stamps, *args.state);
}

// Looks once while the kernel before still runs, and lets the one behind begin only when there is something to gather:
// its blocks would take room from others' GEMMs.
FD_KERNEL void Wait(WaitArgs args) {
  // Before it waits: what comes behind delays the hop.
  const uint64_t number = args.state->first + args.stage;
  const uint32_t timed = args.state->timed, areas_version = args.state->areas_version;
  if (args.state->gave_up != 0 || args.state->all_here != 0) return AwaitKernelBefore();
  uint64_t word = LoadAcquireSystem(&args.board->release);
  AwaitKernelBefore();
  const uint64_t start_ns = DeviceNs();
  while (ReleasedStage(word) < number) {
    if (DeviceNs() - start_ns > args.bound_ns) {
      args.state->gave_up = 1;
      StoreReleaseSystem(&args.board->gave_up, number);
      return;
    }
    Pause();
    word = LoadAcquireSystem(&args.board->release);
  }
  LetKernelBehindBegin();
  if (ReleasedAreas(word) != areas_version) {
    args.state->areas_version = ReleasedAreas(word);
    TakeAreas(args.areas, 0, 1);
  }
  StampEnd(args.stamps, StepState{.timed = timed});
}

FD_KERNEL void Publish(PublishArgs args) {
  AwaitKernelBefore();
  if (args.state->gave_up == 0) PublishStage(args.board, *args.state, args.times, args.stage);
}

// ---- Logits

template <class T>
FD_KERNEL void GatherLogitRows(GatherLogitRowsArgs args) {
  const unsigned i = args.first + BlockX();
  // After a wait in vain the list may be another step's.
  const bool is_row = args.state->gave_up == 0 && i < args.state->logit_rows;
  const int64_t row = is_row ? args.logit_rows[i] : 0;
  AwaitKernelBefore();
  LetKernelBehindBegin();
  if (!is_row) return;
  const T* const from = static_cast<const T*>(args.normed) + row * args.hidden;
  T* const to = static_cast<T*>(args.out) + int64_t{BlockX()} * args.hidden;
  for (int j = 4 * static_cast<int>(Thread()); j < args.hidden; j += 4 * static_cast<int>(Threads())) {
    StorePack(to + j, LoadPack<4>(from + j));
  }
}

}  // namespace fastdecode::simt

#endif  // FASTDECODE_KERNELS_CUDA_STEP_KERNELS_CUH_
