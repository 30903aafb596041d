#ifndef FASTDECODE_KERNELS_CUDA_TENSOR_OPERANDS_CUH_
#define FASTDECODE_KERNELS_CUDA_TENSOR_OPERANDS_CUH_

// How K and V of a page, in shared memory, come into products of simt_tensor.h: 16 tokens at a time, in operands of 16
// dims. Dims take whatever places make that cheap; a query's have the same as K's, and DimOf tells those of sums.

#include "kernels/cuda/kv_codec.cuh"
#include "kernels/cuda/simt_tensor.h"

namespace fastdecode::simt {

// A row of K or V, as AttendLayout has it, from which a lane takes either the even chunks or the odd ones.
struct LaneRow {
  const std::byte* row;
  unsigned first;  // where its first chunk is, in bytes

  // Chunk `even` of the row, or the one behind it.
  FD_DEVICE const std::byte* At(unsigned even) const { return row + even / 8 * size_t{128} + (even % 8 * 16 ^ first); }
};

// Where 16 tokens' rows of K or V begin, as AttendLayout has them. Of the gap behind a row 16 bytes may be read, but
// not used.
struct TokenRows {
  const std::byte* first;
  size_t stride_bytes;
  size_t row_bytes;
  unsigned swizzle;

  // This lane's row of the four matrices [8][8] that LoadMatrices takes: two chunks of tokens 0 to 7, and of tokens 8
  // to 15.
  FD_DEVICE LaneRow ChunksFirst() const {
    const unsigned lane = Thread() % kWarp;
    return Row(lane / 16 * 8 + lane % 8, lane / 8 % 2);
  }
  // All 16 tokens' first chunk, and their second one.
  FD_DEVICE LaneRow TokensFirst() const {
    const unsigned lane = Thread() % kWarp;
    return Row(lane % 16, lane / 16);
  }

 private:
  FD_DEVICE LaneRow Row(unsigned token, unsigned chunk) const {
    return {first + token * stride_bytes, (chunk ^ (token & swizzle)) * 16};
  }
};

// What operands are of products: one left one, or two right ones. Either takes neighbouring registers, into which
// matrices come in this or that order.
enum class Operand { kLeft, kRight };

// Elements as they lie.
template <class T>
struct PlainOperands {
  using Kv = PlainKv<T>;
  using Type = T;

  // a[half + 2 * i] of operand k has this dim of a query and the next one. `column`: of the lane.
  FD_DEVICE static int QueryDim(int k, int i, int column) { return 16 * k + 8 * i + column; }

  // use(k, operand k of 16 tokens), as a left one: of a product's right ones [0] and [2] are tokens 0 to 7, [1] and [3]
  // tokens 8 to 15. kWhole: rows have all kOperands.
  template <Operand kOperand, bool kWhole, int kOperands, class Use>
  FD_DEVICE static void ForTokens(const TokenRows& k_rows, const Use& use) {
    const LaneRow mine = kOperand == Operand::kLeft ? k_rows.TokensFirst() : k_rows.ChunksFirst();
    FD_UNROLL(unroll)
    for (int k = 0; k < kOperands; ++k) {
      if (!kWhole && k * size_t{32} >= k_rows.row_bytes) break;
      uint32_t tokens[4];
      LoadMatrices(mine.At(2 * static_cast<unsigned>(k)), tokens);
      Give<kOperand>(k, tokens, use);
    }
  }
  // use(j, 16 dims of v, from 16 * j on, of 16 tokens), as a left operand whose rows are DimOf(j, h, row), h 0 and 1;
  // of a product's right ones [0] and [2] are for acc[2 * j], [1] and [3] for acc[2 * j + 1].
  template <Operand kOperand, bool kWhole, int kOperands, class Use>
  FD_DEVICE static void ForDims(const TokenRows& v_rows, const Use& use) {
    const LaneRow mine = kOperand == Operand::kLeft ? v_rows.ChunksFirst() : v_rows.TokensFirst();
    FD_UNROLL(unroll)
    for (int j = 0; j < kOperands; ++j) {
      if (!kWhole && j * size_t{32} >= v_rows.row_bytes) break;
      uint32_t dims[4];
      LoadMatricesTransposed(mine.At(2 * static_cast<unsigned>(j)), dims);
      Give<kOperand>(j, dims, use);
    }
  }
  FD_DEVICE static int DimOf(int j, unsigned h, int row) { return 16 * j + 8 * static_cast<int>(h) + row; }

