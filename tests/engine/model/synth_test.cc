#include "engine/model/synth.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <string>
#include <vector>

#include "engine/model/families.h"
#include "engine/model/model_config.h"
#include "engine/model/shapes.h"
#include "engine/model/weights.h"
#include "tests/engine/model/scratch_dir.h"

namespace fastdecode {
namespace {

using testing::HasSubstr;

SynthOptions Tiny(const ScratchDir& dir, const std::string& name = "out") {
  SynthOptions options;
  options.shape = "tiny-random";
  options.out_dir = dir.File(name);
  return options;
}

std::vector<float> Values(const TensorView& tensor) { return ReadF32(WholeTensor(tensor)); }

// The names in a folder.
std::vector<std::string> Names(const std::string& dir) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(dir)) names.push_back(entry.path().filename().string());
  return names;
}

TEST(Shapes, HaveThePublishedNumbersOfParameters) {
  const std::pair<const char*, int64_t> published[] = {
      {"tinyllama-1.1b", 1'100'048'384},
      {"llama-2-7b", 6'738'415'616},
      {"llama-2-13b", 13'015'864'320},
      {"llama-3-8b", 8'030'261'248},
      {"llama-3-70b", 70'553'706'496},
      {"llama-3.1-8b", 8'030'261'248},
      {"llama-3.2-1b", 1'235'814'400},
      {"llama-3.2-3b", 3'212'749'824},
      {"mistral-7b", 7'241'732'096},
      // As transformers' num_parameters() has it for the published configs; Gemma without its vision tower.
      {"qwen2.5-7b", 7'615'616'512},
      {"qwen3-8b", 8'190'735'360},
      {"gemma-3-12b", 11'766'034'176},
      {"opt-6.7b", 6'658'473'984},
      {"opt-13b", 12'853'473'280},
      {"opt-175b", 174'604'468'224},
  };
  for (const auto& [name, parameters] : published) {
    const auto spec = FindShape(name);
    ASSERT_TRUE(spec.ok()) << spec.status();
    int64_t sum = 0;
    for (const ExpectedTensor& tensor : ExpectedTensors(FindFamily(spec->family)->tensors, *spec)) {
      int64_t elements = 1;
      for (const int64_t extent : tensor.shape) elements *= extent;
      sum += elements;
    }
    EXPECT_EQ(sum, parameters) << name;
  }
  EXPECT_EQ(ShapeNames().size(), std::size(published) + 2);
  EXPECT_THAT(std::string(FindShape("llama-9").status().message()),
              testing::AllOf(HasSubstr("shape is \"llama-9\""), HasSubstr("tinyllama-1.1b")));
}

TEST(Synth, WritesACheckpointThatLoads) {
  for (const DType dtype : {DType::kBf16, DType::kF16, DType::kF32}) {
    ScratchDir dir;
    SynthOptions options = Tiny(dir);
    options.dtype = dtype;
    int64_t done = 0;
    int64_t total = 0;
    const absl::Status status = WriteSynthetic(options, [&](int64_t done_bytes, int64_t total_bytes) {
      EXPECT_GT(done_bytes, done);
      done = done_bytes;
      total = total_bytes;
      return true;
    });
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_THAT(Names(dir.path()), testing::ElementsAre("out"));
    EXPECT_THAT(Names(options.out_dir), testing::UnorderedElementsAre("config.json", "model.safetensors"));
    const auto spec = ReadModelSpec(options.out_dir);
    ASSERT_TRUE(spec.ok()) << spec.status();
    const auto checkpoint = Checkpoint::Open(options.out_dir);
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const auto weights = MapWeights(*spec, *checkpoint);
    ASSERT_TRUE(weights.ok()) << weights.status();
    EXPECT_EQ(done, total);
    EXPECT_EQ(checkpoint->total_bytes(), total);
    EXPECT_EQ(weights->layers[1][TensorRole::kUp].tensor->dtype, dtype);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(weights->model[TensorRole::kEmbedding].tensor->data) % 4, 0u);
  }
}

TEST(Synth, WeightsAreRandomOfTheRightSize) {
  ScratchDir dir;
  SynthOptions options = Tiny(dir);
  options.dtype = DType::kF32;
  ASSERT_TRUE(WriteSynthetic(options).ok());
  const auto checkpoint = Checkpoint::Open(options.out_dir);
  ASSERT_TRUE(checkpoint.ok());
  const auto weights = MapWeights(*FindShape("tiny-random"), *checkpoint);
  ASSERT_TRUE(weights.ok());
  const auto expect = [](const WeightView& view, double mean, double deviation) {
    const std::vector<float> values = ReadF32(view);
    double sum = 0.0;
    double squares = 0.0;
    for (const float value : values) {
      sum += value;
      squares += (value - mean) * (value - mean);
    }
    const double n = static_cast<double>(values.size());
    // Five standard errors of a mean, and of a variance (no more than a normal's).
    EXPECT_NEAR(sum / n, mean, 5 * deviation / std::sqrt(n)) << view.tensor->name;
    EXPECT_NEAR(squares / n, deviation * deviation, 5 * deviation * deviation * std::sqrt(2 / n)) << view.tensor->name;
  };
  // hidden 64, q_width 64, intermediate 176, 2 layers.
  expect(weights->model[TensorRole::kEmbedding], 0.0, 1.0);
  expect(weights->model[TensorRole::kHead], 0.0, 1 / std::sqrt(64.0));
  expect(weights->layers[0][TensorRole::kQ], 0.0, 1 / std::sqrt(64.0));
  expect(weights->layers[1][TensorRole::kGate], 0.0, 1 / std::sqrt(64.0));
  expect(weights->layers[0][TensorRole::kO], 0.0, 1 / std::sqrt(64.0 * 4));
  expect(weights->layers[1][TensorRole::kDown], 0.0, 1 / std::sqrt(176.0 * 4));
  expect(weights->layers[1][TensorRole::kMlpNorm], 1.0, 0.1);
  EXPECT_NE(ReadF32(weights->layers[0][TensorRole::kK]), ReadF32(weights->layers[0][TensorRole::kV]));
  EXPECT_NE(ReadF32(weights->layers[0][TensorRole::kK]), ReadF32(weights->layers[1][TensorRole::kK]));
}

// Which rows of the second tensor are `factor` times those of the first, with `mean` added before (1 for those); the
// others are equal.
std::vector<int> ScaledRows(const WeightView& plain, const WeightView& planted, float factor, float mean = 0) {
  const std::vector<float> before = ReadF32(plain), after = ReadF32(planted);
  std::vector<int> rows(static_cast<size_t>(plain.rows));
  const size_t width = before.size() / rows.size();
  for (size_t i = 0; i < before.size(); ++i) {
    if (i % width == 0) rows[i / width] = after[i] != before[i];
    EXPECT_EQ(after[i], rows[i / width] != 0 ? factor * (before[i] + mean) : before[i])
        << plain.tensor->name << " element " << i;
  }
  return rows;
}

TEST(Synth, PlantsOutlierChannelsInKAndTakesThemOutOfQ) {
  ScratchDir dir;
  ModelSpec spec = *FindShape("tiny-random");  // 4 query heads on 2 KV heads of 16
  spec.attention_bias = true;
  SynthOptions options = Tiny(dir, "plain");
  options.dtype = DType::kF32;
  ASSERT_TRUE(WriteSynthetic(spec, options).ok());
  options.out_dir = dir.File("planted");
  options.k_outliers = 4;
  options.k_outlier_factor = 32;
  ASSERT_TRUE(WriteSynthetic(spec, options).ok());
  const auto plain_files = Checkpoint::Open(dir.File("plain")), planted_files = Checkpoint::Open(options.out_dir);
  ASSERT_TRUE(plain_files.ok() && planted_files.ok());
  const auto plain = MapWeights(spec, *plain_files), planted = MapWeights(spec, *planted_files);
  ASSERT_TRUE(plain.ok() && planted.ok());
  std::vector<std::vector<int>> heads;  // [layer, KV head][channel]
  for (size_t layer = 0; layer < 2; ++layer) {
    const auto& before = plain->layers[layer];
    const auto& after = planted->layers[layer];
    const std::vector<int> k = ScaledRows(before[TensorRole::kK], after[TensorRole::kK], 32);
    const std::vector<int> q = ScaledRows(before[TensorRole::kQ], after[TensorRole::kQ], 1.0f / 32);
    EXPECT_EQ(ScaledRows(before[TensorRole::kKBias], after[TensorRole::kKBias], 32, /*mean=*/1), k);
    EXPECT_EQ(ScaledRows(before[TensorRole::kQBias], after[TensorRole::kQBias], 1.0f / 32), q);
    for (size_t head = 0; head < 2; ++head) heads.emplace_back(&k[head * 16], &k[head * 16] + 16);
    for (size_t head = 0; head < 4; ++head) {
      EXPECT_EQ(std::vector<int>(&q[head * 16], &q[head * 16] + 16), heads[layer * 2 + head / 2]);
    }
    EXPECT_EQ(ReadF32(before[TensorRole::kV]), ReadF32(after[TensorRole::kV]));
    EXPECT_EQ(ReadF32(before[TensorRole::kVBias]), ReadF32(after[TensorRole::kVBias]));
    EXPECT_EQ(ReadF32(before[TensorRole::kO]), ReadF32(after[TensorRole::kO]));
    EXPECT_EQ(ReadF32(before[TensorRole::kUp]), ReadF32(after[TensorRole::kUp]));
  }
  for (const std::vector<int>& head : heads) {
    EXPECT_EQ(std::count(head.begin(), head.end(), 1), 4);
    for (size_t i = 0; i < 8; ++i) EXPECT_EQ(head[i], head[i + 8]) << "half of a pair of rope";
  }
  EXPECT_FALSE(heads[0] == heads[1] && heads[1] == heads[2] && heads[2] == heads[3]) << "every head has the same ones";
}

TEST(Synth, EqualSeedsGiveEqualFiles) {
  ScratchDir dir;
  SynthOptions options = Tiny(dir, "a");
  ASSERT_TRUE(WriteSynthetic(options).ok());
  options.out_dir = dir.File("b");
  ASSERT_TRUE(WriteSynthetic(options).ok());
  options.out_dir = dir.File("c");
  options.seed = 2;
  ASSERT_TRUE(WriteSynthetic(options).ok());
  const std::string a = ReadWhole(dir.File("a/model.safetensors"));
  EXPECT_EQ(a, ReadWhole(dir.File("b/model.safetensors")));
  EXPECT_NE(a, ReadWhole(dir.File("c/model.safetensors")));
  EXPECT_EQ(ReadWhole(dir.File("a/config.json")), ReadWhole(dir.File("c/config.json")));
}

TEST(Synth, ShardsHoldTheSameWeights) {
  ScratchDir dir;
  SynthOptions options = Tiny(dir, "whole");
  ASSERT_TRUE(WriteSynthetic(options).ok());
  options.out_dir = dir.File("shards");
  options.shard_bytes_max = 40'000;
  ASSERT_TRUE(WriteSynthetic(options).ok());
  EXPECT_FALSE(std::filesystem::exists(dir.File("shards/model.safetensors")));
  const auto whole = Checkpoint::Open(dir.File("whole"));
  const auto shards = Checkpoint::Open(dir.File("shards"));
  ASSERT_TRUE(whole.ok() && shards.ok()) << shards.status();
  EXPECT_GE(shards->files().size(), 250'000u / 40'000u);
  EXPECT_TRUE(MapWeights(*FindShape("tiny-random"), *shards).ok());
  for (const TensorView& tensor : whole->files()[0].tensors()) {
    const TensorView* other = shards->Find(tensor.name);
    ASSERT_NE(other, nullptr) << tensor.name;
    EXPECT_EQ(Values(tensor), Values(*other)) << tensor.name;
  }
}

TEST(Synth, TakesAnotherNumberOfLayersOrAnotherSpec) {
  ScratchDir dir;
  SynthOptions options = Tiny(dir, "five");
  options.layers = 5;
  ASSERT_TRUE(WriteSynthetic(options).ok());
  EXPECT_EQ(ReadModelSpec(options.out_dir)->layers, 5);
  EXPECT_TRUE(MapWeights(*ReadModelSpec(options.out_dir), *Checkpoint::Open(options.out_dir)).ok());

  ModelSpec spec = *FindShape("tiny-random");
  spec.attention_bias = spec.attention_output_bias = spec.mlp_bias = spec.tied_embeddings = true;
  spec.head_dim = 48;
  options.out_dir = dir.File("own");
  ASSERT_TRUE(WriteSynthetic(spec, options).ok());
  const auto checkpoint = Checkpoint::Open(options.out_dir);
  ASSERT_TRUE(checkpoint.ok());
  const auto weights = MapWeights(*ReadModelSpec(options.out_dir), *checkpoint);
  ASSERT_TRUE(weights.ok()) << weights.status();
  EXPECT_NE(weights->layers[0].Find(TensorRole::kOBias), nullptr);
}

TEST(Synth, FillsAnEmptyFolderAndRefusesAnyOther) {
  ScratchDir dir;
  std::filesystem::create_directory(dir.File("out"));
  EXPECT_TRUE(WriteSynthetic(Tiny(dir, "out/")).ok());
  const auto before = Names(dir.File("out"));
  const absl::Status again = WriteSynthetic(Tiny(dir));
  EXPECT_EQ(again.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(again.message()), HasSubstr(dir.File("out") + ": is a folder that is not empty"));
  EXPECT_EQ(Names(dir.File("out")), before);
  dir.Write("file", "");
  EXPECT_THAT(std::string(WriteSynthetic(Tiny(dir, "file")).message()),
              HasSubstr("file: is there and is not a folder"));
  EXPECT_THAT(std::string(WriteSynthetic(Tiny(dir, "no/such")).message()), HasSubstr("cannot create"));
  EXPECT_THAT(Names(dir.path()), testing::UnorderedElementsAre("out", "file"));
}

// As a mount point, or the folder that a shell is in, must.
TEST(Synth, AFolderThatIsThereStaysTheSame) {
  ScratchDir dir;
  const std::string out = dir.File("out");
  std::filesystem::create_directory(out);
  std::filesystem::permissions(out, std::filesystem::perms::owner_all);
  struct stat before = {}, after = {};
  ASSERT_EQ(stat(out.c_str(), &before), 0);
  const auto stop = [](int64_t done, int64_t total) { return done < total / 2; };
  EXPECT_EQ(WriteSynthetic(Tiny(dir), stop).code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(std::filesystem::is_empty(out));
  const absl::Status status = WriteSynthetic(Tiny(dir));
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_THAT(Names(out), testing::UnorderedElementsAre("config.json", "model.safetensors"));
  ASSERT_EQ(stat(out.c_str(), &after), 0);
  EXPECT_EQ(after.st_ino, before.st_ino);
  EXPECT_EQ(after.st_mode, before.st_mode);
}

TEST(Synth, RefusesBadOptions) {
  ScratchDir dir;
  SynthOptions options = Tiny(dir);
  options.shape = "nothing";
  EXPECT_THAT(std::string(WriteSynthetic(options).message()),
              HasSubstr("shape is \"nothing\", expected one of tiny-random"));
  options = Tiny(dir);
  for (const int layers : {-1, 1025}) {
    options.layers = layers;
    EXPECT_THAT(std::string(WriteSynthetic(options).message()),
                HasSubstr("num_hidden_layers is " + std::to_string(layers) + ", expected an integer from 1 to 1024"));
  }
  options = Tiny(dir);
  for (const int outliers : {-2, 3, 18}) {
    options.k_outliers = outliers;
    EXPECT_THAT(std::string(WriteSynthetic(options).message()),
                HasSubstr("k_outliers is " + std::to_string(outliers) + ", expected an even number from 0 to 16"));
  }
  options.k_outliers = 2;
  for (const double factor : {0.5, 1025.0, std::nan("")}) {
    options.k_outlier_factor = factor;
    EXPECT_THAT(std::string(WriteSynthetic(options).message()), HasSubstr("expected a number from 1 to 1024"));
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

TEST(Synth, LeavesNothingWhenStopped) {
  ScratchDir dir;
  const absl::Status status = WriteSynthetic(Tiny(dir), [](int64_t done, int64_t total) { return done < total / 2; });
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

// A limit on file sizes stands in for a full disk: write() fails in the middle of the file.
TEST(Synth, LeavesNothingWhenTheDiskIsFull) {
  ScratchDir dir;
  const auto old_handler = signal(SIGXFSZ, SIG_IGN);
  rlimit old_limit;
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &old_limit), 0);
  const rlimit small = {100'000, old_limit.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &small), 0);
  const absl::Status status = WriteSynthetic(Tiny(dir));
  setrlimit(RLIMIT_FSIZE, &old_limit);
  signal(SIGXFSZ, old_handler);
  EXPECT_THAT(std::string(status.message()),
              testing::AllOf(HasSubstr("model.safetensors: cannot write"), HasSubstr("File too large")));
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
}

}  // namespace
}  // namespace fastdecode
