#ifndef FASTDECODE_KERNELS_CUDA_STEP_KERNELS_CUH_
#define FASTDECODE_KERNELS_CUDA_STEP_KERNELS_CUH_

// The kernels of step_kernels.h, for GPUs and for emulated threads (simt.h). A block works on one row, but for SwiGlu.

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

// ---- Norms

// normed = x / sqrt(mean(x²) + epsilon) * norm, by the whole block; each thread its own elements of x, which it wrote
// or nobody writes. `square_sum`: of those.
template <class T>
FD_DEVICE void WriteNormed(const float* x, float square_sum, const float* norm, float epsilon, int hidden, T* normed) {
  float* const shared = reinterpret_cast<float*>(SharedMemory());
  const float mean = SumOverBlock(square_sum, shared) / static_cast<float>(hidden);
  const float scale = 1.0f / sqrtf(mean + epsilon);
  for (int i = 4 * static_cast<int>(Thread()); i < hidden; i += 4 * static_cast<int>(Threads())) {
    const Pack<float, 4> value = LoadPack<4>(x + i), weight = LoadPack<4>(norm + i);
    Pack<T, 4> out;
    for (int j = 0; j < 4; ++j) out.v[j] = FromFloat<T>(value.v[j] * scale * weight.v[j]);
    StorePack(normed + i, out);
  }
}

template <class T>
FD_KERNEL void EmbedNorm(EmbedNormArgs args) {
  const unsigned row = BlockX();
  const StepBoard& board = *args.board;
  if (row == 0 && Thread() == 0) {
    args.state->first = board.first;
    args.state->rows = board.rows;
    args.state->logit_rows = board.logit_rows;
    args.state->all_here = board.all_here;
    args.state->gave_up = 0;
    args.state->blocks_over = 0;
    args.state->timed = board.timed;
    if (board.timed != 0) *args.stamps.begin = DeviceNs();
  }
  if (row >= board.rows) return;
  const StepRow place = args.board_rows[row];
  if (Thread() == 0) args.rows[row] = place;
  const T* const from = static_cast<const T*>(args.embedding) + int64_t{place.token} * args.hidden;
  float* const x = args.x + int64_t{row} * args.hidden;
  float square_sum = 0;
  for (int i = 4 * static_cast<int>(Thread()); i < args.hidden; i += 4 * static_cast<int>(Threads())) {
    const Pack<T, 4> in = LoadPack<4>(from + i);
    Pack<float, 4> value;
    for (int j = 0; j < 4; ++j) {
      value.v[j] = ToFloat(in.v[j]);
      square_sum += value.v[j] * value.v[j];
    }
    StorePack(x + i, value);
  }
  WriteNormed(x, square_sum, args.norm, args.epsilon, args.hidden,
              static_cast<T*>(args.normed) + int64_t{row} * args.hidden);
  // By the board: another block may be writing the state.
  if (board.timed != 0 && Thread() == 0) AtomicMax(args.stamps.end, DeviceNs());
}

template <class T>
FD_KERNEL void AddNorm(AddNormArgs args) {
  StampBegin(args.stamps, *args.state);
  const unsigned row = BlockX();
  if (row >= args.state->rows) return;
  const float* const add = args.projected + int64_t{row} * args.hidden;
  float* const x = args.x + int64_t{row} * args.hidden;
  float square_sum = 0;
  for (int i = 4 * static_cast<int>(Thread()); i < args.hidden; i += 4 * static_cast<int>(Threads())) {
    Pack<float, 4> value = LoadPack<4>(x + i);
    const Pack<float, 4> more = LoadPack<4>(add + i);
    for (int j = 0; j < 4; ++j) {
      value.v[j] += more.v[j];
      if (args.bias != nullptr) value.v[j] += args.bias[i + j];
      square_sum += value.v[j] * value.v[j];
    }
    StorePack(x + i, value);
  }
  WriteNormed(x, square_sum, args.norm, args.epsilon, args.hidden,
              static_cast<T*>(args.normed) + int64_t{row} * args.hidden);
  StampEnd(args.stamps, *args.state);
}

