// What a step does for rows that have their home on the GPU, by the kernels of the step's own graph, against
// attention's definition in double: layers with a window and layers without one, in one step.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "engine/spart/cuda/gpu_home.h"
#include "engine/spart/cuda/step_graph.h"
#include "kernels/reference/attention_reference.h"
#include "tests/engine/spart/soft_device.h"

namespace fastdecode {
namespace {

constexpr uint32_t kLayers = 3, kSequences = 4, kRowsMax = 64, kContext = 700, kWindow = 20;

struct Variant {
  ElementType type;
  KvType kv_type;
  uint32_t windowed;  // a bit for each layer
  float soft_cap;
  double tolerance;
};

// Keeps what the kernels of the home are given when a graph is made.
class GraphReader : public SoftDevice {
 public:
  GraphReader() : SoftDevice(Options()) {}
  absl::Status Add(const DeviceWork& work) override {
    if (const auto* const take = std::get_if<TakeKvStepArgs>(&work)) takes.push_back(*take);
    if (const auto* const append = std::get_if<AppendKvArgs>(&work)) appends.push_back(*append);
    if (const auto* const attend = std::get_if<AttendKvArgs>(&work)) attends.push_back(*attend);
    return SoftDevice::Add(work);
  }

  std::vector<TakeKvStepArgs> takes;
  std::vector<AppendKvArgs> appends;  // [layer]
  std::vector<AttendKvArgs> attends;  // [layer]
};

// So many rows of a sequence, behind those that it has.
struct Part {
  uint64_t sequence;
  uint32_t rows;
};

// From a position on a sequence's tokens are those that a sequence of this number has by nature.
struct Origin {
  uint32_t from;
  uint64_t number;
};

class GpuHomeLayersTest : public testing::TestWithParam<Variant> {
 protected:
  void SetUp() override {
    stream_ = *device_.MakeStream();
    model_.spec.layers = kLayers;
    model_.spec.hidden = 64;
    model_.spec.heads = 4;
    model_.spec.kv_heads = 2;
    model_.spec.head_dim = 64;
    model_.spec.intermediate = 64;
    model_.spec.vocab = 100;
    model_.weights.layers.resize(kLayers);
    model_.weights.vectors.layers.resize(kLayers);
    model_.layer_ropes.resize(kLayers);
    model_.weights.type = GetParam().type;
    model_.sequences_max = kSequences;
    model_.is_home = true;
    model_.shape = Shape();
    const size_t pages = kSequences * TablePages(model_.shape);
    GpuHomeOptions options;
    options.kv_bytes = pages * KvPool::PageBytesAllLayers(model_.shape.attention(), kLayers);
    options.sequences_max = kSequences;
    home_ = *GpuHome::Create(options, model_.shape, &device_);
    model_.kv = home_->kv();
    memory_ = *AllocateStepMemory(model_, kRowsMax, /*homes_max=*/1, &device_);
    link_ = home_->Attach(/*index=*/0, {memory_.kv.area});
    ASSERT_TRUE(MakeStepGraph(model_, memory_, kRowsMax, kRowsMax, /*with_chunk=*/false, stream_, &device_).ok());
    takes_ = device_.takes;
    appends_ = device_.appends;
    attends_ = device_.attends;
    ASSERT_EQ(appends_.size(), kLayers);
    ASSERT_EQ(attends_.size(), kLayers);
  }

  static RPartShape Shape() {
    RPartShape shape;
    shape.layers = kLayers;
    shape.kv_heads = 2;
    shape.group = 2;
    shape.head_dim = 64;
    shape.element_type = static_cast<uint32_t>(GetParam().type);
    shape.kv_type = static_cast<uint32_t>(GetParam().kv_type);
    shape.scale = 0.2f;  // not that of the head's size
    shape.soft_cap = GetParam().soft_cap;
    shape.window_bits[0] = GetParam().windowed;
    if (GetParam().windowed != 0) shape.sliding_window = kWindow;
    shape.micro_batches = 1;
    shape.max_rows = kRowsMax;
    shape.max_context = kContext;
    return shape;
  }

