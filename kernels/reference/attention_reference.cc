#include "kernels/reference/attention_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace fastdecode {

bool ReferenceSees(const ReferenceAttentionInput& in, int position, int token) {
  if (token > position) return false;
  return in.sliding_window == 0 || token > position - in.sliding_window;
}

std::vector<double> ReferenceAttention(const ReferenceAttentionInput& in) {
  const int heads = in.kv_heads * in.group;
  std::vector<double> o(size_t(in.rows) * heads * in.head_dim, 0.0);
  for (int r = 0; r < in.rows; ++r) {
    for (int h = 0; h < heads; ++h) {
      const double* q = &in.q[(size_t(r) * heads + h) * in.head_dim];
      double* out = &o[(size_t(r) * heads + h) * in.head_dim];
      const int kv_head = h / in.group;

      std::vector<double> score(in.context, -std::numeric_limits<double>::infinity());
      double max = -std::numeric_limits<double>::infinity();
      for (int t = 0; t < in.context; ++t) {
        if (!ReferenceSees(in, in.first_row_position + r, t)) continue;
        const double* k = &in.k[(size_t(t) * in.kv_heads + kv_head) * in.head_dim];
        double dot = 0;
        for (int d = 0; d < in.head_dim; ++d) dot += q[d] * k[d];
        score[t] = dot * in.scale;
        if (in.soft_cap > 0) score[t] = in.soft_cap * std::tanh(score[t] / in.soft_cap);
        max = std::max(max, score[t]);
      }
      if (std::isinf(max)) continue;

      double sum = 0;
      for (int t = 0; t < in.context; ++t) {
        const double p = std::exp(score[t] - max);
        const double* v = &in.v[(size_t(t) * in.kv_heads + kv_head) * in.head_dim];
        sum += p;
        for (int d = 0; d < in.head_dim; ++d) out[d] += p * v[d];
      }
      for (int d = 0; d < in.head_dim; ++d) out[d] /= sum;
    }
  }
  return o;
}

}  // namespace fastdecode
