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

// (type, out, n, k, rows, weights)
using Gemm = std::tuple<ElementType, ElementType, int64_t, int64_t, unsigned, const void*>;

// Keeps what is added to it.
class ListingDevice : public SoftDevice {
 public:
  ListingDevice() : SoftDevice(Options()) {}
  absl::Status Add(const DeviceWork& work) override {
    if (const auto* const attend = std::get_if<AttendKvArgs>(&work)) attends.push_back(*attend);
    if (const auto* const gemm = std::get_if<DeviceGemm>(&work)) {
      gemms.emplace_back(gemm->type, gemm->out, gemm->n, gemm->k, gemm->rows, gemm->weights);
    } else {
      ++others;
    }
    return SoftDevice::Add(work);
  }

  std::vector<Gemm> gemms;
  std::vector<AttendKvArgs> attends;
  int others = 0;
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
  model.weights.head = matrix(19, 100, 48);
  StageStamps times;
  StepMemory memory;
  memory.times = &times;
  const SPartDevice::Stream stream = *device.MakeStream();
  ASSERT_TRUE(MakeStepGraph(model, memory, kRows, kLogitRows, stream, &device).ok());
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

// In a model whose GPU is a home: what attends is measured alone, layer by layer, as it is in the step.
StepModel HomeModel(KvType kv, int head_dim, unsigned sequences_max) {
  StepModel model;
  model.spec.layers = 2;
  model.weights.layers.resize(2);
  model.weights.type = ElementType::kBf16;
  model.sequences_max = sequences_max;
  model.is_home = true;
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
  StageStamps times;
  StepMemory memory;
  memory.times = &times;
  const SPartDevice::Stream stream = *device.MakeStream();
  ASSERT_TRUE(MakeStepGraph(model, memory, 8, 8, stream, &device).ok());
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

// Tensor cores round, so that a model in f32 and one that is to give the same bits in all company do without, and so do
// steps without a prompt's chunk, KV that tensor cores do not take, and long heads.
TEST(StepGraphTest, TensorCoresAttendToChunks) {
  constexpr unsigned kSequences = 18;  // in a bucket of 24
  const auto attends = [](bool allowed, unsigned rows, KvType kv, int head_dim) {
    ListingDevice device;
    StepModel model = HomeModel(kv, head_dim, kSequences);
    model.tensor_cores = allowed;
    StageStamps times;
    StepMemory memory;
    memory.times = &times;
    EXPECT_TRUE(MakeStepGraph(model, memory, rows, 8, *device.MakeStream(), &device).ok());
    EXPECT_EQ(device.attends.size(), 2u);
    for (const AttendKvArgs& args : device.attends) {
      EXPECT_EQ(args.split.tile_queries, args.tensor_cores ? 64u : AttendTileQueries(args.thread_queries, head_dim));
    }
    return device.attends.at(0).tensor_cores && device.attends.at(1).tensor_cores;
  };
  EXPECT_TRUE(attends(true, 32, KvType::kBf16, 128));
  EXPECT_TRUE(attends(true, 256, KvType::kFp16, 64));
  EXPECT_FALSE(attends(false, 256, KvType::kBf16, 128));
  EXPECT_FALSE(attends(true, 24, KvType::kBf16, 128));
  EXPECT_FALSE(attends(true, 256, KvType::kF32, 128));
  EXPECT_FALSE(attends(true, 256, KvType::kInt8, 128));
  EXPECT_FALSE(attends(true, 256, KvType::kBf16, 256));
}

}  // namespace
}  // namespace fastdecode
