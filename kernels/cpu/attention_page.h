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

// Elements from K's first panel to V's first, and from one head to the next.
inline constexpr int PageKElements(int head_dim) { return kPageTokens * head_dim; }
inline constexpr int PageHeadElements(int head_dim) { return 2 * kPageTokens * head_dim; }

// Bytes from K to the scales of k, those of v, and V, and from one head to the next, of int8.
inline constexpr int Int8KScales(int head_dim) { return kPageTokens * head_dim; }
inline constexpr int Int8VScales(int head_dim) { return Int8KScales(head_dim) + kPageTokens * 2; }
inline constexpr int Int8V(int head_dim) { return Int8VScales(head_dim) + kPageTokens * 2; }
inline constexpr int Int8HeadBytes(int head_dim) { return Int8V(head_dim) + kPageTokens * head_dim; }

// AppendFn for every ISA: a scatter of 2 * head_dim elements a token, small beside reading the context.
void AppendToPage(const AttentionShape& shape, const AppendArgs& args);

// Row-heads that a kernel takes at once, at most.
inline constexpr int kMaxTileRows = 16;

// The tables of each translation unit. Those of AVX512-BF16 and AVX512-VNNI are for bf16, and for what is quantised.
AttentionKernels Avx2Attention(KvType type);
AttentionKernels Avx512Attention(KvType type);
AttentionKernels Avx512Bf16Attention();
AttentionKernels Avx512VnniInt8Attention();

}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_ATTENTION_PAGE_H_
