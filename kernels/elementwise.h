#ifndef FASTDECODE_KERNELS_ELEMENTWISE_H_
#define FASTDECODE_KERNELS_ELEMENTWISE_H_

#include <cstddef>
#include <cstdint>

#include "kernels/float_types.h"

namespace fastdecode {

// Row-wise kernels of the S-Part. `T` below is the compute type (f32 or bf16). The residual stream x is f32. Each result
// depends only on its own row, bit for bit.
struct ElementwiseKernels {
  // out[i] = x[i] / sqrt(mean(x²) + epsilon) * weight[i], as T. out has padded_n elements; those past n become zero.
  void (*rms_norm)(const float* x, const float* weight, double epsilon, int n, void* out, int padded_n);
  // x[i] += y[i] (+ bias[i] if bias is not null).
  void (*add)(float* x, const float* y, const float* bias, int n);
  // out[i] = silu(gate[i] + gate_bias[i]) * (up[i] + up_bias[i]), as T; biases may be null.
  void (*silu_mul)(const float* gate, const float* up, const float* gate_bias, const float* up_bias, int n, void* out);
  // One head: in (f32, head_dim) + bias (may be null), rotated by cos/sin (head_dim/2 each; pairs (i, i + head_dim/2)),
  // written as T with zeros up to padded_head_dim.
  void (*rope_head)(const float* in, const float* bias, const float* cosines, const float* sines, int head_dim, void* out,
                    int padded_head_dim);
  // One head without rotation (v).
  void (*copy_head)(const float* in, const float* bias, int head_dim, void* out, int padded_head_dim);
};

}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_ELEMENTWISE_H_
