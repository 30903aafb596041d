#ifndef FASTDECODE_KERNELS_ELEMENTWISE_H_
#define FASTDECODE_KERNELS_ELEMENTWISE_H_

#include <cstddef>
#include <cstdint>

#include "kernels/activation.h"
#include "kernels/float_types.h"

namespace fastdecode {

// The norm of a row x of n numbers.
struct RowNorm {
  enum class Kind {
    kNone,   // x, without weight and bias
    kRms,    // x / sqrt(mean(x²) + epsilon)
    kLayer,  // (x - mean(x)) / sqrt(mean((x - mean(x))²) + epsilon)
  };
  Kind kind = Kind::kNone;
  const float* weight = nullptr;  // [n], multiplied with; null: none
  const float* bias = nullptr;    // [n], added; null: none
  double epsilon = 0;
};

// Row-wise kernels of the S-Part. `T` below is the compute type (f32 or bf16). The residual stream x is f32. Each
// result depends only on its own row, bit for bit. NaN stays NaN.
struct ElementwiseKernels {
  // out = norm(x), as T. out has padded_n elements; those past n become zero.
  void (*norm)(const RowNorm& norm, const float* x, int n, void* out, int padded_n);
  // The same in f32. out may be x.
  void (*norm_f32)(const RowNorm& norm, const float* x, int n, float* out);
  // x[i] += scale * (y[i] + bias[i]); bias may be null.
  void (*add)(float* x, const float* y, const float* bias, float scale, int n);
  // out[i] = activation(gate[i] + gate_bias[i]) * (up[i] + up_bias[i]), as T; if gate is null, activation(up[i] +
  // up_bias[i]). Biases may be null.
  void (*activate)(Activation activation, const float* gate, const float* up, const float* gate_bias,
                   const float* up_bias, int n, void* out);
  // x[i] is kept within +-limit. REQUIRES: limit > 0.
  void (*clip)(float* x, float limit, int n);
  // x[i] = cap * tanh(x[i] / cap). REQUIRES: cap > 0.
  void (*soft_cap)(float* x, float cap, int n);
  // One head: in (f32, head_dim) + bias (may be null), rotated by cos/sin (head_dim/2 each; pairs (i, i + head_dim/2)),
  // written as T with zeros up to padded_head_dim.
  void (*rope_head)(const float* in, const float* bias, const float* cosines, const float* sines, int head_dim,
                    void* out, int padded_head_dim);
  // One head without rotation (v).
  void (*copy_head)(const float* in, const float* bias, int head_dim, void* out, int padded_head_dim);
};

}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_ELEMENTWISE_H_
