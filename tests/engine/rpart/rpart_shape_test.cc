#include "engine/rpart/rpart_shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace fastdecode {
namespace {

using testing::HasSubstr;

RPartShape Llama8b() {
  RPartShape shape;
  shape.layers = 32;
  shape.kv_heads = 8;
  shape.group = 4;
  shape.head_dim = 128;
  shape.element_type = static_cast<uint32_t>(ElementType::kBf16);
  shape.kv_type = static_cast<uint32_t>(KvType::kBf16);
  shape.scale = 0.088388f;
  shape.micro_batches = 2;
  shape.max_rows = 4096;
  shape.max_context = 131072;
  return shape;
}

std::string Refusal(uint32_t RPartShape::*field, uint32_t value) {
  RPartShape shape = Llama8b();
  shape.*field = value;
  return std::string(ValidateShape(shape).message());
}

TEST(RPartShapeTest, ARealShapeIsFine) { EXPECT_TRUE(ValidateShape(Llama8b()).ok()) << ValidateShape(Llama8b()); }

TEST(RPartShapeTest, RefusesWithTheFieldAndItsValue) {
  EXPECT_THAT(Refusal(&RPartShape::layers, 0), HasSubstr("layers is 0"));
  EXPECT_THAT(Refusal(&RPartShape::layers, 1u << 31), HasSubstr("layers is 2147483648"));
  EXPECT_THAT(Refusal(&RPartShape::kv_heads, 0), HasSubstr("kv_heads is 0"));
  EXPECT_THAT(Refusal(&RPartShape::group, 0), HasSubstr("group is 0"));
  EXPECT_THAT(Refusal(&RPartShape::head_dim, 272), HasSubstr("head_dim is 272"));
  EXPECT_THAT(Refusal(&RPartShape::head_dim, 120), HasSubstr("head_dim is 120, it must be a multiple of 16"));
  EXPECT_THAT(Refusal(&RPartShape::element_type, 2), HasSubstr("element_type is 2"));
  EXPECT_THAT(Refusal(&RPartShape::kv_type, 5), HasSubstr("kv_type is 5, allowed is 0 to 4"));
  EXPECT_THAT(Refusal(&RPartShape::micro_batches, 17), HasSubstr("micro_batches is 17"));
  EXPECT_THAT(Refusal(&RPartShape::max_rows, 0), HasSubstr("max_rows is 0"));
  EXPECT_THAT(Refusal(&RPartShape::max_rows, 65537), HasSubstr("max_rows is 65537"));
  EXPECT_THAT(Refusal(&RPartShape::group, 256), HasSubstr("bytes a hop")) << "many rows of many heads";
  EXPECT_THAT(Refusal(&RPartShape::max_context, 0), HasSubstr("max_context is 0"));
  EXPECT_THAT(Refusal(&RPartShape::kv_heads, 1024), HasSubstr("max_rows 4096 times kv_heads 1024"));
  RPartShape shape = Llama8b();
  shape.max_rows = 1;  // then messages are short, but not what a thread computes in
  shape.kv_heads = 1024;
  shape.group = 16;
  EXPECT_THAT(std::string(ValidateShape(shape).message()),
              HasSubstr("kv_heads 1024 times group 16 times head_dim 128"));
  shape.group = 8;
  EXPECT_TRUE(ValidateShape(shape).ok()) << ValidateShape(shape);
  shape = Llama8b();
  shape.scale = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(std::string(ValidateShape(shape).message()), HasSubstr("scale"));
  shape = Llama8b();
  shape.soft_cap = -1;
  EXPECT_THAT(std::string(ValidateShape(shape).message()), HasSubstr("soft_cap is -1"));
}

// Gemma 3's: one in six sees all.
RPartShape WithWindows() {
  RPartShape shape = Llama8b();
  shape.sliding_window = 1024;
  for (uint32_t layer = 0; layer < shape.layers; ++layer) {
    if (layer % 6 != 5) shape.SetWindowed(layer);
  }
  return shape;
}

TEST(RPartShapeTest, LayersHaveAWindowOrNone) {
  const RPartShape shape = WithWindows();
  EXPECT_TRUE(ValidateShape(shape).ok()) << ValidateShape(shape);
  EXPECT_EQ(shape.attention(4).sliding_window, 1024);
  EXPECT_EQ(shape.attention(5).sliding_window, 0);
  EXPECT_EQ(shape.attention(6).sliding_window, 1024);
  EXPECT_EQ(shape.attention().sliding_window, 0);
  EXPECT_TRUE(shape.has_layers(/*with_window=*/true) && shape.has_layers(/*with_window=*/false));
  EXPECT_FALSE(Llama8b().has_layers(/*with_window=*/true));
  RPartShape all = Llama8b();
  all.layers = kRPartLayersMax;
  all.sliding_window = 1;
  for (uint32_t layer = 0; layer < all.layers; ++layer) all.SetWindowed(layer);
  EXPECT_TRUE(ValidateShape(all).ok()) << ValidateShape(all);
  EXPECT_FALSE(all.has_layers(/*with_window=*/false));
}

TEST(RPartShapeTest, RefusesAWindowOfNoLayerAndLayersWithoutOne) {
  RPartShape shape = WithWindows();
  shape.SetWindowed(32);
  EXPECT_THAT(std::string(ValidateShape(shape).message()), HasSubstr("window_bits name layer 32, there are 32 layers"));
  shape = WithWindows();
  shape.SetWindowed(kRPartLayersMax - 1);
  EXPECT_THAT(std::string(ValidateShape(shape).message()), HasSubstr("window_bits name layer 1023"));
  shape = WithWindows();
  shape.sliding_window = 0;
  EXPECT_THAT(std::string(ValidateShape(shape).message()),
              HasSubstr("window_bits name layer 0, but sliding_window is 0"));
  shape = Llama8b();
  shape.sliding_window = 1024;
  EXPECT_THAT(std::string(ValidateShape(shape).message()), HasSubstr("sliding_window is 1024, but no layer has"));
}

TEST(RPartShapeTest, DifferencesNameBothValues) {
  RPartShape other = Llama8b();
  EXPECT_EQ(DescribeModelDifference(Llama8b(), other), "");
  other.max_rows = 5;
  other.element_type = 0;
  EXPECT_EQ(DescribeModelDifference(Llama8b(), other), "") << "these are the run's choice";
  other.layers = 16;
  other.group = 8;
  EXPECT_EQ(DescribeModelDifference(Llama8b(), other), "layers is 32 here and 16 there; group is 4 here and 8 there");
  other = WithWindows();
  other.SetWindowed(11);
  EXPECT_EQ(DescribeModelDifference(WithWindows(), other), "layer 11 is not windowed here and windowed there");
  other.layers = 11;
  EXPECT_EQ(DescribeModelDifference(WithWindows(), other), "layers is 32 here and 11 there");
}

TEST(RPartShapeTest, PagesDifferByRowAndKvTypes) {
  RPartShape other = Llama8b();
  EXPECT_EQ(DescribePageDifference(Llama8b(), other), "");
  other.element_type = static_cast<uint32_t>(ElementType::kF32);
  other.kv_type = static_cast<uint32_t>(KvType::kFp16);
  EXPECT_EQ(DescribePageDifference(Llama8b(), other),
            "element_type is bf16 here and f32 there; kv_type is bf16 here and fp16 there");
}

TEST(RPartShapeTest, TheLinkOfAValidShapeCanBeMade) {
  EXPECT_TRUE(CheckLinkSize(LinkSizeFor(Llama8b())).ok());
  EXPECT_TRUE(CheckLinkCarries(Llama8b(), LinkSizeFor(Llama8b())).ok());
  LinkSize size = LinkSizeFor(Llama8b());
  size.slots = 3;
  EXPECT_THAT(std::string(CheckLinkCarries(Llama8b(), size).message()), HasSubstr("3 slots"));
}

TEST(RPartShapeTest, ALinkMayHaveABulkChannelForSegmentsOfAPage) {
  LinkSize size = LinkSizeFor(Llama8b(), /*push=*/true);
  EXPECT_EQ(PushTokensMax(Llama8b()), 32u);
  EXPECT_EQ(size.bulk_segment_bytes_max, 64u + 32 * 2 * 8 * 128 * 2);
  EXPECT_TRUE(CheckLinkSize(size).ok());
  EXPECT_TRUE(CheckLinkCarries(Llama8b(), size).ok());
  size.bulk_segments = 3;
  EXPECT_THAT(std::string(CheckLinkCarries(Llama8b(), size).message()), HasSubstr("3 bulk segments"));
  RPartShape other = Llama8b();
  other.kv_heads = 64;  // 32 KiB a token
  EXPECT_EQ(PushTokensMax(other), 4u);
  other.head_dim = 256;
  other.kv_heads = 256;  // one token is the most that a segment holds, less its header
  EXPECT_EQ(PushTokensMax(other), 0u);
  EXPECT_EQ(LinkSizeFor(other, true).bulk_segments, 0);
  other = Llama8b();
  other.kv_type = static_cast<uint32_t>(KvType::kInt4);
  EXPECT_EQ(LinkSizeFor(other, true).bulk_segments, 0);
}

}  // namespace
}  // namespace fastdecode
