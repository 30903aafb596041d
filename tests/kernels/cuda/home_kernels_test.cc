// The kernels that write to and read from the homes' areas, against their definition in double.
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <random>
#include <string>
#include <tuple>

#include "kernels/cuda/step_kernels.h"
#include "tests/kernels/cuda/emulated_kernels.h"
#include "tests/kernels/cuda/step_fixture.h"
#include "tests/kernels/cuda/typed_array.h"

namespace fastdecode {
namespace {

constexpr ElementType kF32 = ElementType::kF32;
constexpr int kTrials = 40;  // of random sizes, a pair of types

class HomeKernelsTest : public testing::TestWithParam<std::tuple<ElementType, ElementType>> {
 protected:
  ElementType type() const { return std::get<0>(GetParam()); }
  WireRows NextWire(int trial) {
    static constexpr struct {
      int head_dim, padded;
    } kHeads[] = {{20, 32}, {80, 96}, {64, 64}, {6, 16}, {128, 128}, {30, 32}, {16, 16}, {40, 64}};
    const auto [head_dim, padded] = kHeads[static_cast<size_t>(trial) % std::size(kHeads)];
    const int kv_heads = Pick(&random_, 1, 4);
    return {std::get<1>(GetParam()), kv_heads * Pick(&random_, 1, 4), kv_heads, head_dim, padded};
  }
  EmulatorOptions NextOrder() { return {.seed = ++seed_, .blocks_in_flight = 1 + static_cast<unsigned>(seed_ % 5)}; }

