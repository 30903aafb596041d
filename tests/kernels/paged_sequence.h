#ifndef FASTDECODE_TESTS_KERNELS_PAGED_SEQUENCE_H_
#define FASTDECODE_TESTS_KERNELS_PAGED_SEQUENCE_H_

#include <array>
#include <random>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "kernels/reference/attention_reference.h"

namespace fastdecode {

// Where a sequence's pages lie: anywhere, with gaps between them, or one behind the other.
enum class PageOrder { kShuffled, kAscending };

struct AttentionCase {
  ElementType type = ElementType::kF32;
  KvType kv_type = KvType::kF32;
  int head_dim = 64, group = 4, kv_heads = 1, context = 100, rows = 1, window = 0;
  float soft_cap = 0;
  float scale = 0;  // 0: 1/sqrt(head_dim)
  PageOrder order = PageOrder::kShuffled;
};
std::string Describe(const AttentionCase& c);

// Those of rows and of pages that kernels take.
struct TypePair {
  ElementType rows;
  KvType kv;
};
inline constexpr TypePair kTypePairs[] = {{ElementType::kF32, KvType::kF32},   {ElementType::kBf16, KvType::kBf16},
                                          {ElementType::kBf16, KvType::kFp16}, {ElementType::kF32, KvType::kFp16},
                                          {ElementType::kF32, KvType::kBf16},  {ElementType::kBf16, KvType::kF32},
                                          {ElementType::kBf16, KvType::kInt8}, {ElementType::kF32, KvType::kInt8},
                                          {ElementType::kBf16, KvType::kInt4}, {ElementType::kF32, KvType::kInt4}};

// To nearest even, as the format is defined. NaN of types with scales.
double RoundToKv(KvType type, double value);

// The outcome of attending to one KV head: partials of all blocks folded in ascending order, and the finished rows.
struct AttentionResult {
  std::vector<float> max, sum, acc;                     // [rows * group], acc with [head_dim]
  std::vector<std::byte> o;                             // [rows][group][head_dim] of the type
  bool operator==(const AttentionResult& other) const;  // bit for bit
};

enum class Folding { kInTheCall, kBehindIt };

// One random sequence: its tokens for the reference, the same in the kernels' element type, and pages full of NaN to
// append them to. The queries are the last `rows` tokens. Of int4 all open pages are kept.
class PagedSequence {
 public:
  PagedSequence(const AttentionCase& c, uint64_t seed);
  PagedSequence(const PagedSequence&) = delete;  // `held` refers to it
  PagedSequence& operator=(const PagedSequence&) = delete;

  // Doubles to the kernels' bytes again, after a change of `in`. The doubles become what the type of rows can hold.
  void Encode();
  // Appends tokens [first, first + count) of every KV head, page by page.
  void Append(const AttentionKernels& kernels, int first, int count);
  // All of them, a few at a time.
  void AppendInRandomPieces(const AttentionKernels& kernels, uint64_t seed);
  // Makes scores grow in the midst of a page, from token 300 on, so that what was accumulated is rescaled
  // there, by no more than leaves traces of it.
  void LetScoresGrow();
  // Forgets the pages: other page ids, unless they ascend, and this word all over. The default is NaN in all types.
  void ClearPages(uint64_t seed, uint32_t word = ~uint32_t{0});
  // Attends with rows [first_row, first_row + rows) to the first `context` tokens. Each block is told of the next one
  // and, where only blocks of kBlockTokens come, uses the queries of the one before; blocks are folded, and rows
  // finished, in the call, or behind it, and then they share nothing.
  AttentionResult Attend(const AttentionKernels& kernels, int kv_head, int first_row, int rows, int context,
                         Folding folding = Folding::kInTheCall) const;
  // The same for KV heads [first_head, first_head + heads) in one call.
  AttentionResult AttendHeads(const AttentionKernels& kernels, int first_head, int heads, int first_row, int rows,
                              int context, Folding folding = Folding::kInTheCall) const;

  // Of int4: the open page of its tokens from page * kPageTokens on.
  OpenPage OpenPageAt(int page) const;

  // What these kernels attend to: `held`, or for rows of prompts the numbers that pages hold, rounded to bf16, and q as
  // it came.
  const ReferenceAttentionInput& HeldFor(const AttentionKernels& kernels) const;
  // What errors are shares of, for kernels that attend to the same: per element of the reference's o, but for scores.
  struct ErrorTerms {
    std::vector<double> o;        // attention over |v|
    std::vector<double> scores;   // [rows][heads]: the largest sum of |q_d k_d|, scaled
    std::vector<double> weights;  // what rounding p times v's scale makes
  };
  ErrorTerms FindErrorTerms(const AttentionKernels& kernels) const;
  // The error that f32 arithmetic, and probabilities rounded by p_rounding, may make in acc / sum, per element of the
  // reference's o.
  std::vector<double> ErrorBound(const ErrorTerms& terms, double p_rounding) const;

  AttentionShape shape;
  ReferenceAttentionInput in;
  ReferenceAttentionInput held;  // the same with k and v as pages hold them, and q as it is multiplied by them
  const PageOrder order;
  std::vector<std::byte> pages;  // page after page, with a gap between them if they are shuffled
  size_t page_stride_bytes = 0;
  std::vector<uint32_t> page_ids;
  // Where it is cut: at multiples of this, which is one of kPageTokens and no more than kBlockTokens.
  int block_tokens = kBlockTokens;

 private:
  // A code c stands for scale * c + offset.
  struct CodeRange {
    double offset = 0, scale = 0;
    double minimum = 0, integer = 0;  // of int4's K: the offset in scales, and the scale in units
  };

  void HoldInt8();
  void HoldInt4();
  double Int4Dot(int row, int head, int token) const;
  bool IsOpen(int row, int token) const;
  AttentionResult AttendRows(const AttentionKernels& kernels, int first_head, int heads, int first_row, int rows,
                             int context, Folding folding) const;
  std::vector<double> WeightRounding() const;
  double KMagnitude(const ReferenceAttentionInput& of, size_t element) const;
  double VMagnitude(const ReferenceAttentionInput& of, size_t element) const;
  const CodeRange& VCode(size_t token_head, size_t dim) const;
  const std::byte* Element(const std::vector<std::byte>& bytes, size_t index) const;

  std::vector<std::byte> q_, k_, v_;     // as in `in`
  ReferenceAttentionInput for_prompts_;  // of int8 and int4
  std::vector<double> open_k_, open_v_;  // of int4: as in `in`, but bf16
  std::vector<CodeRange> k_codes_;       // of int4: [full pages][kv_heads][head_dim]
  std::vector<double> codes_of_k_;       // of int4: of each element, 0 in a page that is not full
  std::vector<CodeRange> v_codes_;       // of int8: [context][kv_heads], of int4: that [groups]
  mutable std::vector<std::byte> open_pages_;
  mutable std::array<int, 3> rounded_of_ = {-1, -1, -1};  // row, head, page
  mutable std::vector<double> rounded_;                   // its query, as codes are multiplied by it
  mutable double rounded_rest_ = 0;                       // and its product with the minima
};

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_KERNELS_PAGED_SEQUENCE_H_
