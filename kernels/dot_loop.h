#ifndef FASTDECODE_KERNELS_DOT_LOOP_H_
#define FASTDECODE_KERNELS_DOT_LOOP_H_

#include "kernels/isa.h"

namespace fastdecode {

// What an arithmetic-bound kernel is compared with: 12,000 (of tiles 4,000) of the best instruction that its ISA has
// for products of its type, one behind the other on registers, none of which waits for another.
struct DotLoop {
  const char* instruction;  // such as "vdpbf16ps zmm"
  double flop;              // of a run: products and sums
  void (*run)();
};

// That of the kernels that SelectAttention gives, for rows of prompts or others. REQUIRES: isa <= DetectIsa(). Thread:
// any runs it.
DotLoop SelectDotLoop(Isa isa, const AttentionShape& shape, bool of_prompts = false);

}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_DOT_LOOP_H_
