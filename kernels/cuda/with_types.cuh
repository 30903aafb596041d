#ifndef FASTDECODE_KERNELS_CUDA_WITH_TYPES_CUH_
#define FASTDECODE_KERNELS_CUDA_WITH_TYPES_CUH_

// From names of types to types, for whoever picks a kernel's instance.

#include "kernels/cuda/kv_codec.cuh"
#include "kernels/float_types.h"
#include "numa/check.h"

namespace fastdecode {

template <class T>
struct Typed {
  using Type = T;
};

// use(Typed<T>()), T being the compute type of that name.
template <class Use>
auto WithComputeType(ElementType type, const Use& use) {
  switch (type) {
    case ElementType::kF32:
      return use(Typed<float>());
    case ElementType::kBf16:
      return use(Typed<Bf16>());
    case ElementType::kFp16:
      return use(Typed<Fp16>());
  }
  FD_CHECK(false, "a compute type is f32, bf16 or fp16");
}

// The same with the type of rows on the wire.
template <class Use>
auto WithWireType(ElementType type, const Use& use) {
  FD_CHECK(type == ElementType::kF32 || type == ElementType::kBf16, "rows on the wire are f32 or bf16");
  return type == ElementType::kF32 ? use(Typed<float>()) : use(Typed<Bf16>());
}

// As use_types(Typed<T>(), Typed<W>()).
template <class Use>
auto WithTypes(ElementType type, ElementType wire, const Use& use_types) {
  return WithComputeType(type, [&](auto t) { return WithWireType(wire, [&](auto w) { return use_types(t, w); }); });
}

// use(Typed<Kv>()), Kv being what pages of that type are read by.
template <class Use>
auto WithKvType(KvType type, const Use& use) {
  switch (type) {
    case KvType::kF32:
      return use(Typed<simt::PlainKv<float>>());
    case KvType::kBf16:
      return use(Typed<simt::PlainKv<Bf16>>());
    case KvType::kFp16:
      return use(Typed<simt::PlainKv<Fp16>>());
    case KvType::kInt8:
      return use(Typed<simt::CodedKv>());
    case KvType::kInt4:
      break;
  }
  FD_CHECK(false, "a GPU holds no KV of this type");
}

}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_CUDA_WITH_TYPES_CUH_
