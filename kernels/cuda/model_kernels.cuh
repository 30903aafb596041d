#ifndef FASTDECODE_KERNELS_CUDA_MODEL_KERNELS_CUH_
#define FASTDECODE_KERNELS_CUDA_MODEL_KERNELS_CUH_

// The kernels of step_kernels.h that some models need besides: other activations than SiLU, norms of q and k, capped
// logits.

#include "kernels/cuda/simt.h"
#include "kernels/cuda/step_kernels.cuh"
#include "kernels/cuda/step_kernels.h"

namespace fastdecode::simt {

// ---- MLP

// (1 + tanh(u)) / 2 is 1 / (1 + e^-2u). As Silu, of what the hardware has for types that are rounded anyway.
template <class T>
FD_DEVICE float GeluTanh(float x) {
  constexpr float kTwice = 2 * 0.79788456f;  // sqrt(2 / pi)
  const float twice = kTwice * (x + 0.044715f * x * x * x);
  if constexpr (std::is_same_v<T, float>) {
    return x / (1.0f + Exp(-twice));
  } else {
    return Quotient(x, 1.0f + Exp2(-kLog2E * twice));
  }
}
FD_DEVICE float Gelu(float x) { return 0.5f * x * (1.0f + Erf(0.70710678f * x)); }
FD_DEVICE float Relu(float x) { return x < 0 ? 0 : x; }  // NaN stays NaN

// All elements in place: the kind is asked for once.
template <class T, int kWidth>
FD_DEVICE void ActivateAll(Activation activation, float (&values)[kWidth]) {
  switch (activation) {
    case Activation::kSilu:
      for (float& value : values) value = Silu<T>(value);
      return;
    case Activation::kGelu:
      for (float& value : values) value = Gelu(value);
      return;
    case Activation::kGeluTanh:
      for (float& value : values) value = GeluTanh<T>(value);
      return;
    case Activation::kRelu:
      for (float& value : values) value = Relu(value);
      return;
    case Activation::kRelu2:
      for (float& value : values) value = Relu(value) * Relu(value);
      return;
  }
}

template <class T, int kWidth, bool kGated>
FD_KERNEL void Activate(ActivateArgs args) {
  AwaitKernelBefore();
  LetKernelBehindBegin();
  const unsigned row = BlockX();
  const int unit = kWidth * static_cast<int>(BlockY() * Threads() + Thread()), last = args.intermediate - kWidth;
  const int i = unit < last ? unit : last;
  const T* const from = static_cast<const T*>(args.gate_up) + int64_t{row} * (kGated ? 2 : 1) * args.intermediate;
  Pack<T, kWidth> up = LoadPack<kWidth>(from + (kGated ? args.intermediate : 0) + i), gate = {};
  if constexpr (kGated) {
    gate = LoadPack<kWidth>(from + i);
    KeepAllBefore(gate);
  }
  KeepAllBefore(up);
  if (row >= args.state->rows || unit > last) return;
  float ups[kWidth], activated[kWidth];
  for (int j = 0; j < kWidth; ++j) {
    ups[j] = ToFloat(up.v[j]) + (args.up_bias == nullptr ? 0 : args.up_bias[i + j]);
    activated[j] = kGated ? ToFloat(gate.v[j]) + (args.gate_bias == nullptr ? 0 : args.gate_bias[i + j]) : ups[j];
  }
  ActivateAll<T>(args.activation, activated);
  Pack<T, kWidth> out;
  for (int j = 0; j < kWidth; ++j) out.v[j] = FromFloat<T>(kGated ? activated[j] * ups[j] : activated[j]);
  StorePack(static_cast<T*>(args.out) + int64_t{row} * args.intermediate + i, out);
  StampEnd(args.stamps, *args.state);
}

// ---- Norms of q and k

// A row of qkv, whose elements go by two: a head has an even number of them.
template <class T>
struct QkvRow {
  T* row;
  const float* bias;
  float clip;
  bool stores;  // it is one of the step's