// ---- MLP

template <class T>
FD_KERNEL void SwiGlu(SwiGluArgs args) {
  const unsigned row = BlockX();
  const int i = 4 * static_cast<int>(BlockY() * Threads() + Thread());
  if (row >= args.state->rows || i >= args.intermediate) return;
  const T* const gates = static_cast<const T*>(args.gate_up) + int64_t{row} * 2 * args.intermediate;
  const Pack<T, 4> gate = LoadPack<4>(gates + i), up = LoadPack<4>(gates + args.intermediate + i);
  Pack<T, 4> out;
  for (int j = 0; j < 4; ++j) {
    const float g = ToFloat(gate.v[j]) + (args.gate_bias == nullptr ? 0 : args.gate_bias[i + j]);
    const float u = ToFloat(up.v[j]) + (args.up_bias == nullptr ? 0 : args.up_bias[i + j]);
    out.v[j] = FromFloat<T>(g / (1.0f + Exp(-g)) * u);
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
  FenceSystem();
  StoreReleaseSystem(&board->ready, state.first + stage);
}

// Counts the block in, all of whose threads have written what they had to; the last one publishes the stage.
FD_DEVICE void PublishWithLastBlock(const RopeSendArgs& args) {
  SyncBlock();
  if (Thread() != 0) return;
  FenceSystem();  // for all threads of the block, whose writes the barrier has made this one's past
  if (AtomicAdd(&args.state->blocks_over, 1u) + 1 < BlocksX()) return;
  args.state->blocks_over = 0;
  PublishStage(args.board, *args.state, args.times, args.stage);
}

// `Width` elements of a head's first half, from i on, and those of its second half: rotated unless cosines is null.
template <class T, class W, int Width>
FD_DEVICE void SendPairs(const T* from, const float* bias, const float* cosines, const float* sines, int half, int i,
                         W* to) {
  const Pack<T, Width> low = LoadPack<Width>(from + i), high = LoadPack<Width>(from + half + i);
  Pack<W, Width> out_low, out_high;
  for (int j = 0; j < Width; ++j) {
    float a = ToFloat(low.v[j]), b = ToFloat(high.v[j]);
    if (bias != nullptr) {
      a += bias[i + j];
      b += bias[half + i + j];
    }
    if (cosines != nullptr) {
      const float cosine = cosines[i + j], sine = sines[i + j];
      const float rotated = a * cosine - b * sine;
      b = b * cosine + a * sine;
      a = rotated;
    }
    out_low.v[j] = FromFloat<W>(a);
    out_high.v[j] = FromFloat<W>(b);
  }
  StorePack(to + i, out_low);
  StorePack(to + half + i, out_high);
}

template <class T, class W, int Width>
FD_DEVICE void SendRow(const RopeSendArgs& args, const T* from, int position, W* to) {
  const WireRows& wire = args.wire;
  const int half = wire.head_dim / 2;
  const int rotated = wire.heads + wire.kv_heads;
  const int units = half / Width;
  const float* const cosines = args.cosines + int64_t{position} * half;
  const float* const sines = args.sines + int64_t{position} * half;
  for (int unit = static_cast<int>(Thread()); unit < (rotated + wire.kv_heads) * units;
       unit += static_cast<int>(Threads())) {
    const int head = unit / units;
    SendPairs<T, W, Width>(
        from + head * wire.head_dim, args.bias == nullptr ? nullptr : args.bias + head * wire.head_dim,
        head < rotated ? cosines : nullptr, sines, half, unit % units * Width, to + head * wire.padded_head_dim);
  }
  const int padding = wire.padded_head_dim - wire.head_dim;
  for (int i = static_cast<int>(Thread()); i < (rotated + wire.kv_heads) * padding; i += static_cast<int>(Threads())) {
    to[i / padding * wire.padded_head_dim + wire.head_dim + i % padding] = FromFloat<W>(0);
  }
}

template <class T, class W>
FD_KERNEL void RopeSend(RopeSendArgs args) {
  StampBegin(args.stamps, *args.state);
  if (args.state->gave_up != 0) return;  // the host may have given the areas to others
  const unsigned row = BlockX();
  const WireRows& wire = args.wire;
  if (row < args.state->rows) {
    const StepRow place = args.rows[row];
    W* to = reinterpret_cast<W*>(args.areas[place.home].send);
    if (to != nullptr) {
      const int heads = wire.heads + 2 * wire.kv_heads;
      to += int64_t{place.home_row} * heads * wire.padded_head_dim;
      const T* const from = static_cast<const T*>(args.qkv) + int64_t{row} * heads * wire.head_dim;
      if (wire.head_dim % 8 == 0) {
        SendRow<T, W, 4>(args, from, place.position, to);
      } else {
        SendRow<T, W, 1>(args, from, place.position, to);
      }
    }
  }
  PublishWithLastBlock(args);
}

template <class T, class W, int Width>
FD_DEVICE void GatherRow(const WireRows& wire, const W* from, T* to) {
  const int units = wire.head_dim / Width;
  for (int unit = static_cast<int>(Thread()); unit < wire.heads * units; unit += static_cast<int>(Threads())) {
    const int head = unit / units, i = unit % units * Width;
    Pack<T, Width> out;
    if (from == nullptr) {
      for (int j = 0; j < Width; ++j) out.v[j] = FromFloat<T>(0);
    } else {
      const Pack<W, Width> in = LoadPack<Width>(from + head * wire.padded_head_dim + i);
      for (int j = 0; j < Width; ++j) out.v[j] = FromFloat<T>(ToFloat(in.v[j]));
    }
    StorePack(to + head * wire.head_dim + i, out);
  }
}

template <class T, class W>
FD_KERNEL void GatherOutputs(GatherOutputsArgs args) {
  const unsigned row = BlockX();
  if (row >= args.state->rows) return;
  const WireRows& wire = args.wire;
  const StepRow place = args.rows[row];
  if (place.slot != kNoSlot) return;
  const W* from = reinterpret_cast<const W*>(args.areas[place.home].receive);
  if (args.state->gave_up != 0) from = nullptr;
  if (from != nullptr) from += int64_t{place.home_row} * wire.heads * wire.padded_head_dim;
  T* const to = static_cast<T*>(args.out) + int64_t{row} * wire.heads * wire.head_dim;
  if (wire.head_dim % 4 == 0) {
    GatherRow<T, W, 4>(wire, from, to);
  } else {
    GatherRow<T, W, 1>(wire, from, to);
  }
  StampEnd(args.stamps, *args.state);
}

FD_KERNEL void Wait(WaitArgs args) {
  StepState& state = *args.state;
  if (state.gave_up != 0 || state.all_here != 0) return;
  const uint64_t number = state.first + args.stage;
  const uint64_t start_ns = DeviceNs();
  while (LoadAcquireSystem(&args.board->release) < number) {
    if (DeviceNs() - start_ns > args.bound_ns) {
      state.gave_up = 1;
      StoreReleaseSystem(&args.board->gave_up, number);
      return;
    }
    Pause();
  }
  StampEnd(args.stamps, state);
}

FD_KERNEL void Publish(PublishArgs args) {
  if (args.state->gave_up == 0) PublishStage(args.board, *args.state, args.times, args.stage);
}

// ---- Logits

template <class T>
FD_KERNEL void GatherLogitRows(GatherLogitRowsArgs args) {
  const unsigned i = args.first + BlockX();
  if (args.state->gave_up != 0 || i >= args.state->logit_rows) return;  // gave_up: the list may be another step's
  const T* const from = static_cast<const T*>(args.normed) + int64_t{args.logit_rows[i]} * args.hidden;
  T* const to = static_cast<T*>(args.out) + int64_t{BlockX()} * args.hidden;
  for (int j = 4 * static_cast<int>(Thread()); j < args.hidden; j += 4 * static_cast<int>(Threads())) {
    StorePack(to + j, LoadPack<4>(from + j));
  }
}

}  // namespace fastdecode::simt

#endif  // FASTDECODE_KERNELS_CUDA_STEP_KERNELS_CUH_
