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
// what is, or in int4 may be, the largest in its page: WeightRounding. Where a number is an offset and a code, the
// magnitudes are of both. Kernels for rows of prompts attend to numbers in bf16 and round nothing else.
PagedSequence::ErrorTerms PagedSequence::FindErrorTerms(const AttentionKernels& kernels) const {
  const ReferenceAttentionInput& of = HeldFor(kernels);
  ReferenceAttentionInput magnitude = of;
  for (size_t i = 0; i < of.v.size(); ++i) magnitude.v[i] = VMagnitude(of, i);
  magnitude.v_at = nullptr;
  ErrorTerms terms;
  terms.o = ReferenceAttention(magnitude);
  terms.weights = AreForPrompts(kernels) ? std::vector<double>(terms.o.size(), 0.0) : WeightRounding();

  std::vector<double> k_magnitude;
  for (size_t i = 0; i < of.k.size(); ++i) k_magnitude.push_back(KMagnitude(of, i));
  const int heads = in.kv_heads * in.group;
  for (int r = 0; r < in.rows; ++r) {
    for (int h = 0; h < heads; ++h) {
      const double* const q = &of.q[(size_t(r) * heads + h) * in.head_dim];
      double& most = terms.scores.emplace_back(0);
      for (int t = 0; t < in.context; ++t) {
        if (!ReferenceSees(in, in.first_row_position + r, t)) continue;
        const double* const k = &k_magnitude[(size_t(t) * in.kv_heads + h / in.group) * in.head_dim];
        double sum = 0;
        for (int d = 0; d < in.head_dim; ++d) sum += std::fabs(q[d]) * k[d];
        most = std::max(most, sum * in.scale);
      }
    }
  }
  return terms;
}

std::vector<double> PagedSequence::ErrorBound(const ErrorTerms& terms, double p_rounding) const {
  const double u = std::ldexp(1.0, -24), exp2_error = 1.8e-7;
  const int steps = (in.context + kPageTokens - 1) / kPageTokens + (in.context + block_tokens - 1) / block_tokens;
  std::vector<double> bound;
  for (size_t i = 0; i < terms.o.size(); ++i) {
    const double score = terms.scores[i / in.head_dim];
    const double score_error = (in.head_dim / 2 + 6) * u * score + in.soft_cap * (3 * u + exp2_error / 2);
    const double p_error = score_error + exp2_error + p_rounding + steps * (exp2_error + u * score + 2 * u);
    bound.push_back((2 * p_error + (20 + 2 * steps) * u) * terms.o[i] + 1e-30 + terms.weights[i]);
  }
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
std::vector<double> PagedSequence::WeightRounding() const {
  const int heads = in.kv_heads * in.group;
  std::vector<double> rounding(size_t(in.rows) * heads * in.head_dim, 0.0);
  if (v_codes_.empty()) return rounding;
  std::vector<double> magnitudes(held.v.size(), 0.0);  // of the codes
  for (size_t i = 0; i < held.v.size(); ++i) {
    const CodeRange& code = VCode(i / in.head_dim, i % in.head_dim);
    if (code.scale != 0) magnitudes[i] = std::fabs(held.v[i] - code.offset) / code.scale;
  }
  const bool int4 = shape.kv_type == KvType::kInt4;
  const int dims_of_a_scale = int4 ? 64 : in.head_dim;
  std::vector<double> codes(in.head_dim);
  for (int r = 0; r < in.rows; ++r) {
    for (int h = 0; h < heads; ++h) {
      const std::vector<double> p = ReferenceProbabilities(held, r, h);
      const auto token_head = [&](int t) { return size_t(t) * in.kv_heads + h / in.group; };
      double* const to = &rounding[(size_t(r) * heads + h) * in.head_dim];
      for (int page = 0; page < in.context; page += kPageTokens) {
        if (IsOpen(r, page)) continue;
        const int end = std::min(page + kPageTokens, in.context);
        for (int first = 0; first < in.head_dim; first += dims_of_a_scale) {
          const int dims = std::min(dims_of_a_scale, in.head_dim - first);
          double largest = 0, largest_p = 0, largest_scale = 0;
          std::fill(codes.begin(), codes.end(), 0.0);
          for (int t = page; t < end; ++t) {
            const double scale = VCode(token_head(t), first).scale;
            largest_scale = std::max(largest_scale, scale);
            if (p[t] == 0 || scale == 0) continue;
            largest_p = std::max(largest_p, p[t]);
            largest = std::max(largest, p[t] * scale);
            const double* const of_token = &magnitudes[token_head(t) * in.head_dim + first];
            for (int d = 0; d < dims; ++d) codes[d] += of_token[d];
          }
          const double half_unit = int4 ? 1.01 * largest_p * largest_scale / 510 : 1.001 * largest / 510;
          for (int d = 0; d < dims; ++d) to[first + d] += half_unit * codes[d];
        }
      }
    }
  }
  return rounding;
}

}  // namespace fastdecode
