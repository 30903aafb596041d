#ifndef FASTDECODE_KERNELS_CUDA_DISPATCH_CUH_
#define FASTDECODE_KERNELS_CUDA_DISPATCH_CUH_

// From the arguments of a kernel of step_kernels.h, which name types, to its instance for these types. For whoever
// launches kernels, on a GPU or on emulated threads.

#include "kernels/cuda/step_kernels.cuh"
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

// Dispatch(args, use): use(kernel), the kernel being a void (*)(Args) for these arguments.

template <class Use>
auto Dispatch(const EmbedNormArgs& args, const Use& use) {
  return WithComputeType(args.type, [&](auto t) { return use(&simt::EmbedNorm<typename decltype(t)::Type>); });
}
template <class Use>
auto Dispatch(const AddNormArgs& args, const Use& use) {
  return WithComputeType(args.type, [&](auto t) { return use(&simt::AddNorm<typename decltype(t)::Type>); });
}
template <class Use>
auto Dispatch(const SwiGluArgs& args, const Use& use) {
  return WithComputeType(args.type, [&](auto t) { return use(&simt::SwiGlu<typename decltype(t)::Type>); });
}
template <class Use>
auto Dispatch(const GatherLogitRowsArgs& args, const Use& use) {
  return WithComputeType(args.type, [&](auto t) { return use(&simt::GatherLogitRows<typename decltype(t)::Type>); });
}

// As use_types(Typed<T>(), Typed<W>()).
template <class Use>
auto WithTypes(ElementType type, ElementType wire, const Use& use_types) {
  return WithComputeType(type, [&](auto t) { return WithWireType(wire, [&](auto w) { return use_types(t, w); }); });
}
template <class Use>
auto Dispatch(const RopeSendArgs& args, const Use& use) {
  return WithTypes(args.type, args.wire.type, [&](auto t, auto w) {
    return use(&simt::RopeSend<typename decltype(t)::Type, typename decltype(w)::Type>);
  });
}
template <class Use>
auto Dispatch(const GatherOutputsArgs& args, const Use& use) {
  return WithTypes(args.type, args.wire.type, [&](auto t, auto w) {
    return use(&simt::GatherOutputs<typename decltype(t)::Type, typename decltype(w)::Type>);
  });
}

template <class Use>
auto Dispatch(const WaitArgs&, const Use& use) {
  return use(&simt::Wait);
}
template <class Use>
auto Dispatch(const PublishArgs&, const Use& use) {
  return use(&simt::Publish);
}

}  // namespace fastdecode

// What is done for the arguments of every kernel of step_kernels.h.
#define FD_FOR_STEP_KERNELS(use)                                                                             \
  use(EmbedNormArgs) use(AddNormArgs) use(SwiGluArgs) use(RopeSendArgs) use(WaitArgs) use(GatherOutputsArgs) \
      use(GatherLogitRowsArgs) use(PublishArgs)

#endif  // FASTDECODE_KERNELS_CUDA_DISPATCH_CUH_
