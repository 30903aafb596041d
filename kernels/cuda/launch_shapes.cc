#include <algorithm>

#include "kernels/cuda/attend_layout.h"
#include "kernels/cuda/attention_kernels.h"
#include "kernels/cuda/sample_kernel.h"
#include "kernels/cuda/step_kernels.h"

namespace fastdecode {

namespace {

constexpr unsigned kWarp = 32;
constexpr unsigned kThreadsMax = 256;

// Enough threads for so many units of work, up to a block's most.
unsigned ThreadsFor(int units, unsigned most = kThreadsMax) {
  return std::clamp((static_cast<unsigned>(units) + kWarp - 1) / kWarp * kWarp, kWarp, most);
}

// A block a row, for elements that go by four.
LaunchShape BlockARow(unsigned bucket, int elements) {
  return {.blocks_x = bucket, .threads = ThreadsFor(elements / 4)};
}

// As that, with more threads once each has four such packs, and a float a warp for its sums.
LaunchShape NormShape(unsigned bucket, int hidden) {
  LaunchShape shape = BlockARow(bucket, hidden);
  shape.threads = std::max(shape.threads, ThreadsFor(hidden / 16, kNormThreadsMax));
  shape.shared_bytes = shape.threads / kWarp * static_cast<unsigned>(sizeof(float));
  return shape;
}

}  // namespace

LaunchShape ShapeOf(const EmbedNormArgs& args) {
  LaunchShape shape = NormShape(args.bucket, args.hidden);
  shape.shared_bytes += sizeof(TakenRow);
  return shape;
}
LaunchShape ShapeOf(const BiasNormArgs& args) { return NormShape(args.bucket, args.hidden); }
LaunchShape ShapeOf(const JoinNormArgs& args) { return NormShape(args.bucket, args.hidden); }
LaunchShape ShapeOf(const ActivateArgs& args) {
  const auto units = static_cast<unsigned>(args.intermediate / ActivateWidth(args));
  return {.blocks_x = args.bucket, .blocks_y = (units + kThreadsMax - 1) / kThreadsMax, .threads = kThreadsMax};
}
// A warp a head.
LaunchShape ShapeOf(const QkNormArgs& args) {
  const int heads = args.heads + 2 * args.kv_heads;
  LaunchShape shape = {.blocks_x = args.bucket,
                       .threads = ThreadsFor(heads * static_cast<int>(kWarp), kNormThreadsMax)};
  shape.shared_bytes = shape.threads / kWarp * static_cast<unsigned>(sizeof(float));
  return shape;
}
LaunchShape ShapeOf(const RopeSendArgs& args) {
  const int pairs = (args.wire.heads + 2 * args.wire.kv_heads) * args.wire.head_dim / 2;
  const int units = pairs / (args.type == ElementType::kF32 ? 4 : 8);
  // More rows than find room side by side: several units a thread, so that more of them do.
  const int of_thread = args.bucket > kManyRows ? 4 : 1;
  return {.blocks_x = args.bucket, .threads = ThreadsFor(units / of_thread, kSendThreadsMax)};
}
LaunchShape ShapeOf(const WaitArgs&) { return {}; }
LaunchShape ShapeOf(const GatherOutputsArgs& args) {
  return BlockARow(args.bucket, args.wire.heads * args.wire.head_dim);
}
LaunchShape ShapeOf(const GatherLogitRowsArgs& args) { return BlockARow(args.bucket, args.hidden); }
LaunchShape ShapeOf(const SoftCapArgs& args) {
  const auto packs = static_cast<unsigned>((args.vocab + 3) / 4);
  const unsigned of_block = kThreadsMax * kSoftCapPacks;
  return {.blocks_x = args.bucket, .blocks_y = (packs + of_block - 1) / of_block, .threads = kThreadsMax};
}
LaunchShape ShapeOf(const PublishArgs&) { return {}; }
LaunchShape ShapeOf(const SampleRowsArgs& args) {
  // More rows than find room side by side with so many threads each: half as many, so that two blocks do.
  const unsigned most = args.bucket > kManyRows / 2 ? kSampleThreadsMax / 2 : kSampleThreadsMax;
  return {
      .blocks_x = args.bucket, .threads = ThreadsFor((args.vocab + 3) / 4, most), .shared_bytes = kSampleSharedBytes};
}
LaunchShape ShapeOf(const TakeKvStepArgs&) {
  return {.threads = kThreadsMax, .shared_bytes = kThreadsMax / kWarp * static_cast<unsigned>(sizeof(uint32_t))};
}
LaunchShape ShapeOf(const AppendKvArgs& args) {
  return {.blocks_x = args.bucket, .threads = ThreadsFor(2 * args.wire.kv_heads * static_cast<int>(kWarp))};
}
LaunchShape ShapeOf(const AttendKvArgs& args) {
  const bool computes = args.split.tile_queries == kChunkQueries;
  const unsigned tensor_cores = computes ? AttendLayout::kComputes : AttendLayout::kReads;
  const AttendLayout layout(args.pages.type, args.pages.head_dim,
                            args.tensor_cores ? tensor_cores : args.split.tile_queries);
  return {.blocks_x = args.blocks, .threads = kAttendThreads, .shared_bytes = static_cast<unsigned>(layout.bytes)};
}

}  // namespace fastdecode
