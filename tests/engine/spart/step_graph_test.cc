// What a step's graph is made of: its GEMMs are those that are measured alone, and who attends.
#include "engine/spart/cuda/step_graph.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/engine/spart/soft_device.h"

namespace fastdecode {
namespace {

// (type, out, n, k, rows, weights, adds)
using Gemm = std::tuple<ElementType, ElementType, int64_t, int64_t, unsigned, const void*, bool>;

// Keeps what is added to it.
class ListingDevice : public SoftDevice {
 public:
  ListingDevice() : SoftDevice(Options()) {}
  absl::Status Add(const DeviceWork& work) override {
    works.push_back(work);
    if (const auto* const attend = std::get_if<AttendKvArgs>(&work)) attends.push_back(*attend);
    if (const auto* const gemm = std::get_if<DeviceGemm>(&work)) {
      gemms.emplace_back(gemm->type, gemm->out, gemm->n, gemm->k, gemm->rows, gemm->weights, gemm->adds);
    } else {
      ++others;
    }
    return SoftDevice::Add(work);
  }

  std::vector<DeviceWork> works;
  std::vector<Gemm> gemms;
  std::vector<AttendKvArgs> attends;
  int others = 0;
};

// Of a step that is not run.
struct MemoryOfAStep : StepMemory {
  MemoryOfAStep() { times = &stamps; }
  MemoryOfAStep(const MemoryOfAStep&) = delete;
  StageStamps stamps;
};

TEST(StepGraphTest, GemmsAloneAreThoseOfTheStep) {
  constexpr unsigned kRows = 600, kLogitRows = 520;  // three tiles of logits
  ListingDevice device;
  StepModel model;
  model.spec.layers = 3;
  model.spec.hidden = 48;
  model.spec.vocab = 100;
  model.sequences_max = kRows;
  std::byte weights[20];
  const auto matrix = [&](int which, int64_t n, int64_t k) { return GpuMatrix{&weights[which], n, k}; };
  for (int layer = 0; layer < 3; ++layer) {
    GpuLayer& to = model.weights.layers.emplace_back();
    to.qkv = matrix(4 * layer, 96, 48);
    to.o = matrix(4 * layer + 1, 48, 64);
    to.gate_up = matrix(4 * layer + 2, 144, 48);
    to.down = matrix(4 * layer + 3, 48, 72);
  }
  model.weights.vectors.layers.resize(3);
  model.layer_ropes.resize(3);
  model.weights.head = matrix(19, 100, 48);
  MemoryOfAStep memory;
  const SPartDevice::Stream stream = *device.MakeStream();
  ASSERT_TRUE(MakeStepGraph(model, memory, kRows, kLogitRows, /*with_chunk=*/false, stream, &device).ok());
  std::vector<Gemm> of_step = device.gemms;
  EXPECT_EQ(of_step.size(), 3 * 4 + 3u);
  EXPECT_GT(device.others, 3 * 6);
  device.gemms.clear();
  device.others = 0;
  ASSERT_TRUE(MakeGemmGraph(model, memory, kRows, kLogitRows, stream, &device).ok());
  EXPECT_EQ(device.others, 0);
  std::sort(of_step.begin(), of_step.end());
  std::sort(device.gemms.begin(), device.gemms.end());
  EXPECT_EQ(device.gemms, of_step);
}

// What the software GPU's tests rest on, if kernels of a step may overlap.
TEST(StepGraphTest, InTwoRunsTheSoftwareGpuLetsAllKernelsThatMayBeginEarly) {
  ListingDevice device;
  StepBoard board;
  StepState state;
  StageStamps times;
  const SPartDevice::Stream stream = *device.MakeStream();
  ASSERT_TRUE(device.BeginGraph(stream, "four stages").ok());
  for (unsigned stage = 1; stage <= 4; ++stage) {
    ASSERT_TRUE(device.Add(PublishArgs{&board, &state, stage, &times}).ok());
  }
  const SPartDevice::Graph graph = *device.EndGraph();
  for (uint64_t run = 1; run <= 2; ++run) {
    state.first = 100 * run;
    device.Launch(graph);
    ASSERT_TRUE(device.Synchronize().ok());
    EXPECT_EQ(board.ready, 100 * run + 4);
  }
  EXPECT_EQ(device.overtaken(), 3u);  // all but the first
}

// In a model whose GPU is a home: what attends is measured alone, layer by layer, as it is in the step.
StepModel HomeModel(KvType kv, int head_dim, unsigned sequences_max) {
  StepModel model;
  model.spec.layers = 2;
  model.weights.layers.resize(2);
  model.weights.vectors.layers.resize(2);
  model.layer_ropes.resize(2);
  model.weights.type = ElementType::kBf16;
  model.sequences_max = sequences_max;
  model.is_home = true;
  model.shape.layers = 2;
  model.shape.head_dim = static_cast<uint32_t>(head_dim);
  model.shape.group = 4;
  model.shape.kv_heads = 2;
  model.shape.max_context = 2048;
  model.kv.pages.type = kv;
  model.kv.pages.head_dim = head_dim;
  model.kv.layer_stride_bytes = 4096;
  return model;
}

TEST(StepGraphTest, AttentionAloneIsThatOfTheStep) {
  ListingDevice device;
  const StepModel model = HomeModel(KvType::kBf16, 128, 8);
  MemoryOfAStep memory;
  const SPartDevice::Stream stream = *device.MakeStream();
  ASSERT_TRUE(MakeStepGraph(model, memory, 8, 8, /*with_chunk=*/false, stream, &device).ok());
  const std::vector<AttendKvArgs> of_step = std::exchange(device.attends, {});
  device.gemms.clear();
  device.others = 0;
  ASSERT_TRUE(MakeAttentionGraph(model, memory, 8, stream, &device).ok());
  EXPECT_TRUE(device.gemms.empty());
  EXPECT_EQ(device.others, 2 * 2);  // of each layer: appending, attending
  ASSERT_EQ(device.attends.size(), of_step.size());
  for (size_t i = 0; i < of_step.size(); ++i) {
    EXPECT_EQ(device.attends[i].pages.layer, of_step[i].pages.layer);
    EXPECT_EQ(device.attends[i].split.tile_queries, of_step[i].split.tile_queries);
    EXPECT_EQ(device.attends[i].blocks, of_step[i].blocks);
  }
  EXPECT_NE(of_step[0].pages.layer, of_step[1].pages.layer);
}

TEST(StepGraphTest, WhatMayOvertakeWhatInAStep) {
  ListingDevice device;
  const StepModel model = HomeModel(KvType::kBf16, 128, 8);
  MemoryOfAStep memory;
  ASSERT_TRUE(MakeStepGraph(model, memory, 8, 8, /*with_chunk=*/false, *device.MakeStream(), &device).ok());
  size_t kernels = 0, may = 0, of_two_runs = 0;
  for (size_t i = 0; i < device.works.size(); ++i) {
    const DeviceWork& work = device.works[i];
    const bool gathers = std::holds_alternative<GatherOutputsArgs>(work);  // behind a wait
    kernels += i > 0 && !gathers && !std::holds_alternative<DeviceGemm>(work);
    may += SoftDevice::MayOvertake(device.works, i);
    for (const uint64_t run : {7, 8}) of_two_runs += SoftDevice::Overtakes(device.works, i, run);
  }
  EXPECT_EQ(may, kernels);
  EXPECT_EQ(of_two_runs, kernels);
}

TEST(StepGraphTest, WaysAloneAreOfEachLayerAndCopiesOnTheirRightSide) {
  const StepModel model = HomeModel(KvType::kBf16, 128, 8);
  MemoryOfAStep memory;
  StepArea areas;
  std::byte from[1], to[1];
  for (const Way way : {Way::kThere, Way::kBack}) {
    for (const size_t bytes : {size_t{0}, size_t{640}}) {
      ListingDevice device;
      const Crossing crossing{way, &areas, {to, from, bytes}};
      ASSERT_TRUE(MakeCrossingGraph(model, memory, 8, crossing, *device.MakeStream(), &device).ok());
      ASSERT_EQ(device.works.size(), bytes == 0 ? 2u : 4u);
      const size_t of_layer = device.works.size() / 2, kernel = way == Way::kBack ? of_layer - 1 : 0;
      for (unsigned layer = 0; layer < 2; ++layer) {
        const auto work = device.works.begin() + layer * of_layer;
        if (way == Way::kThere) {
          EXPECT_EQ(std::get<RopeSendArgs>(work[kernel]).areas, &areas);
          EXPECT_EQ(std::get<RopeSendArgs>(work[kernel]).stage, layer);
        } else {
          EXPECT_EQ(std::get<GatherOutputsArgs>(work[kernel]).areas, &areas);
        }
        if (bytes == 0) continue;
        const auto& copy = std::get<DeviceCopy>(work[1 - kernel]);
        EXPECT_TRUE(copy.to == to && copy.from == from && copy.bytes == bytes);
      }
    }
  }
}

// Tensor cores round, so that a model in f32 does without, and one in fp16 with KV in bf16. For a prompt's chunk their
// tiles are larger, unless heads are long or the bits are to be the same in all company.
TEST(StepGraphTest, TensorCoresAttend) {
  constexpr unsigned kSequences = 18;
  struct Case {
    ElementType compute = ElementType::kBf16;
    KvType kv = KvType::kBf16;
    int head_dim = 128;
    bool with_chunk = false;
    bool batch_invariant = false;
  };
  const auto tile = [](const Case& c) {  // 0: without tensor cores
    ListingDevice device;
    StepModel model = HomeModel(c.kv, c.head_dim, kSequences);
    model.weights.type = c.compute;
    model.batch_invariant = c.batch_invariant;
    MemoryOfAStep memory;
    EXPECT_TRUE(MakeStepGraph(model, memory, 24, 8, c.with_chunk, *device.MakeStream(), &device).ok());
    EXPECT_EQ(device.attends.size(), 2u);
    const AttendKvArgs& args = device.attends.at(0);
    EXPECT_EQ(device.attends.at(1).split.tile_queries, args.split.tile_queries);
    if (args.tensor_cores) return args.split.tile_queries;
    EXPECT_EQ(args.split.tile_queries, AttendTileQueries(args.thread_queries, c.head_dim));
    return 0u;
  };
  EXPECT_EQ(tile({}), 8u);
  EXPECT_EQ(tile({.kv = KvType::kInt8, .head_dim = 256}), 8u);
  EXPECT_EQ(tile({.kv = KvType::kFp16}), 8u);
  EXPECT_EQ(tile({.compute = ElementType::kFp16, .kv = KvType::kFp16}), 8u);
  EXPECT_EQ(tile({.compute = ElementType::kFp16, .kv = KvType::kInt8}), 8u);
  EXPECT_EQ(tile({.compute = ElementType::kFp16, .kv = KvType::kBf16}), 0u);
  EXPECT_EQ(tile({.compute = ElementType::kF32, .kv = KvType::kInt8, .with_chunk = true}), 0u);
  EXPECT_EQ(tile({.kv = KvType::kF32, .with_chunk = true}), 0u);
  EXPECT_EQ(tile({.with_chunk = true}), 64u);
  EXPECT_EQ(tile({.kv = KvType::kInt8, .head_dim = 64, .with_chunk = true}), 64u);
  EXPECT_EQ(tile({.head_dim = 144, .with_chunk = true}), 8u);
  EXPECT_EQ(tile({.with_chunk = true, .batch_invariant = true}), 8u);
}

}  // namespace
}  // namespace fastdecode
