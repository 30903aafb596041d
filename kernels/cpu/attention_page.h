#ifndef FASTDECODE_KERNELS_CPU_ATTENTION_PAGE_H_
#define FASTDECODE_KERNELS_CPU_ATTENTION_PAGE_H_

#include "kernels/attention.h"

namespace fastdecode {

// Inside a page. Its KV heads lie one after the other. A head is a row of *panels*; a panel is a matrix [steps][16 lanes]
// whose steps are interleaved in pairs for bf16, so that one 64-byte line holds 2 steps, and a shift and a mask widen it:
//   f32 : [steps][16]          bf16: [steps/2][16][2]
// K is two panels, one for 16 tokens each: steps are dims, lanes are tokens.    f32 [2][D][16]   bf16 [2][D/2][16][2]
// V is D/16 panels, one for 16 dims each: steps are tokens, lanes are dims.     f32 [D/16][32][16]  bf16 [D/16][16][16][2]
// Both products of attention are then the same one, vector times panel, without a sum across lanes, and a page is read in
// strictly ascending order. The bf16 panels are also AMX and vdpbf16ps operands as they lie.
inline constexpr int kPanelLanes = 16;
inline constexpr int kPageKPanels = kPageTokens / kPanelLanes;

// Elements from K's first panel to V's first, and from one head to the next.
inline constexpr int PageKElements(int head_dim) { return kPageTokens * head_dim; }
inline constexpr int PageHeadElements(int head_dim) { return 2 * kPageTokens * head_dim; }

// AppendFn for every ISA: a scatter of 2 * head_dim elements a token, small beside reading the context.
void AppendF32(const AttentionShape& shape, const AppendArgs& args);
void AppendBf16(const AttentionShape& shape, const AppendArgs& args);

// The tables of each translation unit.
AttentionKernels Avx2F32Attention();
AttentionKernels Avx2Bf16Attention();
AttentionKernels Avx512F32Attention();
AttentionKernels Avx512Bf16Attention();

}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CPU_ATTENTION_PAGE_H_