  // Element i of q, k, v of a token, in [-1, 1), exact in bf16.
  static float ValueAt(uint64_t sequence, uint32_t position, uint32_t layer, uint32_t i) {
    uint32_t random = static_cast<uint32_t>(((sequence * 1009 + position) * 31 + layer) * 4099 + i);
    for (int round = 0; round < 3; ++round) random = (random ^ random >> 15) * 2654435769u + 12345;
    return static_cast<float>(static_cast<int>(random >> 24) - 128) / 128.0f;
  }
  static float ElementAt(const std::byte* bytes, size_t i) {
    if (GetParam().type == ElementType::kBf16) return FromBf16(reinterpret_cast<const Bf16*>(bytes)[i]);
    return reinterpret_cast<const float*>(bytes)[i];
  }
  static void PutElement(float value, size_t i, std::byte* bytes) {
    if (GetParam().type == ElementType::kBf16) {
      reinterpret_cast<Bf16*>(bytes)[i] = ToBf16(value);
    } else {
      reinterpret_cast<float*>(bytes)[i] = value;
    }
  }

  float TokenValue(uint64_t sequence, uint32_t position, uint32_t layer, uint32_t i) const {
    uint64_t number = sequence;
    if (const auto found = origins_.find(sequence); found != origins_.end()) {
      for (const Origin& origin : found->second) number = position >= origin.from ? origin.number : number;
    }
    return ValueAt(number, position, layer, i);
  }

  void Send(const auto& message) {
    ASSERT_TRUE(link_->TrySendControl(&message, sizeof(message))) << link_->lost_cause();
  }
  // The fork goes on with tokens of its own.
  void Fork(uint64_t sequence, uint32_t tokens, uint64_t fork) {
    ForkMessage message;
    message.tokens = tokens;
    message.sequence = sequence;
    message.new_sequence = fork;
    ASSERT_NO_FATAL_FAILURE(Send(message));
    lengths_[fork] = tokens;
    origins_[fork] = origins_.contains(sequence) ? origins_[sequence] : std::vector<Origin>{{0, sequence}};
    origins_[fork].push_back({tokens, fork});
  }
  // The sequence keeps so many of its tokens, and has others from there on, which `number` stands for.
  void Truncate(uint64_t sequence, uint32_t tokens, uint64_t number) {
    ASSERT_NO_FATAL_FAILURE(Send(SequenceMessage{static_cast<uint32_t>(ControlKind::kTruncate), tokens, sequence}));
    lengths_[sequence] = tokens;
    if (!origins_.contains(sequence)) origins_[sequence] = {{0, sequence}};
    origins_[sequence].push_back({tokens, number});
  }
  // Rows that a sequence and another one with the same tokens had in the last step are the same, bit for bit.
  void ExpectTwins(uint64_t sequence, uint64_t twin) const {
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      const std::vector<std::byte>& o = outputs_.at({sequence, layer});
      ASSERT_FALSE(o.empty());
      EXPECT_EQ(o, outputs_.at({twin, layer})) << "sequences " << sequence << " and " << twin << " layer " << layer;
    }
  }

  void SendRoster(const std::vector<Part>& parts) {
    RosterMessage header;
    header.version = ++version_;
    header.entries = static_cast<uint32_t>(parts.size());
    std::vector<std::byte> message(sizeof(header) + parts.size() * sizeof(RosterEntry));
    std::memcpy(message.data(), &header, sizeof(header));
    for (size_t i = 0; i < parts.size(); ++i) {
      const RosterEntry entry = {parts[i].sequence, 1, lengths_[parts[i].sequence], parts[i].rows};
      std::memcpy(message.data() + sizeof(header) + i * sizeof(entry), &entry, sizeof(entry));
    }
    ASSERT_TRUE(link_->TrySendControl(message.data(), message.size())) << link_->lost_cause();
  }

