#include "kernels/cpu/attention_page.h"
#include "kernels/isa.h"
#include "numa/check.h"

namespace fastdecode {

AttentionKernels SelectAttention(Isa isa, const AttentionShape& shape) {
  FD_CHECK(isa != Isa::kNone && isa <= DetectIsa(), "the ISA is one that this machine has");
  FD_CHECK(shape.head_dim >= 16 && shape.head_dim <= 256 && shape.head_dim % 16 == 0, "head_dim is 16, 32, ... 256");
  FD_CHECK(shape.group >= 1, "query heads share a KV head");
  FD_CHECK(shape.kv_heads >= 1 && shape.sliding_window >= 0 && shape.soft_cap >= 0, "a shape has no negative sizes");
  const bool f32 = shape.type == ElementType::kF32;
  if (isa == Isa::kAvx2) return f32 ? Avx2F32Attention() : Avx2Bf16Attention();
  if (f32) return Avx512F32Attention();
  return isa == Isa::kAvx512 ? Avx512Bf16Attention() : Avx512Bf16Bf16Attention();
}

}  // namespace fastdecode