  // The two from i on, as a norm gets them.
  FD_DEVICE Pack<float, 2> Load(int i) const {
    const Pack<T, 2> in = LoadPack<2>(row + i);
    Pack<float, 2> value;
    for (int j = 0; j < 2; ++j) {
      float element = ToFloat(in.v[j]) + (bias == nullptr ? 0 : bias[i + j]);
      if (clip > 0) element = element < -clip ? -clip : element > clip ? clip : element;  // NaN stays NaN
      value.v[j] = element;
    }
    return value;
  }
  FD_DEVICE void Store(int i, const Pack<float, 2>& value) const {
    Pack<T, 2> out;
    for (int j = 0; j < 2; ++j) out.v[j] = FromFloat<T>(value.v[j]);
    if (stores) StorePack(row + i, out);
  }
  FD_DEVICE void StoreNormed(int i, Pack<float, 2> value, float scale, const float* weight) const {
    for (int j = 0; j < 2; ++j) value.v[j] *= scale * weight[j];
    Store(i, value);
  }
};

FD_DEVICE float SquareSum(const Pack<float, 2>& value) { return value.v[0] * value.v[0] + value.v[1] * value.v[1]; }

// By a warp: `count` elements from `first` on, up to kQkHeadDimMax of them, which it holds.
template <class T>
FD_DEVICE void NormByWarp(const QkvRow<T>& row, int first, int count, const float* weight, float epsilon) {
  constexpr int kPacks = kQkHeadDimMax / (2 * static_cast<int>(kWarp));
  const int lane = 2 * static_cast<int>(Thread() % kWarp), step = 2 * static_cast<int>(kWarp);
  Pack<float, 2> held[kPacks] = {};
  float squares = 0;
  FD_UNROLL(unroll)
  for (int p = 0; p < kPacks; ++p) {
    if (lane + p * step < count) held[p] = row.Load(first + lane + p * step);
  }
  for (const Pack<float, 2>& value : held) squares += SquareSum(value);
  const float scale = 1.0f / sqrtf(SumOverWarp(squares) / static_cast<float>(count) + epsilon);
  FD_UNROLL(unroll)
  for (int p = 0; p < kPacks; ++p) {
    const int i = lane + p * step;
    if (i < count) row.StoreNormed(first + i, held[p], scale, weight + i);
  }
}

// By the block, and however many there are. sums: shared, one a warp.
template <class T>
FD_DEVICE void NormByBlock(const QkvRow<T>& row, int first, int count, const float* weight, float epsilon,
                           float* sums) {
  const int thread = 2 * static_cast<int>(Thread()), step = 2 * static_cast<int>(Threads());
  float squares = 0;
  for (int i = thread; i < count; i += step) squares += SquareSum(row.Load(first + i));
  const float scale = 1.0f / sqrtf(SumOverBlock(squares, sums) / static_cast<float>(count) + epsilon);
  for (int i = thread; i < count; i += step) row.StoreNormed(first + i, row.Load(first + i), scale, weight + i);
}

template <class T>
FD_KERNEL void FD_BLOCK_MAX(kNormThreadsMax) QkNorm(FD_ARGS QkNormArgs args) {
  AwaitKernelBefore();
  LetKernelBehindBegin();
  StampBegin(args.stamps, *args.state);
  const int q = args.heads * args.head_dim, k = args.kv_heads * args.head_dim;
  const QkvRow<T> row = {static_cast<T*>(args.qkv) + int64_t{BlockX()} * (q + 2 * k), args.bias, args.clip,
                         BlockX() < args.state->rows};
  if (args.norm == QkNormArgs::Norm::kHead) {
    const int warps = static_cast<int>(Threads() / kWarp);
    for (int head = static_cast<int>(Thread() / kWarp); head < args.heads + args.kv_heads; head += warps) {
      NormByWarp(row, head * args.head_dim, args.head_dim, head < args.heads ? args.q_norm : args.k_norm, args.epsilon);
    }
  } else if (args.norm == QkNormArgs::Norm::kRow) {
    auto* const sums = reinterpret_cast<float*>(SharedMemory());
    NormByBlock(row, 0, q, args.q_norm, args.epsilon, sums);
    NormByBlock(row, q, k, args.k_norm, args.epsilon, sums);
  }
  if (args.bias != nullptr || args.clip > 0) {
    const int first = args.norm == QkNormArgs::Norm::kNone ? 0 : q + k;
    for (int i = first + 2 * static_cast<int>(Thread()); i < q + 2 * k; i += 2 * static_cast<int>(Threads())) {
      row.Store(i, row.Load(i));
    }
  }
  if (row.stores) StampEnd(args.stamps, *args.state);
}

// ---- Logits

// The block's share of a row.
template <int kWidth>
FD_DEVICE void CapLogits(float* logits, int vocab, float cap) {
  constexpr int kAtOnce = 4 * static_cast<int>(kSoftCapPacks) / kWidth;
  const int step = kWidth * static_cast<int>(Threads());
  const int first = static_cast<int>(BlockY()) * kAtOnce * step + kWidth * static_cast<int>(Thread());
  const float share = 1.0f / cap;
  Pack<float, kWidth> values[kAtOnce];
  FD_UNROLL(unroll)
  for (int n = 0; n < kAtOnce; ++n) {
    if (first + n * step < vocab) values[n] = LoadPack<kWidth>(logits + first + n * step);
  }
  FD_UNROLL(unroll)
  for (int n = 0; n < kAtOnce; ++n) {
    if (first + n * step >= vocab) break;
    for (float& value : values[n].v) value = cap * Tanh(value * share);
    StorePack(logits + first + n * step, values[n]);
  }
}

FD_KERNEL void SoftCap(SoftCapArgs args) {
  AwaitKernelBefore();
  LetKernelBehindBegin();
  if (args.state->gave_up != 0 || args.first + BlockX() >= args.state->logit_rows) return;
  float* const logits = args.logits + int64_t{BlockX()} * args.vocab;
  args.vocab % 4 == 0 ? CapLogits<4>(logits, args.vocab, args.cap) : CapLogits<1>(logits, args.vocab, args.cap);
}

}  // namespace fastdecode::simt

#endif  // FASTDECODE_KERNELS_CUDA_MODEL_KERNELS_CUH_
