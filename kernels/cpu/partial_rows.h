#ifndef FASTDECODE_KERNELS_CPU_PARTIAL_ROWS_H_
#define FASTDECODE_KERNELS_CPU_PARTIAL_ROWS_H_

#include "kernels/attention.h"
#include "kernels/cpu/vector_exp.h"

namespace fastdecode {
namespace {  // Each ISA-specific translation unit has its own copy: see attention_template.h.

// What is done with partials, of whatever pages they come: FoldFn and FinishFn, for one vector type.
template <class V>
class PartialRows {
  using Float = typename V::Float;
  static constexpr int kLanes = V::kLanes;

 public:
  static void Fold(const AttentionShape& shape, const Partial& into, const Partial& from, int n) {
    for (int first = 0; first < n; first += kLanes) {
      const int rows = n - first < kLanes ? n - first : kLanes;
      const Factors factors = FoldSums(into, from, first, rows);
      for (int i = 0; i < rows; ++i) {
        if (IsEmpty(from, first + i)) continue;
        float* const acc = into.acc + (first + i) * shape.head_dim;
        const float* const more = from.acc + (first + i) * shape.head_dim;
        const Float of_into = V::Set(factors.into[i]), of_from = V::Set(factors.from[i]);
        for (int d = 0; d < shape.head_dim; d += kLanes) {
          const Float scaled = V::Mul(V::Add(V::Load(more + d), V::Zero()), of_from);  // -0 becomes +0
          V::Store(acc + d, V::Fma(V::Load(acc + d), of_into, scaled));
        }
      }
    }
  }

  static void Finish(const AttentionShape& shape, const Partial& from, int heads, int rows, std::byte* o,
                     size_t o_row_stride_bytes) {
    FinishSome(shape, from, rows, 0, heads * rows * shape.group, o, o_row_stride_bytes);
  }

  // Row-heads [begin, end) of a partial of so many rows.
  static void FinishSome(const AttentionShape& shape, const Partial& from, int rows, int begin, int end, std::byte* o,
                         size_t o_row_stride_bytes) {
    // More rows than steps have are of a chunk, whose results nobody waits for: they are not to be read first.
    const bool stream = rows > kMaxRowsOfHeads && shape.head_dim % (2 * kLanes) == 0 &&
                        (reinterpret_cast<uintptr_t>(o) | o_row_stride_bytes) % 64 == 0;
    const auto finish = shape.type == ElementType::kBf16
                            ? (stream ? &FinishRows<Bf16, true> : &FinishRows<Bf16, false>)
                            : (stream ? &FinishRows<float, true> : &FinishRows<float, false>);
    finish(shape, from, rows, begin, end, o, o_row_stride_bytes);
  }

 private:
  // By which acc is multiplied, row by row.
  struct Factors {
    float into[kLanes], from[kLanes];
  };

  // By the sum, not the max: a NaN must not be lost.
  static bool IsEmpty(const Partial& partial, int row) { return partial.sum[row] == 0; }

  // Bases and sums of [first, first + rows), up to kLanes, at once.
  static Factors FoldSums(const Partial& into, const Partial& from, int first, int rows) {
    float into_max[kLanes] = {}, into_sum[kLanes] = {}, from_max[kLanes] = {}, from_sum[kLanes] = {};
    for (int i = 0; i < rows; ++i) {
      into_max[i] = into.max[first + i], into_sum[i] = into.sum[first + i];
      from_max[i] = from.max[first + i], from_sum[i] = from.sum[first + i];
    }
    const Float max = V::Max(V::Load(into_max), V::Load(from_max));
    const Float of_into = Exp2<V>(V::Sub(V::Load(into_max), max)), of_from = Exp2<V>(V::Sub(V::Load(from_max), max));
    V::Store(into_max, max);
    V::Store(into_sum, V::Fma(V::Load(into_sum), of_into, V::Mul(V::Load(from_sum), of_from)));
    for (int i = 0; i < rows; ++i) {
      if (!IsEmpty(from, first + i)) into.max[first + i] = into_max[i], into.sum[first + i] = into_sum[i];
    }
    Factors factors;
    V::Store(factors.into, of_into);
    V::Store(factors.from, of_from);
    return factors;
  }

  template <typename Row, bool kStream>
  static void FinishRows(const AttentionShape& shape, const Partial& from, int rows, int begin, int end, std::byte* o,
                         size_t o_row_stride_bytes) {
    const int row_heads = rows * shape.group;
    for (int i = begin; i < end; ++i) {
      const int head = i / row_heads * shape.group + i % shape.group;  // of those that are finished here
      Row* out = reinterpret_cast<Row*>(o + i % row_heads / shape.group * o_row_stride_bytes) + head * shape.head_dim;
      const Float inverse = V::Set(1 / (IsEmpty(from, i) ? 1.0f : from.sum[i]));  // empty: acc is 0
      const float* const acc = from.acc + i * shape.head_dim;
      if constexpr (kStream) {
        for (int d = 0; d < shape.head_dim; d += 2 * kLanes) {
          V::StreamRow(out + d, V::Mul(V::Load(acc + d), inverse), V::Mul(V::Load(acc + d + kLanes), inverse));
        }
      } else {
        for (int d = 0; d < shape.head_dim; d += kLanes) V::StoreRow(out + d, V::Mul(V::Load(acc + d), inverse));
      }
    }
  }
};

}  // namespace
}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_PARTIAL_ROWS_H_
