#include "kernels/cpu/attention_page.h"
#include "kernels/isa.h"
#include "numa/check.h"

namespace fastdecode {

AttentionKernels SelectAttention(Isa isa, const AttentionShape& shape) {
  FD_CHECK(isa != Isa::kNone && isa <= DetectIsa(), "the ISA is one that this machine has");
  FD_CHECK(shape.head_dim >= 16 && shape.head_dim <= 256 && shape.head_dim % 16 == 0, "head_dim is 16, 32, ... 256");
  FD_CHECK(shape.group >= 1, "query heads share a KV head");
  FD_CHECK(shape.kv_heads >= 1 && shape.sliding_window >= 0 && shape.soft_cap >= 0, "a shape has no negative sizes");
  const bool avx2 = isa == Isa::kAvx2;
  switch (shape.kv_type) {
    case KvType::kF32:
      return avx2 ? Avx2F32Attention() : Avx512F32Attention();
    case KvType::kFp16:
      return avx2 ? Avx2Fp16Attention() : Avx512Fp16Attention();
    case KvType::kBf16:
      break;
  }
  // What multiplies pairs rounds the query to bf16: not where it comes in f32.
  if (isa == Isa::kAvx512Bf16 && shape.type == ElementType::kBf16) return Avx512Bf16Bf16Attention();
  return avx2 ? Avx2Bf16Attention() : Avx512Bf16Attention();
}

}  // namespace fastdecode
