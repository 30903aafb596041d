#ifndef FASTDECODE_KERNELS_CUDA_JOIN_KERNELS_CUH_
#define FASTDECODE_KERNELS_CUDA_JOIN_KERNELS_CUH_

// The kernels of step_kernels.h that make x for models with other norms than RMS norms before each branch. A block
// works on one row.

#include "kernels/cuda/simt.h"
#include "kernels/cuda/step_kernels.cuh"
#include "kernels/cuda/step_kernels.h"

namespace fastdecode::simt {

// use(i, pack) for all packs of a row that the thread has: those at `held`, which stay there, if the block's threads
// hold the row; of longer rows what load(i) gives.
template <class Load, class Use>
FD_DEVICE void ForPacks(int hidden, Pack<float, 4>* held, const Load& load, const Use& use) {
  for (int first = 0; first < hidden; first += PacksOfBlock()) {
    if (hidden > PacksOfBlock()) {
      FD_UNROLL(unroll)
      for (int p = 0; p < kHeldPacks; ++p) {
        if (PackAt(first, p) < hidden) held[p] = load(PackAt(first, p));
      }
    }
    FD_UNROLL(unroll)
    for (int p = 0; p < kHeldPacks; ++p) {
      if (PackAt(first, p) >= hidden) break;
      use(PackAt(first, p), held[p]);
    }
  }
}

// What a norm takes from a row before its weights: (x - mean) * scale.
struct RowScale {
  float mean = 0, scale = 1;
};

// By the whole block; sums: shared, one a warp.
template <class Load>
FD_DEVICE RowScale MeasureRow(const DeviceNorm& norm, int hidden, Pack<float, 4>* held, const Load& load, float* sums) {
  RowScale row;
  if (norm.kind == RowNorm::Kind::kNone) return row;
  if (norm.kind == RowNorm::Kind::kLayer) {
    float sum = 0;
    ForPacks(hidden, held, load, [&sum](int, const Pack<float, 4>& value) {
      for (const float element : value.v) sum += element;
    });
    row.mean = SumOverBlock(sum, sums) / static_cast<float>(hidden);
  }
  float squares = 0;
  ForPacks(hidden, held, load, [&squares, mean = row.mean](int, const Pack<float, 4>& value) {
    for (const float element : value.v) squares += (element - mean) * (element - mean);
  });
  row.scale = 1.0f / sqrtf(SumOverBlock(squares, sums) / static_cast<float>(hidden) + norm.epsilon);
  return row;
}

// Of the four elements from i on.
FD_DEVICE void ApplyNorm(const DeviceNorm& norm, const RowScale& row, int i, Pack<float, 4>* value) {
  if (norm.kind == RowNorm::Kind::kNone) return;
  Pack<float, 4> weight = {1, 1, 1, 1}, bias = {};
  if (norm.weight != nullptr) weight = LoadPack<4>(norm.weight + i);
  if (norm.bias != nullptr) bias = LoadPack<4>(norm.bias + i);
  for (int j = 0; j < 4; ++j) value->v[j] = (value->v[j] - row.mean) * row.scale * weight.v[j] + bias.v[j];
}

// normed = norm(x) for a row of x, which is at `x`, and as far as they hold it in the threads' packs. Stored only where
// `stores` says so.
template <class T>
FD_DEVICE void WriteNormedBy(const DeviceNorm& norm, int hidden, const float* x, Pack<float, 4>* held, T* normed,
                             bool stores, float* sums) {
  const auto load = [x](int i) { return LoadPack<4>(x + i); };
  const RowScale scale = MeasureRow(norm, hidden, held, load, sums);
  ForPacks(hidden, held, load, [&](int i, Pack<float, 4> value) {
    ApplyNorm(norm, scale, i, &value);
    Pack<T, 4> out;
    for (int j = 0; j < 4; ++j) out.v[j] = FromFloat<T>(value.v[j]);
    if (stores) StorePack(normed + i, out);
  });
}

// What EmbedNorm does, with all that its arguments may say.
template <class T>
FD_KERNEL void FD_BLOCK_MAX(kNormThreadsMax) EmbedAndNorm(FD_ARGS EmbedNormArgs args) {
  const unsigned row = BlockX();
  const TakenRow taken = TakeRow(args);
  AwaitKernelBefore();
  if (!BeginStep(args, taken)) return;
  LetKernelBehindBegin();
  const int hidden = args.hidden;
  const T* const from = static_cast<const T*>(args.embedding) + int64_t{taken.row.token} * hidden;
  const float* const position = args.positions == nullptr
                                    ? nullptr
                                    : args.positions + (int64_t{taken.row.position} + args.position_offset) * hidden;
  float* const x = args.x + int64_t{row} * hidden;
  const auto make = [&](int i) {
    const Pack<T, 4> in = LoadPack<4>(from + i);
    Pack<float, 4> value, added = {};
    if (position != nullptr) added = LoadPack<4>(position + i);
    for (int j = 0; j < 4; ++j) value.v[j] = ToFloat(in.v[j]) * args.scale + added.v[j];
    return value;
  };
  Pack<float, 4> held[kHeldPacks] = {};
  FD_UNROLL(unroll)
  for (int p = 0; p < kHeldPacks; ++p) {
    if (PackAt(0, p) < hidden) held[p] = make(PackAt(0, p));
  }
  ForPacks(hidden, held, make, [x](int i, const Pack<float, 4>& value) { StorePack(x + i, value); });
  WriteNormedBy(args.norm, hidden, x, held, static_cast<T*>(args.normed) + int64_t{row} * hidden, /*stores=*/true,
                reinterpret_cast<float*>(SharedMemory() + sizeof(TakenRow)));
  if (taken.step.timed != 0 && Thread() == 0) AtomicMax(args.stamps.end, DeviceNs());
}

template <class T>
FD_KERNEL void FD_BLOCK_MAX(kNormThreadsMax) JoinNorm(FD_ARGS JoinNormArgs args) {
  AwaitKernelBefore();
  LetKernelBehindBegin();
  const StepState& state = *args.state;
  const unsigned row = BlockX();
  const int hidden = args.hidden;
  auto* const sums = reinterpret_cast<float*>(SharedMemory());
  float* const x = args.x + int64_t{row} * hidden;
  const float* const projected = args.projected == nullptr ? nullptr : args.projected + int64_t{row} * hidden;
  const bool adds = projected != nullptr || args.bias != nullptr;
  const auto load_branch = [&](int i) {
    Pack<float, 4> value = {}, bias = {};
    if (projected != nullptr) value = LoadPack<4>(projected + i);
    if (args.bias != nullptr) bias = LoadPack<4>(args.bias + i);
    for (int j = 0; j < 4; ++j) value.v[j] += bias.v[j];
    return value;
  };
  const auto load_x = [x](int i) { return LoadPack<4>(x + i); };
  Pack<float, 4> branch[kHeldPacks] = {}, held[kHeldPacks] = {};
  FD_UNROLL(unroll)
  for (int p = 0; p < kHeldPacks; ++p) {
    if (PackAt(0, p) >= hidden) break;
    held[p] = load_x(PackAt(0, p));
    branch[p] = load_branch(PackAt(0, p));
  }
  StampBegin(args.stamps, state);
  const bool stores = row < state.rows;
  if (adds) {
    const RowScale scale = MeasureRow(args.branch, hidden, branch, load_branch, sums);
    for (int first = 0; first < hidden; first += PacksOfBlock()) {
      FD_UNROLL(unroll)
      for (int p = 0; p < kHeldPacks; ++p) {
        const int i = PackAt(first, p);
        if (i >= hidden) break;
        if (hidden > PacksOfBlock()) {
          held[p] = load_x(i);
          branch[p] = load_branch(i);
        }
        ApplyNorm(args.branch, scale, i, &branch[p]);
        for (int j = 0; j < 4; ++j) held[p].v[j] += args.scale * branch[p].v[j];
        if (stores) StorePack(x + i, held[p]);
      }
    }
  }
  if (args.sum.kind != RowNorm::Kind::kNone) {
    const RowScale scale = MeasureRow(args.sum, hidden, held, load_x, sums);
    ForPacks(hidden, held, load_x, [&](int i, Pack<float, 4>& value) {
      ApplyNorm(args.sum, scale, i, &value);
      if (stores) StorePack(x + i, value);
    });
  }
  WriteNormedBy(args.before, hidden, x, held, static_cast<T*>(args.normed) + int64_t{row} * hidden, stores, sums);
  if (stores) StampEnd(args.stamps, state);
}

}  // namespace fastdecode::simt

#endif  // FASTDECODE_KERNELS_CUDA_JOIN_KERNELS_CUH_
