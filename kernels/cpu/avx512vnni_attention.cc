#include "kernels/cpu/attention_template.h"
#include "kernels/cpu/avx512vnni_vector.h"
#include "kernels/cpu/fma_dots.h"
#include "kernels/cpu/int4_kv.h"
#include "kernels/cpu/int8_kv.h"
#include "kernels/cpu/panel_kv.h"

namespace fastdecode {

AttentionKernels Avx512VnniAttention(KvType type) {
  if (type == KvType::kInt8) return Attention<Avx512VnniVector, Int8Kv<Avx512VnniVector>>::Kernels("avx512vnni-int8");
  return Attention<Avx512VnniVector, Int4Kv<Avx512VnniVector>, OpenPages<Avx512VnniVector>>::Kernels("avx512vnni-int4");
}

}  // namespace fastdecode
