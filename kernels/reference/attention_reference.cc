#include "kernels/reference/attention_reference.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace fastdecode {

bool ReferenceSees(const ReferenceAttentionInput& in, int position, int token) {
  if (token > position) return false;
  return in.sliding_window == 0 || token > position - in.sliding_window;
}

std::vector<double> ReferenceProbabilities(const ReferenceAttentionInput& in, int row, int head) {
  const double* q = &in.q[(size_t(row) * in.kv_heads * in.group + head) * in.head_dim];
  std::vector<double> p(in.context, -std::numeric_limits<double>::infinity());
  double max = -std::numeric_limits<double>::infinity();
  for (int t = 0; t < in.context; ++t) {
    if (!ReferenceSees(in, in.first_row_position + row, t)) continue;
    const double* k = &in.k[(size_t(t) * in.kv_heads + head / in.group) * in.head_dim];
    double dot = 0;
    for (int d = 0; d < in.head_dim; ++d) dot += q[d] * k[d];
    if (in.dot) dot = in.dot(row, head, t);
    p[t] = dot * in.scale;
    if (in.soft_cap > 0) p[t] = in.soft_cap * std::tanh(p[t] / in.soft_cap);
    max = std::max(max, p[t]);
  }
  if (std::isinf(max)) return std::vector<double>(in.context, 0.0);

  double sum = 0;
  for (double& x : p) sum += x = std::exp(x - max);
  for (double& x : p) x /= sum;
  return p;
}

std::vector<double> ReferenceAttention(const ReferenceAttentionInput& in) {
  const int heads = in.kv_heads * in.group;
  std::vector<double> o(size_t(in.rows) * heads * in.head_dim, 0.0);
  for (int r = 0; r < in.rows; ++r) {
    for (int h = 0; h < heads; ++h) {
      const std::vector<double> p = ReferenceProbabilities(in, r, h);
      double* out = &o[(size_t(r) * heads + h) * in.head_dim];
      for (int t = 0; t < in.context; ++t) {
        if (p[t] == 0) continue;
        const double* v = &in.v[(size_t(t) * in.kv_heads + h / in.group) * in.head_dim];
        if (in.v_at) v = in.v_at(r, h / in.group, t);
        for (int d = 0; d < in.head_dim; ++d) out[d] += p[t] * v[d];
      }
    }
  }
  return o;
}

}  // namespace fastdecode
