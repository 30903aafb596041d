#include "kernels/cpu/attention_page.h"
#include "kernels/isa.h"
#include "numa/check.h"

namespace fastdecode {
namespace {

AttentionKernels KernelsOf(Isa isa, Prefetching prefetching, const AttentionShape& shape) {
#ifdef FASTDECODE_AVX2_ONLY
  return Avx2Attention(shape.kv_type);
#else
  // What multiplies pairs rounds the query to bf16: not where it comes in f32.
  const bool bf16 = shape.kv_type == KvType::kBf16 && shape.type == ElementType::kBf16;
  const bool bytes = shape.kv_type >= KvType::kInt8;
  if (isa >= Isa::kAmx) return AmxAttention(shape.kv_type, shape.type == ElementType::kBf16, shape.head_dim);
  if (isa >= Isa::kAvx512Bf16 && bf16) return Avx512Bf16Attention(prefetching);
  if (isa >= Isa::kAvx512Vnni && bytes) return Avx512VnniAttention(shape.kv_type, prefetching);
  return isa == Isa::kAvx2 ? Avx2Attention(shape.kv_type) : Avx512Attention(shape.kv_type, prefetching);
#endif
}

}  // namespace

AttentionKernels AttentionOf(Isa isa, Prefetching prefetching, const AttentionShape& shape) {
  FD_CHECK(shape.head_dim >= 16 && shape.head_dim <= 256 && shape.head_dim % 16 == 0, "head_dim is 16, 32, ... 256");
  FD_CHECK(shape.group >= 1, "query heads share a KV head");
  FD_CHECK(shape.kv_heads >= 1 && shape.sliding_window >= 0 && shape.soft_cap >= 0, "a shape has no negative sizes");
  AttentionKernels kernels = KernelsOf(isa, prefetching, shape);
#ifndef FASTDECODE_AVX2_ONLY
  // Who forces a lesser ISA wants no more than that. On Zen 5, where packing prefetches into L1, it was not measured,
  // and bf16 and fp16 on Zen 4 alone.
  const bool vbmi = isa >= Isa::kAvx512Vnni && prefetching != Prefetching::kZen5 && CpuHasVbmi();
  if (vbmi && shape.kv_type != KvType::kF32) kernels.append = &VbmiAppendToPage;
#endif
  return kernels;
}

AttentionKernels SelectAttention(Isa isa, const AttentionShape& shape) {
  FD_CHECK(isa != Isa::kNone && isa <= DetectIsa(), "the ISA is one that this machine has");
  return AttentionOf(isa, CpuIsZen5OrLater() ? Prefetching::kZen5 : Prefetching::kZen4, shape);
}

}  // namespace fastdecode
