#ifndef FASTDECODE_KERNELS_CUDA_ATTENTION_DISPATCH_CUH_
#define FASTDECODE_KERNELS_CUDA_ATTENTION_DISPATCH_CUH_

// As dispatch.cuh, for the kernels of attention_kernels.h.

#include "kernels/cuda/attend_kernel.cuh"
#include "kernels/cuda/attend_read.cuh"
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

template <class Operands, int kTiles, class Use>
auto DispatchReading(const AttendKvArgs& args, const Use& use) {
  const int head_dim = args.pages.head_dim;
  if (head_dim == 64) return use(&simt::AttendKvReading<Operands, 64, true, kTiles>);
  if (head_dim == 128) return use(&simt::AttendKvReading<Operands, 128, true, kTiles>);
  if (head_dim < 128) return use(&simt::AttendKvReading<Operands, 128, false, kTiles>);
  FD_CHECK(kTiles == 1, "longer heads have smaller tiles");
  return use(&simt::AttendKvReading<Operands, 256, false, 1>);
}
template <class Operands, class Use>
auto DispatchTensorCores(const AttendKvArgs& args, const Use& use) {
  const int head_dim = args.pages.head_dim;
  if (args.split.tile_queries == 8) return DispatchReading<Operands, 1>(args, use);
  if (args.split.tile_queries == kReadQueriesMax) return DispatchReading<Operands, 2>(args, use);
  FD_CHECK(args.split.tile_queries == kChunkQueries && head_dim <= 128, "as many queries as tiles have");
  if (head_dim == 64) return use(&simt::AttendKvTiles<Operands, 64, true>);
  if (head_dim == 128) return use(&simt::AttendKvTiles<Operands, 128, true>);
  return use(&simt::AttendKvTiles<Operands, 128, false>);
}

template <class Use>
auto Dispatch(const AttendKvArgs& args, const Use& use) {
  if (args.tensor_cores) {
    switch (args.pages.type) {
      case KvType::kBf16:
        return DispatchTensorCores<simt::PlainOperands<Bf16>>(args, use);
      case KvType::kFp16:
        return DispatchTensorCores<simt::PlainOperands<Fp16>>(args, use);
      default:
        FD_CHECK(args.pages.type == KvType::kInt8, "KV that tensor cores do not attend to");
        return DispatchTensorCores<simt::CodedOperands>(args, use);
    }
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
