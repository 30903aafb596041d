#ifndef FASTDECODE_KERNELS_CUDA_DISPATCH_CUH_
#define FASTDECODE_KERNELS_CUDA_DISPATCH_CUH_

// From the arguments of a kernel of step_kernels.h, which name types, to its instance for these types. For whoever
// launches kernels, on a GPU or on emulated threads.

#include "kernels/cuda/join_kernels.cuh"
#include "kernels/cuda/model_kernels.cuh"
#include "kernels/cuda/step_kernels.cuh"
#include "kernels/cuda/with_types.cuh"

namespace fastdecode {

// Dispatch(args, use): use(kernel), the kernel being a void (*)(Args) for these arguments.

template <class Use>
auto Dispatch(const EmbedNormArgs& args, const Use& use) {
  const DeviceNorm& norm = args.norm;
  const bool has_rms_weights = norm.kind == RowNorm::Kind::kRms && norm.weight != nullptr && norm.bias == nullptr;
  const bool simple = has_rms_weights && args.scale == 1 && args.positions == nullptr;
  return WithComputeType(args.type, [&](auto t) {
    using T = typename decltype(t)::Type;
    return simple ? use(&simt::EmbedNorm<T>) : use(&simt::EmbedAndNorm<T>);
  });
}
template <class Use>
auto Dispatch(const BiasNormArgs& args, const Use& use) {
  return WithComputeType(args.type, [&](auto t) {
    using T = typename decltype(t)::Type;
    const bool holds = args.bucket <= kManyRows;
    if (args.bias != nullptr) return holds ? use(&simt::BiasNorm<T, true, true>) : use(&simt::BiasNorm<T, true, false>);
    return holds ? use(&simt::BiasNorm<T, false, true>) : use(&simt::BiasNorm<T, false, false>);
  });
}
template <class Use>
auto Dispatch(const JoinNormArgs& args, const Use& use) {
  return WithComputeType(args.type, [&](auto t) { return use(&simt::JoinNorm<typename decltype(t)::Type>); });
}
template <class Use>
auto Dispatch(const ActivateArgs& args, const Use& use) {
  return WithComputeType(args.type, [&](auto t) {
    using T = typename decltype(t)::Type;
    constexpr int kWidth = 16 / sizeof(T);
    const bool wide = ActivateWidth(args) == kWidth;
    if (!args.gated) return wide ? use(&simt::Activate<T, kWidth, false>) : use(&simt::Activate<T, 4, false>);
    if (args.activation == Activation::kSilu) return wide ? use(&simt::SwiGlu<T, kWidth>) : use(&simt::SwiGlu<T, 4>);
    return wide ? use(&simt::Activate<T, kWidth, true>) : use(&simt::Activate<T, 4, true>);
  });
}
template <class Use>
auto Dispatch(const QkNormArgs& args, const Use& use) {
  FD_CHECK(args.head_dim % 2 == 0 && args.head_dim <= kQkHeadDimMax, "heads of q and k have 2, 4, ... 256 dims");
  return WithComputeType(args.type, [&](auto t) { return use(&simt::QkNorm<typename decltype(t)::Type>); });
}
template <class Use>
auto Dispatch(const SoftCapArgs&, const Use& use) {
  return use(&simt::SoftCap);
}
template <class Use>
auto Dispatch(const GatherLogitRowsArgs& args, const Use& use) {
  return WithComputeType(args.type, [&](auto t) { return use(&simt::GatherLogitRows<typename decltype(t)::Type>); });
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
  use(EmbedNormArgs) use(BiasNormArgs) use(JoinNormArgs) use(ActivateArgs) use(QkNormArgs) use(RopeSendArgs) \
      use(WaitArgs) use(GatherOutputsArgs) use(GatherLogitRowsArgs) use(SoftCapArgs) use(PublishArgs)

#endif  // FASTDECODE_KERNELS_CUDA_DISPATCH_CUH_
