#include <algorithm>
#include <cmath>

#include "tests/kernels/paged_sequence.h"
#include "tests/kernels/runnable_kernels.h"

// What error a kernel may make: derived from the roundings of each type.
namespace fastdecode {

// With u = 2^-24, S = the largest sum of |q_d k_d| * scale over the visible tokens, and A = the attention over |v|:
// * A score is a chain of head_dim / 2 FMAs, one sum, and a q or score that was rounded twice: off by
//   (head_dim / 2 + 4) u S. Its difference from the base adds 2 u S (|score| <= S). A soft cap has slope <= 1 and adds
//   (3 u + Exp2's half) * cap.
// * Exp2 is off by 1.8e-7, relatively; each of the rescalings by the pages and blocks before it once more, and u S.
// * acc and sum are chains: 16 + 1 per page, an addition or FMA per page, a product where they are rescaled, and two
//   roundings per block, relative to A.
// * p may be rounded once more, by p_rounding.
// p's relative error e moves o = sum(p v) / sum(p) by at most 2 e A. int8 and int4 round p times v's scale to 255ths of
// what is, or in int4 may be, the largest in its page: AddWeightRounding. Where a number is an offset and a code, the
// magnitudes are of both. Kernels for rows of prompts attend to numbers in bf16 and round nothing else.
std::vector<double> PagedSequence::ErrorBound(const AttentionKernels& kernels) const {
  const ReferenceAttentionInput& of = HeldFor(kernels);
  const double p_rounding = kernels.p_rounding;
  ReferenceAttentionInput magnitude = of;
  for (size_t i = 0; i < of.v.size(); ++i) magnitude.v[i] = VMagnitude(of, i);
  magnitude.v_at = nullptr;
  std::vector<double> bound = ReferenceAttention(magnitude);

  const double u = std::ldexp(1.0, -24), exp2_error = 1.8e-7;
  const int heads = in.kv_heads * in.group;
  const int steps = (in.context + kPageTokens - 1) / kPageTokens + (in.context + kBlockTokens - 1) / kBlockTokens;
  for (int r = 0; r < in.rows; ++r) {
    for (int h = 0; h < heads; ++h) {
      double magnitude_max = 0;
      for (int t = 0; t < in.context; ++t) {
        if (!ReferenceSees(in, in.first_row_position + r, t)) continue;
        double sum = 0;
        for (int d = 0; d < in.head_dim; ++d) {
          sum += std::fabs(of.q[(size_t(r) * heads + h) * in.head_dim + d]) *
                 KMagnitude(of, (size_t(t) * in.kv_heads + h / in.group) * in.head_dim + d);
        }
        magnitude_max = std::max(magnitude_max, sum * in.scale);
      }
      const double score_error = (in.head_dim / 2 + 6) * u * magnitude_max + in.soft_cap * (3 * u + exp2_error / 2);
      const double p_error = score_error + exp2_error + p_rounding + steps * (exp2_error + u * magnitude_max + 2 * u);
      for (int d = 0; d < in.head_dim; ++d) {
        double& b = bound[(size_t(r) * heads + h) * in.head_dim + d];
        b = (2 * p_error + (20 + 2 * steps) * u) * b + 1e-30;
      }
    }
  }
  if (!AreForPrompts(kernels)) AddWeightRounding(bound);
  return bound;
}

double PagedSequence::KMagnitude(const ReferenceAttentionInput& of, size_t element) const {
  const size_t page = element / (in.kv_heads * in.head_dim) / kPageTokens,
               in_token = element % (in.kv_heads * in.head_dim);
  const size_t code = page * in.kv_heads * in.head_dim + in_token;
  if (shape.kv_type != KvType::kInt4 || code >= k_codes_.size()) return std::fabs(of.k[element]);
  return std::fabs(k_codes_[code].offset) + 15 * k_codes_[code].scale + std::fabs(open_k_[element]);
}

double PagedSequence::VMagnitude(const ReferenceAttentionInput& of, size_t element) const {
  if (shape.kv_type != KvType::kInt4) return std::fabs(of.v[element]);
  const CodeRange& code = VCode(element / in.head_dim, element % in.head_dim);
  return std::fabs(code.offset) + 15 * code.scale + std::fabs(open_v_[element]);
}

const PagedSequence::CodeRange& PagedSequence::VCode(size_t token_head, size_t dim) const {
  const size_t groups = shape.kv_type == KvType::kInt4 ? (in.head_dim + 63) / 64 : 1;
  return v_codes_[token_head * groups + (groups > 1 ? dim / 64 : 0)];
}

// With w = p * scale, p summing to 1: w is off by half a 255th of what is the page's largest, and multiplies the codes
// (v - offset) / scale. (A little more: p itself is off by the errors of before, and in int4 by half a 32767th, where
// the page's largest p and scale are those of any tokens.)
void PagedSequence::AddWeightRounding(std::vector<double>& bound) const {
  if (v_codes_.empty()) return;
  const int heads = in.kv_heads * in.group;
  for (int r = 0; r < in.rows; ++r) {
    for (int h = 0; h < heads; ++h) {
      const std::vector<double> p = ReferenceProbabilities(held, r, h);
      const auto token_head = [&](int t) { return size_t(t) * in.kv_heads + h / in.group; };
      for (int page = 0; page < in.context; page += kPageTokens) {
        if (IsOpen(r, page)) continue;
        const int end = std::min(page + kPageTokens, in.context);
        for (int d = 0; d < in.head_dim; ++d) {
          double largest = 0, largest_p = 0, largest_scale = 0, codes = 0;
          for (int t = page; t < end; ++t) {
            const CodeRange& code = VCode(token_head(t), d);
            largest_scale = std::max(largest_scale, code.scale);
            if (p[t] == 0 || code.scale == 0) continue;
            largest_p = std::max(largest_p, p[t]);
            largest = std::max(largest, p[t] * code.scale);
            codes += std::fabs(held.v[token_head(t) * in.head_dim + d] - code.offset) / code.scale;
          }
          const bool int4 = shape.kv_type == KvType::kInt4;
          const double half_unit = int4 ? 1.01 * largest_p * largest_scale / 510 : 1.001 * largest / 510;
          bound[(size_t(r) * heads + h) * in.head_dim + d] += half_unit * codes;
        }
      }
    }
  }
}

}  // namespace fastdecode