  std::mt19937 random_{static_cast<unsigned>(std::get<0>(GetParam())) * 3 +
                       static_cast<unsigned>(std::get<1>(GetParam()))};
  uint64_t seed_ = 0;
};

TEST_P(HomeKernelsTest, RopeSend) {
  constexpr int kPositions = 40, kHomes = 3;
  for (int trial = 0; trial < kTrials; ++trial) {
    const WireRows wire = NextWire(trial);
    const int heads = wire.heads + 2 * wire.kv_heads, half = wire.head_dim / 2;
    const int elements = heads * wire.head_dim, wire_elements = heads * wire.padded_head_dim;
    const auto bucket = static_cast<unsigned>(Pick(&random_, 1, 9));
    const auto rows = static_cast<unsigned>(Pick(&random_, 0, static_cast<int>(bucket)));
    StepRows step(&random_, rows, kHomes, kPositions, wire.type, wire_elements, 0);
    step.rows.resize(bucket, {.position = 1 << 30});  // of an earlier step
    if (trial % 3 == 0) step.LoseHome(trial % kHomes);
    TypedArray qkv(type(), size_t{bucket} * elements), bias(kF32, elements);
    qkv.FillNormals(&random_, 2);
    bias.FillNormals(&random_, 1);
    // Of q, which are scaled, too, and of k; one of either is not rotated in some trials.
    const size_t angles = static_cast<size_t>(kPositions) * half;
    TypedArray cosines[2] = {{kF32, angles}, {kF32, angles}}, sines[2] = {{kF32, angles}, {kF32, angles}};
    const bool rotates[2] = {trial % 5 != 1, trial % 7 != 1};
    for (size_t i = 0; i < 2 * angles; ++i) {
      const double angle = std::uniform_real_distribution<double>(0, 2 * std::numbers::pi)(random_);
      const double scale = i < angles ? 1.25 : 1;
      cosines[i / angles].Set(i % angles, static_cast<float>(scale * std::cos(angle)));
      sines[i / angles].Set(i % angles, static_cast<float>(scale * std::sin(angle)));
    }
    StepBoard board;
    StepState state = {.first = 500, .rows = rows};
    const bool biased = trial % 2 == 0;
    EmulateKernel(RopeSendArgs{.type = type(),
                               .bucket = bucket,
                               .board = &board,
                               .state = &state,
                               .rows = step.rows.data(),
                               .areas = step.areas.data(),
                               .stage = 3,
                               .wire = wire,
                               .qkv = qkv.data(),
                               .bias = biased ? bias.floats() : nullptr,
                               .q_cosines = rotates[0] ? cosines[0].floats() : nullptr,
                               .q_sines = rotates[0] ? sines[0].floats() : nullptr,
                               .k_cosines = rotates[1] ? cosines[1].floats() : nullptr,
                               .k_sines = rotates[1] ? sines[1].floats() : nullptr},
                  NextOrder());
    EXPECT_EQ(board.ready, 503u);
    EXPECT_EQ(state.blocks_over, 0u);
    for (size_t r = 0; r < rows; ++r) {
      const StepRow& place = step.rows[r];
      const TypedArray& sent = *step.send[place.home];
      if (step.areas[place.home].send == nullptr) {
        EXPECT_TRUE(sent.untouched(0, sent.size()));
        continue;
      }
      for (int h = 0; h < heads; ++h) {
        const size_t to = static_cast<size_t>(place.home_row) * wire_elements + h * wire.padded_head_dim;
        const auto in = [&](int i) {
          const int at = h * wire.head_dim + i;
          return qkv[r * elements + at] + (biased ? double{bias[at]} : 0);
        };
        for (int i = 0; i < half; ++i) {
          const int which = h < wire.heads ? 0 : 1;
          const bool rotated = h < wire.heads + wire.kv_heads && rotates[which];
          const double cosine = rotated ? cosines[which][static_cast<size_t>(place.position) * half + i] : 1;
          const double sine = rotated ? sines[which][static_cast<size_t>(place.position) * half + i] : 0;
          const double a = in(i), b = in(half + i);
          const double bound = ErrorBound(wire.type, (std::abs(a) + std::abs(b)) * (which == 0 ? 1.25 : 1), 2);
          ASSERT_NEAR(sent[to + i], a * cosine - b * sine, bound) << "row " << r << " head " << h << " " << i;
          ASSERT_NEAR(sent[to + half + i], b * cosine + a * sine, bound) << "row " << r << " head " << h << " " << i;
        }
        for (int i = wire.head_dim; i < wire.padded_head_dim; ++i) ASSERT_EQ(sent[to + i], 0);
      }
    }
  }
}

TEST_P(HomeKernelsTest, GatherOutputs) {
  constexpr int kHomes = 3;
  for (int trial = 0; trial < kTrials; ++trial) {
    const WireRows wire = NextWire(trial);
    const int elements = wire.heads * wire.head_dim, wire_elements = wire.heads * wire.padded_head_dim;
    const auto bucket = static_cast<unsigned>(Pick(&random_, 1, 9));
    const auto rows = static_cast<unsigned>(Pick(&random_, 0, static_cast<int>(bucket)));
    StepRows step(&random_, rows, kHomes, 1, wire.type, 0, wire_elements);
    if (trial % 2 == 0 && rows > 0) step.rows[rows / 2].slot = 5;  // has its o from elsewhere
    step.rows.resize(bucket);
    for (const auto& area : step.receive) {
      area->FillNormals(&random_, 1);
      for (size_t i = 0; i < area->size(); ++i) {
        if (static_cast<int>(i) % wire.padded_head_dim >= wire.head_dim) area->Set(i, NAN);
      }
    }
    if (trial % 3 == 0) step.LoseHome(trial % kHomes);
    const StepState state = {.first = 500, .rows = rows, .gave_up = trial % 5 == 4};
    TypedArray out(type(), size_t{bucket} * elements);
    EmulateKernel(GatherOutputsArgs{.type = type(),
                                    .bucket = bucket,
                                    .state = &state,
                                    .rows = step.rows.data(),
                                    .areas = step.areas.data(),
                                    .wire = wire,
                                    .out = out.data()},
                  NextOrder());
    for (size_t r = 0; r < rows; ++r) {
      const StepRow& place = step.rows[r];
      if (place.slot != kNoSlot) {
        EXPECT_TRUE(out.untouched(r * elements, elements));
        continue;
      }
      for (int i = 0; i < elements; ++i) {
        const size_t from = static_cast<size_t>(place.home_row) * wire_elements +
                            i / wire.head_dim * wire.padded_head_dim + i % wire.head_dim;
        const bool zero = step.lost(r) || state.gave_up != 0;
        const double expected = zero ? 0 : (*step.receive[place.home])[from];
        ASSERT_NEAR(out[r * elements + i], expected, zero ? 0 : ErrorBound(type(), expected, 0)) << r << " " << i;
      }
    }
    EXPECT_TRUE(out.untouched(size_t{rows} * elements, size_t{bucket - rows} * elements));
  }
}

INSTANTIATE_TEST_SUITE_P(All, HomeKernelsTest,
                         testing::Combine(testing::Values(ElementType::kF32, ElementType::kBf16, ElementType::kFp16),
                                          testing::Values(ElementType::kF32, ElementType::kBf16)),
                         [](const auto& info) {
                           return std::string(ElementName(std::get<0>(info.param))) + "_" +
                                  ElementName(std::get<1>(info.param));
                         });

}  // namespace
}  // namespace fastdecode
