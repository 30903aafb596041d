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

// Elements from K's first panel to V's first, and from one head to the next.
inline constexpr int PageKElements(int head_dim) { return kPageTokens * head_dim; }
inline constexpr int PageHeadElements(int head_dim) { return 2 * kPageTokens * head_dim; }

// AppendFn for every ISA: a scatter of 2 * head_dim elements a token, small beside reading the context.
void AppendToPage(const AttentionShape& shape, const AppendArgs& args);

// Row-heads that a kernel takes at once, at most.
inline constexpr int kMaxTileRows = 16;

// The tables of each translation unit.
AttentionKernels Avx2F32Attention();
AttentionKernels Avx2Bf16Attention();
AttentionKernels Avx2Fp16Attention();
AttentionKernels Avx512F32Attention();
AttentionKernels Avx512Bf16Attention();
AttentionKernels Avx512Fp16Attention();
AttentionKernels Avx512Bf16Bf16Attention();

}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_ATTENTION_PAGE_H_