  // What the lane has of acc in two neighbouring dims of the lane's row + 8 * half, and the first of these.
  FD_DEVICE static int DimOf(int n, int column) { return 8 * n + column; }
  template <int kAccs>
  FD_DEVICE static DimPair PairAt(const float (&acc)[kAccs][4], int n, unsigned half) {
    return {acc[n][2 * half], acc[n][2 * half + 1]};
  }

 private:
  template <Operand kOperand, class Use>
  FD_DEVICE static void Give(int number, const uint32_t (&loaded)[4], const Use& use) {
    if constexpr (kOperand == Operand::kLeft) {
      use(number, loaded);
    } else {
      use(number, {loaded[0], loaded[2], loaded[1], loaded[3]});
    }
  }
};

// Codes as fp16, which holds them exactly; scales are the caller's. A lane gets four neighbouring bytes of a token, or
// two of each of two, where it needs two and two: hence the other order of dims.
struct CodedOperands {
  using Kv = CodedKv;
  using Type = Fp16;

  FD_DEVICE static int QueryDim(int k, int i, int column) { return 16 * k + 2 * column + 2 * i; }

  template <Operand, bool kWhole, int kOperands, class Use>
  FD_DEVICE static void ForTokens(const TokenRows& k_rows, const Use& use) {
    const LaneRow mine = k_rows.ChunksFirst();
    FD_UNROLL(unroll)
    for (int k = 0; k < kOperands; k += 2) {
      if (!kWhole && k * size_t{16} >= k_rows.row_bytes) break;
      uint32_t codes[4];  // of operands k and k + 1 for tokens 0 to 7, and for 8 to 15
      LoadMatrices(mine.At(static_cast<unsigned>(k)), codes);
      FD_UNROLL(unroll)
      for (int i = 0; i < 2; ++i) {
        if (!kWhole && (k + i) * size_t{16} >= k_rows.row_bytes) break;
        use(k + i, {PairOfCodes<0, 1>(codes[i]), PairOfCodes<0, 1>(codes[2 + i]), PairOfCodes<2, 3>(codes[i]),
                    PairOfCodes<2, 3>(codes[2 + i])});
      }
    }
  }
  template <Operand, bool kWhole, int kOperands, class Use>
  FD_DEVICE static void ForDims(const TokenRows& v_rows, const Use& use) {
    const LaneRow mine = v_rows.TokensFirst();
    FD_UNROLL(unroll)
    for (int j = 0; j < kOperands; j += 2) {
      if (!kWhole && j * size_t{16} >= v_rows.row_bytes) break;
      uint32_t codes[4];  // of 16 dims for tokens 0 to 7 and 8 to 15, and of the next 16
      LoadMatricesTransposed(mine.At(static_cast<unsigned>(j)), codes);
      FD_UNROLL(unroll)
      for (int i = 0; i < 2; ++i) {
        if (!kWhole && (j + i) * size_t{16} >= v_rows.row_bytes) break;
        use(j + i, {PairOfCodes<0, 2>(codes[2 * i]), PairOfCodes<1, 3>(codes[2 * i]),
                    PairOfCodes<0, 2>(codes[2 * i + 1]), PairOfCodes<1, 3>(codes[2 * i + 1])});
      }
    }
  }
  FD_DEVICE static int DimOf(int j, unsigned h, int row) { return 16 * j + 2 * row + static_cast<int>(h); }

  // acc[n] has every other of 16 dims, acc[n + 1] those between.
  FD_DEVICE static int DimOf(int n, int column) { return n / 2 * 16 + 2 * column + n % 2 * 2; }
  template <int kAccs>
  FD_DEVICE static DimPair PairAt(const float (&acc)[kAccs][4], int n, unsigned half) {
    return {acc[n / 2 * 2][2 * half + n % 2], acc[n / 2 * 2 + 1][2 * half + n % 2]};
  }
};

}  // namespace fastdecode::simt

#endif  // FASTDECODE_KERNELS_CUDA_TENSOR_OPERANDS_CUH_