  // One step, layer by layer. Without attending, which would take long, KV comes in alone.
  void CheckedStep(const std::vector<Part>& parts, bool attends = true) {
    ASSERT_NO_FATAL_FAILURE(SendRoster(parts));
    StepTable table;
    table.home_areas = {{link_->SendArea(0), nullptr}};
    for (const Part& part : parts) {
      for (uint32_t i = 0; i < part.rows; ++i) {
        StepRow& row = memory_.board_rows[table.rows];
        row = {};
        row.position = static_cast<int32_t>(lengths_[part.sequence] + i);
        row.home_row = static_cast<uint32_t>(table.rows++);
        table.homes.push_back(0);
        table.home_rows.push_back(row.home_row);
        table.positions.push_back(row.position);
      }
    }
    ASSERT_LE(table.rows, static_cast<int>(kRowsMax));
    home_->TakeStep(0, table, memory_.kv, memory_.board_rows);
    // What the step's first kernel does.
    std::copy_n(memory_.board_rows, table.rows, memory_.rows);
    *memory_.state = {};
    memory_.state->rows = static_cast<uint32_t>(table.rows);
    for (const TakeKvStepArgs& take : takes_) ASSERT_NO_FATAL_FAILURE(Run(take));
    for (uint32_t layer = 0; layer < kLayers; ++layer) {
      FillArea(parts, layer);
      ASSERT_NO_FATAL_FAILURE(Run(appends_[layer]));
      if (!attends) continue;
      ASSERT_NO_FATAL_FAILURE(Run(attends_[layer]));
      size_t row = 0;
      for (const Part& part : parts) {
        ASSERT_NO_FATAL_FAILURE(CheckPart(part, layer, row));
        row += part.rows;
      }
    }
    home_->EndStep(0);
    for (const Part& part : parts) lengths_[part.sequence] += part.rows;
  }

  void Run(const DeviceWork& work) {
    ASSERT_TRUE(device_.BeginGraph(stream_, "a kernel").ok());
    ASSERT_TRUE(device_.Add(work).ok());
    const absl::StatusOr<SPartDevice::Graph> graph = device_.EndGraph();
    ASSERT_TRUE(graph.ok()) << graph.status();
    device_.Launch(*graph);
    ASSERT_TRUE(device_.Synchronize().ok());
  }

  void FillArea(const std::vector<Part>& parts, uint32_t layer) {
    const RPartShape& shape = model_.shape;
    std::byte* row = memory_.kv.area;
    for (const Part& part : parts) {
      for (uint32_t i = 0; i < part.rows; ++i, row += shape.hop_row_bytes()) {
        for (uint32_t e = 0; e < shape.hop_row_bytes() / shape.element_bytes(); ++e) {
          PutElement(TokenValue(part.sequence, lengths_[part.sequence] + i, layer, e), e, row);
        }
      }
    }
  }

  void CheckPart(const Part& part, uint32_t layer, size_t first_row) {
    const RPartShape& shape = model_.shape;
    const uint32_t q_elements = shape.heads() * shape.head_dim, kv_elements = shape.kv_heads * shape.head_dim;
    ReferenceAttentionInput in;
    in.kv_heads = static_cast<int>(shape.kv_heads);
    in.group = static_cast<int>(shape.group);
    in.head_dim = static_cast<int>(shape.head_dim);
    in.scale = shape.scale;
    in.soft_cap = GetParam().soft_cap;
    in.sliding_window = (GetParam().windowed >> layer & 1) != 0 ? kWindow : 0;
    in.context = static_cast<int>(lengths_[part.sequence] + part.rows);
    in.rows = static_cast<int>(part.rows);
    in.first_row_position = static_cast<int>(lengths_[part.sequence]);
    for (uint32_t p = 0; p < lengths_[part.sequence] + part.rows; ++p) {
      const auto value = [&](uint32_t i) { return double{TokenValue(part.sequence, p, layer, i)}; };
      if (p >= lengths_[part.sequence]) {
        for (uint32_t e = 0; e < q_elements; ++e) in.q.push_back(value(e));
      }
      for (uint32_t e = 0; e < kv_elements; ++e) in.k.push_back(value(q_elements + e));
      for (uint32_t e = 0; e < kv_elements; ++e) in.v.push_back(value(q_elements + kv_elements + e));
    }
    const std::vector<double> expected = ReferenceAttention(in);
    const std::byte* const o = memory_.attended + first_row * q_elements * ElementBytes(GetParam().type);
    for (size_t i = 0; i < expected.size(); ++i) {
      ASSERT_NEAR(ElementAt(o, i), expected[i], GetParam().tolerance)
          << "sequence " << part.sequence << " from position " << in.first_row_position << " layer " << layer
          << " element " << i;
    }
    outputs_[{part.sequence, layer}].assign(o, o + expected.size() * ElementBytes(GetParam().type));
  }

