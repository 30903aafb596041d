#ifndef FASTDECODE_KERNELS_CUDA_KV_CODEC_CUH_
#define FASTDECODE_KERNELS_CUDA_KV_CODEC_CUH_

// What the KV types of a page mean (kv_pages.h), how a page is found, and what comes of what it holds.

#include "kernels/cuda/kv_pages.h"
#include "kernels/cuda/simt.h"

namespace fastdecode::simt {

template <class T>
struct PlainKv {
  using Element = T;
  static constexpr KvType kType = std::is_same_v<T, float>  ? KvType::kF32
                                  : std::is_same_v<T, Bf16> ? KvType::kBf16
                                                            : KvType::kFp16;
  static constexpr bool kScaled = false;
  FD_DEVICE static float Widen(T element) { return ToFloat(element); }
};

struct CodedKv {
  using Element = uint8_t;
  static constexpr KvType kType = KvType::kInt8;
  static constexpr bool kScaled = true;
  // 2^23 + code has the bits of 2^23 and the code: cheaper than a conversion.
  FD_DEVICE static float Widen(uint8_t code) { return FloatOfBits(0x4b000000u | code) - 8388736.0f; }
  // |x * per_unit| <= 127. The last bit of 1.5 * 2^23 + x is worth 1.
  FD_DEVICE static uint8_t Code(float x, float scale) {
    const float shifted = (scale > 0 ? x / scale : 0) + 12582912.0f;
    return static_cast<uint8_t>(BitsOf(shifted) + 128);
  }
  // Of a token's k or v whose largest magnitude this is; NaN if it is no finite number.
  FD_DEVICE static Bf16 Scale(float largest) {
    if (!(largest <= 3.0e38f)) return 0x7fc0;
    return static_cast<Bf16>((BitsOf(largest / 127) + 0xffff) >> 16);
  }
};

// Two neighbouring dims of a query.
struct DimPair {
  float v[2];
};

// One KV head of a page.
FD_DEVICE std::byte* HeadOf(const KvPages& pages, uint32_t page, unsigned kv_head) {
  return pages.layer + page * pages.page_stride_bytes + kv_head * GpuHeadBytes(pages.type, pages.head_dim);
}

}  // namespace fastdecode::simt

#endif  // FASTDECODE_KERNELS_CUDA_KV_CODEC_CUH_
