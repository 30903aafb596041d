#ifndef FASTDECODE_KERNELS_CPU_ATTENTION_PAGE_H_
#define FASTDECODE_KERNELS_CPU_ATTENTION_PAGE_H_

#include "kernels/attention.h"

namespace fastdecode {

// Inside a page. Its KV heads lie one after the other. A head is a row of *panels*. A panel is a matrix [steps][16],
// for bf16 with its steps interleaved in pairs: a 64-byte line holds two steps, and a shift and a mask widen it.
//                                                             f32, fp16         bf16
//   K: 2 panels of 16 tokens. Steps are dims, lanes tokens.   [2][D][16]        [2][D/2][16][2]
//   V: D/16 panels of 16 dims. Steps are tokens, lanes dims.  [D/16][32][16]    [D/16][16][16][2]
// Both products of attention are then the same one, vector times panel, with no sum across lanes, and a page is read in
// strictly ascending order. The bf16 panels are AMX and vdpbf16ps operands as they lie.
inline constexpr int kPanelLanes = 16;
inline constexpr int kPageKPanels = kPageTokens / kPanelLanes;

// int8: in quads of 4 steps, so that a line holds four steps of 16 lanes. Each token has a scale for its k and one for
// its v, in bf16, rounded up: a code is round(x / scale), the scale being that of the largest |x| / 127.
//   K: [2][D/4][16][4] codes + 128, unsigned   then the scales of k [32] and of v [32]   V: [D/16][8][16][4] codes
// A token whose k or v has a NaN has NaN for the scale of k.
//
// int4 (KIVI, Liu et al. 2024): two quads a line, in the low and the high halves of its bytes. In K each dim has a
// scale and a minimum for the page's 32 tokens, in V each token has them for each group of up to 64 dims. Scales are
// integers, rounded up, times a unit that K's dims or a group's tokens share (Int4Units): so they are multiplied as
// they lie. Minima of K are multiples of their dim's scale, within half of it, or a little more, of the least element;
// minima of V are that, in bf16. A code is round(x / scale - minimum / scale) with the scale's inverse in float, where
// a number about halfway may go either way (page_codes.h). -0 is less than +0.
//   K: [2][D/8][16][4]   then scales [D] and minima [D], in 16 bits
//   then for each group of V: scales [32] in 8 bits, Int4Units, and minima [32]    V: [D/16][4][16][4]
// A token whose k or v has a NaN has NaN for its minima. Tokens are appended to an open page, and when that is full, it
// is closed. A KV head of a piece of it: [kOpenPieceTokens][k, v][D], in bf16.

// Elements from K's first panel to V's first, and from one head to the next.
inline constexpr int PageKElements(int head_dim) { return kPageTokens * head_dim; }
inline constexpr int PageHeadElements(int head_dim) { return 2 * kPageTokens * head_dim; }

// Bytes from K to the scales of k, those of v, and V, and from one head to the next, of int8.
inline constexpr int Int8KScales(int head_dim) { return kPageTokens * head_dim; }
inline constexpr int Int8VScales(int head_dim) { return Int8KScales(head_dim) + kPageTokens * 2; }
inline constexpr int Int8V(int head_dim) { return Int8VScales(head_dim) + kPageTokens * 2; }
inline constexpr int Int8HeadBytes(int head_dim) { return Int8V(head_dim) + kPageTokens * head_dim; }

// The same of int4.
inline constexpr int kInt4GroupDims = 64;
inline constexpr int Int4Groups(int head_dim) { return (head_dim + kInt4GroupDims - 1) / kInt4GroupDims; }
inline constexpr int Int4KScales(int head_dim) { return kPageTokens * head_dim / 2; }
inline constexpr int Int4VScales(int head_dim) { return Int4KScales(head_dim) + 4 * head_dim; }
inline constexpr int Int4VUnits(int head_dim) { return Int4VScales(head_dim) + kPageTokens; }
inline constexpr int Int4VMinima(int head_dim) { return Int4VScales(head_dim) + 2 * kPageTokens; }
inline constexpr int kInt4GroupBytes = 4 * kPageTokens;  // from one group of V to the next: scales, units, minima
inline constexpr int Int4V(int head_dim) { return Int4VScales(head_dim) + Int4Groups(head_dim) * kInt4GroupBytes; }
inline constexpr int Int4HeadBytes(int head_dim) { return Int4V(head_dim) + kPageTokens * head_dim / 2; }
inline constexpr int OpenTokenBytes(int head_dim) { return 2 * head_dim * static_cast<int>(sizeof(Bf16)); }
// A token's k, and v behind it.
inline std::byte* OpenTokenAt(int head_dim, const OpenPage& page, int kv_head, int token) {
  return page.pieces[token / kOpenPieceTokens] + static_cast<size_t>(kv_head) * page.head_stride_bytes +
         token % kOpenPieceTokens * OpenTokenBytes(head_dim);
}
static_assert(kOpenPieceTokens * OpenTokenBytes(16) <= Int4HeadBytes(16) && Int4HeadBytes(16) % 64 == 0 &&
                  kOpenPieceTokens * OpenTokenBytes(256) <= Int4HeadBytes(256),
              "a piece's head has room in a head of int4, which begins at a cache line");

// The largest integers. Of K the products of two add up in 32 bits (int4_kv.h).
inline constexpr int kInt4KScaleMax = 32767, kInt4KMinimumMax = 4095, kInt4VScaleMax = 255;
// Of a group of V, and, the first group's, of K.
struct Int4Units {
  float v_scale, k_scale;
  uint32_t unused[6];
};
static_assert(sizeof(Int4Units) == kPageTokens);

// A query for such pages: words [D], filled up, and a line with its unit.
inline constexpr int Int4QueryWords(int head_dim) { return (head_dim + 63) / 64 * 64; }
inline constexpr int Int4QueryBytes(int head_dim) { return Int4QueryWords(head_dim) * 2 + 64; }

// AppendFn for every ISA, and for CPUs with AVX512-VBMI and -VBMI2.
void AppendToPage(const AttentionShape& shape, const AppendArgs& args);
void VbmiAppendToPage(const AttentionShape& shape, const AppendArgs& args);

// What AppendToPage and ClosePage do, with AVX2, which is the least ISA. `rows` is a KV head of an open page, its
// pieces one behind the other.
void Avx2AppendToPage(const AttentionShape& shape, const AppendArgs& args);
void Avx2CloseHead(int head_dim, const std::byte* rows, uint8_t* head);
// So many tokens of a KV head of an open page to panels of bf16. What is behind them stays, but that K's lanes up to
// the panel's last one may be anything afterwards, and V's second step of a pair is zero if the first is the last
// token.
void Avx2PackOpenHead(int head_dim, int tokens, const OpenPage& from, int kv_head, std::byte* to);
// Of these K alone.
void Avx2PackOpenK(int head_dim, int tokens, const OpenPage& from, int kv_head, std::byte* to);
// Of AppendToPage what is most of a prompt's chunks: whole pages of all types but f32, rows of bf16, heads of a
// multiple of 64. False for all else, where an element becomes none that is finite (but for bf16), and where an int8
// token's scale is below 2^-64: nothing of use is written then.
bool Avx512VbmiPackPage(const AttentionShape& shape, const AppendArgs& args);

// Row-heads that a kernel takes at once, at most.
inline constexpr int kMaxTileRows = 16;

// Of TileBlock (amx_blocks.h): the queries of a call's row-heads, and of as many more as the last one's pass has; and
// of 32 row-heads scores of three pages, or later acc, p of a block, sums and bases.
constexpr int TileBlockQueryBytes(int row_heads, int head_dim) {
  return (row_heads + 2 * kMaxTileRows - 1) * head_dim * 2;
}
constexpr int TileBlockScratchBytes(int head_dim) {
  const int floats = head_dim > 3 * kPageTokens ? head_dim : 3 * kPageTokens;
  return 2 * kMaxTileRows * (floats * 4 + kBlockTokens * 2 + kPanelLanes * 4 + 8);
}

// Rows of prompts: from a thread's scratch to a block's pages of one KV head in bf16, which lie behind what the kernel
// for those takes.
size_t UnpackedPagesAt(const AttentionShape& shape);

// Whose cores are told of what is read next in the way that they gain most from, where kernels leave a choice: AMX's
// know theirs, AVX2's have one, and so have AVX-512's for int8 and int4 without VNNI. Packing depends on it, too. No
// bit does.
enum class Prefetching { kZen4, kZen5 };
inline constexpr Prefetching kPrefetchings[] = {Prefetching::kZen4, Prefetching::kZen5};

// The tables of each translation unit. Those of AVX512-BF16 are for bf16, of AVX512-VNNI for int8 and int4. AMX's
// are for all: tiles multiply int8 and, where rows are in bf16, bf16, and prompts of int8 and int4.
AttentionKernels Avx2Attention(KvType type);
AttentionKernels Avx512Attention(KvType type, Prefetching prefetching);
AttentionKernels Avx512Bf16Attention(Prefetching prefetching);
AttentionKernels Avx512VnniAttention(KvType type, Prefetching prefetching);
AttentionKernels AmxAttention(KvType type, bool bf16_rows, int head_dim);

// SelectAttention for an ISA that this machine may lack: its instructions may then be trapped and executed for it.
enum class Isa;
AttentionKernels AttentionOf(Isa isa, Prefetching prefetching, const AttentionShape& shape);

}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_ATTENTION_PAGE_H_
