#ifndef FASTDECODE_KERNELS_ATTENTION_H_
#define FASTDECODE_KERNELS_ATTENTION_H_

#include <cstddef>
#include <cstdint>

#include "kernels/float_types.h"

namespace fastdecode {

inline constexpr int kPageTokens = 32;    // tokens of one page
inline constexpr int kBlockTokens = 512;  // a block: the unit that yields one partial; cuts lie only at its multiples
inline constexpr int kBlockPages = kBlockTokens / kPageTokens;

// The attention of one layer group. head_dim is padded to a multiple of 16 (pad elements are zero in q, k and v).
struct AttentionShape {
  ElementType type = ElementType::kF32;  // of q, k, v, o rows
  KvType kv_type = KvType::kF32;         // of the KV pages
  int kv_heads = 0;
  int group = 0;           // query heads per KV head
  int head_dim = 0;        // padded, 16..256
  float scale = 0;         // applied to q·k, 1/sqrt(unpadded head_dim)
  float soft_cap = 0;      // cap*tanh(score/cap) if > 0
  int sliding_window = 0;  // positions that a query sees, its own included; 0 = all
};

// K and V of one page (32 tokens) of one layer, all KV heads: what lies where inside is the kernels' own business.
// Nothing outside kernels/ looks into a page.
size_t PageBytes(const AttentionShape& shape);

// int4 alone: K has scales for each dim of a page, so that a page can be rounded only when it is full. Until then its
// tokens are in an open page, as rows of bf16, in pieces of kOpenPieceTokens: each lies in a page of its own, a KV head
// where that page's own head would. Rows see the page of their own position as an open one and all earlier pages
// closed, in whatever portions they come: then no result depends on these portions.
inline constexpr int kOpenPieces = 4;
inline constexpr int kOpenPieceTokens = kPageTokens / kOpenPieces;
struct OpenPage {
  std::byte* pieces[kOpenPieces];  // of KV head 0; aligned to 64 bytes. Read whole; null: it has no such tokens
  size_t head_stride_bytes;        // to the next KV head's
};
inline bool HasOpenPages(const AttentionShape& shape) { return shape.kv_type == KvType::kInt4; }
// Of one KV head's piece: at most what a head takes of a closed page. 0 where there are no open pages.
size_t OpenPieceBytes(const AttentionShape& shape);
// Rounds one KV head of a full open page into a page.
void ClosePage(const AttentionShape& shape, int kv_head, const OpenPage& open, std::byte* page);
// The other way round, for a sequence that is cut back into a page, to so many tokens: what was lost stays so.
void ReopenPage(const AttentionShape& shape, int kv_head, const std::byte* page, int tokens, const OpenPage& open);

// Writes K and V of `tokens` consecutive tokens into slots first_slot.. of one page, one KV head. When it writes slot 0
// of a page that is no open one it zero-fills the rest of that head's page first, so that no stale bit can be read as
// NaN: never write slot 0 again while later slots hold tokens that count. Otherwise writing the same token twice
// changes nothing.
// Elements are rounded to shape.kv_type, to nearest even; what is beyond its largest number becomes that, but an
// infinity in rows of the type that the page keeps stays one. How int8 and int4 round is said in cpu/attention_page.h.
// With int4 the page is an open one, or a closed one that the tokens fill. k and v point at the first token's head
// (head_dim elements of shape.type); the next token lies row_stride_bytes on.
struct AppendArgs {
  std::byte* page;
  const OpenPage* open_page;  // int4: instead; null if the tokens fill a page
  int kv_head;
  int first_slot;  // 0..31
  int tokens;      // first_slot + tokens <= 32
  const std::byte* k;
  const std::byte* v;
  size_t row_stride_bytes;
  // What the thread appends next, as many rows as far apart, their v as far behind k: prefetched. Null: not known.
  const std::byte* next_k = nullptr;
  // Where tokens fill a page whose heads the thread appends one after the other, and then those of another page: the k
  // of that one's first row and KV head 0. Null: it does not, or not known.
  const std::byte* next_page_k = nullptr;
};
// Whole pages, and the results of chunks, are stored past the caches: a thread calls this before it tells another one
// of them.
void EndStreams();

// Unnormalised attention over one block, for each (KV head, row, query head of its group): a base m, sum l of
// exp(score - m), and acc = sum of exp(score - m) * v. m is in units of log2, score * log2(e), and that of some visible
// token: kMaxLag below the largest at most, so that it changes rarely. One that sees no token of the block gets m =
// -inf, l = 0, acc = 0; one that sees some has l >= 1. A NaN in q gives NaN in its own l alone, and acc in no other.
// Index: (h * rows + r) * group + g, h counting the KV heads from the first; acc is [that many][head_dim].
inline constexpr float kMaxLag = 8;
struct Partial {
  float* max;
  float* sum;
  float* acc;
};

// What a thread appends to before it attends to what comes next, for prefetching: some KV heads of the page of the last
// token, or with int4 of the open one, and how many tokens that has then.
struct NextAppend {
  const std::byte* page = nullptr;  // of KV head 0
  OpenPage open = {};               // int4: instead
  int first_head = 0, heads = 0;
  int tokens = 0;
};

// One block of one sequence's KV, some of its KV heads, against `rows` query rows of that sequence. Page by page, and
// in it head by head, in ascending order of addresses, if the pages are; for rows of prompts head by head. Row r is the
// token at first_row_position + r; it sees positions p with p <= its own, and p > own - sliding_window. Results depend
// only on (row's q, its position, the KV of the block): not on `rows`, `heads`, threads or neighbours, bit for bit; nor
// on tokens that the row does not see, as long as their v is finite. With int4 the tokens of a closed page share
// scales: those of it that a window hides must be finite, and have a say in how the others are rounded.
struct AttendArgs {
  const std::byte* layer_base;  // page p of this layer lies at layer_base + p * page_stride_bytes
  size_t page_stride_bytes;
  const uint32_t* page_ids;  // of this block, ceil(tokens / 32)
  // int4: [page of the first row .. page of the last], of which those in this block are set; null if none is in it. Up
  // to kMaxAttendRows rows are in one page, but for kernels with many_prompt_rows.
  const OpenPage* open_pages;
  int first_head;  // KV heads [first_head, first_head + heads)
  int heads;
  int first_position;  // of the block's first token: a multiple of kBlockTokens
  int tokens;          // stored in this block, 1..kBlockTokens
  const std::byte* q;  // [rows][heads][group][head_dim], rows q_row_stride_bytes apart, already rotated
  size_t q_row_stride_bytes;
  int rows;  // 1..kMaxAttendRows, or MaxPromptRows (many_prompt_rows), or 1..kMaxRowsOfHeads of several heads
  int first_row_position;
  // Whether q, rows, heads and first_row_position are those of the last call with this scratch: what became of its
  // queries is used again.
  bool same_queries = false;
  // What the thread attends to afterwards, for prefetching: a page's first KV head, and the numbers of that page and of
  // those behind it that are not in a cache; and other rows' q, if they follow, as far apart as these. Null and 0: not
  // known.
  const std::byte* next;
  const uint32_t* next_page_ids = nullptr;
  int next_pages = 0;
  const std::byte* next_q = nullptr;
  int next_rows = 0;
  const NextAppend* next_append = nullptr;  // null: none, or not known; kernels for many rows of a head do without
  // The block's partial goes to `out`. If there is an `into`, it is folded into that instead. If there is an `o`, what
  // came of it is finished to there instead: FoldFn, FinishFn. Partials passed over so hold nothing afterwards.
  Partial out;
  Partial into = {};
  std::byte* o = nullptr;
  size_t o_row_stride_bytes = 0;
  std::byte* scratch;  // AttendScratchBytes(shape), 64-byte aligned, private to the thread
};

inline constexpr int kMaxAttendRows = 32;  // of one KV head
inline constexpr int kMaxRowsOfHeads = 8;  // of several
// Of one KV head and a prompt, for kernels that gain from it: whole pages, 512 row-heads if these are as many.
inline constexpr int kMaxPromptPages = 512 / kPageTokens;
inline int MaxPromptRows(const AttentionShape& shape) {
  const int pages = kMaxPromptPages / shape.group;
  return (pages > 1 ? pages : 1) * kPageTokens;
}
size_t AttendScratchBytes(const AttentionShape& shape);

// Folds `from` into `into` (n = rows * group entries of head_dim). Partials of a row are folded in ascending block
// order by whoever does it, so that the result is one fixed sequence of operations. Folding an empty partial changes no
// bit.
using FoldFn = void (*)(const AttentionShape& shape, const Partial& into, const Partial& from, int n);

// o[r][h][g] = acc * (1 / l) in shape.type: rows o_row_stride_bytes apart, the heads of a row contiguous. l = 0 gives
// zeros.
using FinishFn = void (*)(const AttentionShape& shape, const Partial& from, int heads, int rows, std::byte* o,
                          size_t o_row_stride_bytes);
using AppendFn = void (*)(const AttentionShape& shape, const AppendArgs& args);
using AttendFn = void (*)(const AttentionShape& shape, const AttendArgs& args);

// What attending to a token of one KV head costs a thread, in a unit that the kernels of a set have in common: a core
// reads some 15 to 27 GB/s, and does some 100 to 235 GFLOP/s without tiles. A row-head (rows * group) needs 1 flop a
// byte (bf16).
struct AttendCost {
  int read = 8;          // of waiting for K and V, and of unpacking them
  int row_head = 1;      // of the arithmetic of each
  bool adds_up = false;  // the arithmetic waits as well; else both go on at once, and the larger one counts
};

// The kernels of one ISA for one shape. Of one KV type, those with the same p_rounding give the same bits. For int8 q
// is rounded to 127ths of its largest element, for int4 page by page times K's scales, and p times the scale of v to
// 255ths of the largest in a page, for int4 of the largest p times the largest scale.
//
// Rows of prompts may have a kernel of their own, for int8 and int4 where many rows make up for unpacking pages: each
// number that a page holds is rounded to bf16, and multiplied by q and p in bf16. A row's results then depend on which
// of the two it was given to, and so on what it is, never on how many come together.
// Plain function pointers, chosen once at start.
struct AttentionKernels {
  const char* name = nullptr;  // such as "avx512-bf16"
  AppendFn append = nullptr;
  AttendFn attend = nullptr;
  FoldFn fold = nullptr;
  FinishFn finish = nullptr;
  // Relative error at most of exp(score - m), in l as in acc, besides f32's own and the rounding of weights just said.
  float p_rounding = 0;
  AttendCost cost = {};
  struct Prompts {
    AttendFn attend = nullptr;  // null: `attend`, as for all others
    float p_rounding = 0;
    AttendCost cost = {};
  } prompts = {};

  bool many_prompt_rows = false;  // whether AttendFor(true) takes MaxPromptRows of a head, and not kMaxAttendRows

  bool HasPrompts() const { return prompts.attend != nullptr; }
  AttendFn AttendFor(bool of_prompt) const { return of_prompt && HasPrompts() ? prompts.attend : attend; }
  const AttendCost& CostFor(bool of_prompt) const { return of_prompt && HasPrompts() ? prompts.cost : cost; }
};

}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_ATTENTION_H_
