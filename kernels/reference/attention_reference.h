#ifndef FASTDECODE_KERNELS_REFERENCE_ATTENTION_REFERENCE_H_
#define FASTDECODE_KERNELS_REFERENCE_ATTENTION_REFERENCE_H_

#include <functional>
#include <vector>

namespace fastdecode {

// One sequence's attention on plain arrays in double precision: softmax(scale * q Kᵀ) V, written for the eye.
struct ReferenceAttentionInput {
  int kv_heads = 0;
  int group = 0;  // query heads per KV head: query head h reads KV head h / group
  int head_dim = 0;
  double scale = 0;
  double soft_cap = 0;     // cap * tanh(score / cap) if > 0
  int sliding_window = 0;  // positions that a query sees, its own included; 0 = all
  int context = 0;         // stored tokens, at positions 0..context-1
  int rows = 0;            // query tokens, at positions first_row_position + r
  int first_row_position = 0;
  std::vector<double> q;     // [rows][kv_heads * group][head_dim]
  std::vector<double> k, v;  // [context][kv_heads][head_dim]
  // If set, instead of q · k, and of v[token][kv_head]: for what depends on the row that sees it.
  std::function<double(int row, int head, int token)> dot;
  std::function<const double*(int row, int kv_head, int token)> v_at;
};

// True if the query at `position` sees the token at `token`.
bool ReferenceSees(const ReferenceAttentionInput& in, int position, int token);

// softmax of one row and query head over the context: [context], 0 for what it does not see.
std::vector<double> ReferenceProbabilities(const ReferenceAttentionInput& in, int row, int head);

// o [rows][kv_heads * group][head_dim]; zeros for a row that sees nothing.
std::vector<double> ReferenceAttention(const ReferenceAttentionInput& in);

}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_REFERENCE_ATTENTION_REFERENCE_H_
