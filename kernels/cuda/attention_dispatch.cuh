#ifndef FASTDECODE_KERNELS_CUDA_ATTENTION_DISPATCH_CUH_
#define FASTDECODE_KERNELS_CUDA_ATTENTION_DISPATCH_CUH_

// As dispatch.cuh, for the kernels of attention_kernels.h.

#include "kernels/cuda/attend_kernel.cuh"
#include "kernels/cuda/attend_tiles.cuh"
#include "kernels/cuda/attention_kernels.cuh"
#include "kernels/cuda/with_types.cuh"

namespace fastdecode {

template <class Use>
auto Dispatch(const TakeKvStepArgs&, const Use& use) {
  return use(&simt::TakeKvStep);
}
template <class Use>
auto Dispatch(const AppendKvArgs& args, const Use& use) {
  return WithWireType(args.wire.type, [&](auto w) { return use(&simt::AppendKv<typename decltype(w)::Type>); });
}

template <class T, class Use>
auto DispatchTensorCores(const AttendKvArgs& args, const Use& use) {
  if (args.pages.head_dim == 64) return use(&simt::AttendKvTiles<T, 64, true>);
  if (args.pages.head_dim == 128) return use(&simt::AttendKvTiles<T, 128, true>);
  return use(&simt::AttendKvTiles<T, 128, false>);
}

template <class Use>
auto Dispatch(const AttendKvArgs& args, const Use& use) {
  if (args.tensor_cores) {
    FD_CHECK(TensorCoresAttend(args.pages.type, args.pages.head_dim), "KV that tensor cores do not attend to");
    return args.pages.type == KvType::kBf16 ? DispatchTensorCores<Bf16>(args, use)
                                            : DispatchTensorCores<Fp16>(args, use);
  }
  return WithKvType(args.pages.type, [&](auto kv) {
    using Kv = typename decltype(kv)::Type;
    switch (args.thread_queries) {
      case 2:
        return use(&simt::AttendKv<Kv, 2>);
      case 4:
        return use(&simt::AttendKv<Kv, 4>);
      case 8:
        return use(&simt::AttendKv<Kv, 8>);
      default:
        FD_CHECK(args.thread_queries == 16, "thread_queries is 2, 4, 8 or 16");
        return use(&simt::AttendKv<Kv, 16>);
    }
  });
}

}  // namespace fastdecode

// What is done for the arguments of every kernel of attention_kernels.h.
#define FD_FOR_ATTENTION_KERNELS(use) use(TakeKvStepArgs) use(AppendKvArgs) use(AttendKvArgs)

#endif  // FASTDECODE_KERNELS_CUDA_ATTENTION_DISPATCH_CUH_
