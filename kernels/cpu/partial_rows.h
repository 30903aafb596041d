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
          V::Store(acc + d, FoldedAcc(acc + d, more + d, of_into, of_from));
        }
      }
    }
  }

  static void Finish(const AttentionShape& shape, const Partial& from, int heads, int rows, std::byte* o,
                     size_t o_row_stride_bytes) {
    FinishSome<false>(shape, from, {}, rows, 0, heads * rows * shape.group, o, o_row_stride_bytes);
  }

  // Fold and Finish of row-heads [begin, end) of a call with so many rows, where partials begin with the first of them.
  // kFolds: else there is no `from`. What is folded goes to o alone.
  template <bool kFolds>
  static void FinishSome(const AttentionShape& shape, const Partial& into, const Partial& from, int rows, int begin,
                         int end, std::byte* o, size_t o_row_stride_bytes) {
    // More rows than steps have are of a chunk, whose results nobody waits for: they are not to be read first.
    const bool stream = rows > kMaxRowsOfHeads && shape.head_dim % (2 * kLanes) == 0 &&
                        (reinterpret_cast<uintptr_t>(o) | o_row_stride_bytes) % 64 == 0;
    const auto finish = shape.type == ElementType::kBf16
                            ? (stream ? &FinishRows<Bf16, true, kFolds> : &FinishRows<Bf16, false, kFolds>)
                            : (stream ? &FinishRows<float, true, kFolds> : &FinishRows<float, false, kFolds>);
    for (int first = begin; first < end; first += kLanes) {
      const int count = end - first < kLanes ? end - first : kLanes;
      const Partial more = kFolds ? RowsOf(shape, from, first - begin) : from;
      finish(shape, RowsOf(shape, into, first - begin), more, rows, first, count, o, o_row_stride_bytes);
    }
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

  static Partial RowsOf(const AttentionShape& shape, const Partial& all, int first) {
    return {all.max + first, all.sum + first, all.acc + first * shape.head_dim};
  }

  // Up to kLanes row-heads, of the call's from `first` on.
  template <typename Row, bool kStream, bool kFolds>
  static void FinishRows(const AttentionShape& shape, const Partial& into, const Partial& from, int rows, int first,
                         int count, std::byte* o, size_t o_row_stride_bytes) {
    const int row_heads = rows * shape.group;
    Factors factors;
    if constexpr (kFolds) factors = FoldSums(into, from, 0, count);
    for (int i = 0; i < count; ++i) {
      const int row_head = (first + i) % row_heads;
      const int head = (first + i) / row_heads * shape.group + row_head % shape.group;  // of those finished here
      Row* const out = reinterpret_cast<Row*>(o + row_head / shape.group * o_row_stride_bytes) + head * shape.head_dim;
      const Float inverse = V::Set(1 / (IsEmpty(into, i) ? 1.0f : into.sum[i]));  // empty: acc is 0
      const float* const acc = into.acc + i * shape.head_dim;
      if (kFolds && !IsEmpty(from, i)) {
        const float* const more = from.acc + i * shape.head_dim;
        const Float of_into = V::Set(factors.into[i]), of_from = V::Set(factors.from[i]);
        FinishRow<kStream>(
            shape.head_dim, out, [&](int d) __attribute__((always_inline)) {
              return V::Mul(FoldedAcc(acc + d, more + d, of_into, of_from), inverse);
            });
      } else {
        FinishRow<kStream>(
            shape.head_dim,
            out, [&](int d) __attribute__((always_inline)) { return V::Mul(V::Load(acc + d), inverse); });
      }
    }
  }

  template <bool kStream, typename Row, class Result>
  [[gnu::always_inline]] static void FinishRow(int head_dim, Row* out, const Result& result) {
    if constexpr (kStream) {
      for (int d = 0; d < head_dim; d += 2 * kLanes) V::StreamRow(out + d, result(d), result(d + kLanes));
    } else {
      for (int d = 0; d < head_dim; d += kLanes) V::StoreRow(out + d, result(d));
    }
  }

  // -0 of what is added becomes +0.
  static Float FoldedAcc(const float* acc, const float* more, Float of_into, Float of_from) {
    return V::Fma(V::Load(acc), of_into, V::Mul(V::Add(V::Load(more), V::Zero()), of_from));
  }
};

}  // namespace
}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_PARTIAL_ROWS_H_