  GraphReader device_;
  SPartDevice::Stream stream_ = 0;
  StepModel model_;
  StepMemory memory_;
  std::unique_ptr<GpuHome> home_;
  std::unique_ptr<EngineLink> link_;
  std::vector<TakeKvStepArgs> takes_;
  std::vector<AppendKvArgs> appends_;
  std::vector<AttendKvArgs> attends_;
  uint32_t version_ = 0;
  std::map<uint64_t, uint32_t> lengths_;                                     // by sequence
  std::map<uint64_t, std::vector<Origin>> origins_;                          // by sequence; without one: its own tokens
  std::map<std::pair<uint64_t, uint32_t>, std::vector<std::byte>> outputs_;  // by sequence and layer: of its last step
};

// Chunks longer than the window, rows on their own, and contexts of several cuts.
TEST_P(GpuHomeLayersTest, FollowTheReference) {
  const uint32_t windowed = GetParam().windowed, all = (1u << kLayers) - 1;
  EXPECT_EQ(takes_.size(), windowed == 0 || windowed == all ? 1u : 2u) << "layers of a kind share their roster";
  CheckedStep({{1, 40}, {2, 1}, {3, 5}});
  CheckedStep({{2, 30}, {1, 30}});
  while (lengths_[1] < 600 && !HasFatalFailure()) CheckedStep({{1, 60}, {3, 1}}, /*attends=*/false);
  CheckedStep({{1, 1}, {2, 1}, {3, 1}});
  CheckedStep({{1, 1}, {4, 33}, {3, 1}});
}

// A fork and its parent, which both go on within a page that they share, next to sequences that have the same tokens
// and share nothing.
TEST_P(GpuHomeLayersTest, ForksAttendAsIfTheyWereAlone) {
  CheckedStep({{1, 41}});
  ASSERT_NO_FATAL_FAILURE(Fork(1, 38, 2));
  origins_[3] = {{0, 1}};
  origins_[4] = origins_[2];
  CheckedStep({{3, 41}});
  CheckedStep({{4, 38}});
  // Both copy the page in one step: each what is its own of it.
  CheckedStep({{1, 1}, {2, 1}, {3, 1}, {4, 1}});
  ASSERT_NO_FATAL_FAILURE(ExpectTwins(1, 3));
  ASSERT_NO_FATAL_FAILURE(ExpectTwins(2, 4));
  // By chunks into further pages.
  CheckedStep({{1, 30}, {2, 1}, {3, 30}, {4, 1}});
  CheckedStep({{1, 1}, {2, 30}, {3, 1}, {4, 30}});
  ASSERT_NO_FATAL_FAILURE(ExpectTwins(1, 3));
  ASSERT_NO_FATAL_FAILURE(ExpectTwins(2, 4));
  // Another fork, before its parent loses tokens that both have: they write to different places of the page.
  ASSERT_NO_FATAL_FAILURE(Send(SequenceMessage{static_cast<uint32_t>(ControlKind::kRelease), 0, 2}));
  ASSERT_NO_FATAL_FAILURE(Fork(1, 55, 2));
  ASSERT_NO_FATAL_FAILURE(Truncate(1, 47, 5));
  for (const uint64_t sequence : {1, 2}) {
    const uint64_t twin = sequence + 2;
    ASSERT_NO_FATAL_FAILURE(Send(SequenceMessage{static_cast<uint32_t>(ControlKind::kRelease), 0, twin}));
    lengths_[twin] = 0;
    origins_[twin] = origins_[sequence];
    CheckedStep({{twin, lengths_[sequence]}});
  }
  CheckedStep({{1, 12}, {2, 12}, {3, 12}, {4, 12}});
  ASSERT_NO_FATAL_FAILURE(ExpectTwins(1, 3));
  ASSERT_NO_FATAL_FAILURE(ExpectTwins(2, 4));
}

// f32 is off by its own roundings. Tensor cores round weights and o to bf16. Codes of int8 are off by 1/254, which
// moves a score of 64 dims by scale * 64 / 254 at most.
INSTANTIATE_TEST_SUITE_P(Variants, GpuHomeLayersTest,
                         testing::Values(Variant{ElementType::kF32, KvType::kF32, 0b000, 0.5f, 2e-5},
                                         Variant{ElementType::kF32, KvType::kF32, 0b111, 0, 2e-5},
                                         Variant{ElementType::kF32, KvType::kF32, 0b101, 0.5f, 2e-5},
                                         Variant{ElementType::kF32, KvType::kF32, 0b010, 0, 2e-5},
                                         Variant{ElementType::kBf16, KvType::kBf16, 0b010, 2, 0.01},
                                         Variant{ElementType::kBf16, KvType::kInt8, 0b101, 0.5f, 0.11}));

}  // namespace
}  // namespace fastdecode
