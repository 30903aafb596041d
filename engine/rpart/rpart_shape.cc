#include "engine/rpart/rpart_shape.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace fastdecode {

namespace {

// K and V of a bulk segment: what a hop may have to wait for, some tens of microseconds of one thread; and segments
// that may be under way or waiting between hops.
constexpr size_t kPushBytes = 128 << 10;
constexpr int kPushSegments = 16;

struct FieldRange {
  const char* name;
  uint32_t RPartShape::*field;
  uint32_t min;
  uint32_t max;
};

constexpr FieldRange kFields[] = {
    {"layers", &RPartShape::layers, 1, kRPartLayersMax},
    {"kv_heads", &RPartShape::kv_heads, 1, 1024},
    {"group", &RPartShape::group, 1, 256},
    {"head_dim", &RPartShape::head_dim, 16, 256},
    {"element_type", &RPartShape::element_type, 0, 1},
    {"kv_type", &RPartShape::kv_type, 0, std::size(kKvTypes) - 1},
    {"sliding_window", &RPartShape::sliding_window, 0, 1u << 30},
    {"micro_batches", &RPartShape::micro_batches, 1, kMaxSlots},
    {"max_rows", &RPartShape::max_rows, 1, 65536},
    {"max_context", &RPartShape::max_context, 1, 1u << 24},
};
static_assert((std::size(kFields) + 2) * sizeof(uint32_t) + sizeof(RPartShape::window_bits) == sizeof(RPartShape),
              "scale, soft_cap and window_bits are the others");

constexpr uint64_t kRowHeadsMax = 1u << 20;       // max_rows * kv_heads: what a plan is made of
constexpr uint64_t kQueryElementsMax = 1u << 20;  // kv_heads * group * head_dim: what a thread's workspace is made of
constexpr uint64_t kSlotBytesMax = 1u << 30;      // of one hop: its payload_bytes is a 32-bit word
constexpr uint64_t kLinkBytesMax = uint64_t{4} << 30;  // of all slots, both directions

absl::Status CheckWindow(const RPartShape& shape) {
  const auto refuse = [](const std::string& why) {
    return absl::InvalidArgumentError(absl::StrCat("R-Part shape: ", why));
  };
  if (shape.sliding_window > 0 && !shape.has_layers(/*with_window=*/true)) {
    return refuse(
        absl::StrFormat("sliding_window is %d, but no layer has a window; it must be 0 then", shape.sliding_window));
  }
  for (uint32_t layer = 0; layer < kRPartLayersMax; ++layer) {
    if (!shape.windowed(layer)) continue;
    if (layer >= shape.layers) {
      return refuse(absl::StrFormat("window_bits name layer %d, there are %d layers", layer, shape.layers));
    }
    if (shape.sliding_window == 0) {
      return refuse(absl::StrFormat("window_bits name layer %d, but sliding_window is 0", layer));
    }
  }
  return absl::OkStatus();
}

// The first layer of both models that has a window in one of them alone; nothing if there is none.
std::optional<uint32_t> FindWindowDifference(const RPartShape& here, const RPartShape& there) {
  for (uint32_t layer = 0; layer < std::min({here.layers, there.layers, kRPartLayersMax}); ++layer) {
    if (here.windowed(layer) != there.windowed(layer)) return layer;
  }
  return std::nullopt;
}

}  // namespace

absl::Status ValidateShape(const RPartShape& shape) {
  for (const FieldRange& range : kFields) {
    const uint32_t value = shape.*range.field;
    if (value < range.min || value > range.max) {
      return absl::InvalidArgumentError(
          absl::StrFormat("R-Part shape: %s is %d, allowed is %d to %d", range.name, value, range.min, range.max));
    }
  }
  if (shape.head_dim % 16 != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("R-Part shape: head_dim is %d, it must be a multiple of 16", shape.head_dim));
  }
  if (!std::isfinite(shape.scale) || shape.scale <= 0) {
    return absl::InvalidArgumentError(absl::StrFormat("R-Part shape: scale is %g, it must be positive", shape.scale));
  }
  if (!std::isfinite(shape.soft_cap) || shape.soft_cap < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("R-Part shape: soft_cap is %g, it must be 0 (none) or positive", shape.soft_cap));
  }
  if (absl::Status bad = CheckWindow(shape); !bad.ok()) return bad;
  if (uint64_t{shape.max_rows} * shape.kv_heads > kRowHeadsMax) {
    return absl::InvalidArgumentError(absl::StrFormat("R-Part shape: max_rows %d times kv_heads %d is above %d",
                                                      shape.max_rows, shape.kv_heads, kRowHeadsMax));
  }
  if (uint64_t{shape.kv_heads} * shape.group * shape.head_dim > kQueryElementsMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("R-Part shape: kv_heads %d times group %d times head_dim %d is above %d", shape.kv_heads,
                        shape.group, shape.head_dim, kQueryElementsMax));
  }
  const uint64_t hop_bytes = shape.max_rows * shape.hop_row_bytes();
  const uint64_t reply_bytes = shape.max_rows * shape.reply_row_bytes();
  if (hop_bytes > kSlotBytesMax || shape.micro_batches * (hop_bytes + reply_bytes) > kLinkBytesMax) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "R-Part shape: max_rows is %d, %d bytes a hop and %d micro-batches; allowed are %d bytes a hop and %d in all",
        shape.max_rows, hop_bytes, shape.micro_batches, kSlotBytesMax, kLinkBytesMax));
  }
  return absl::OkStatus();
}

std::string DescribeModelDifference(const RPartShape& here, const RPartShape& there) {
  std::string text;
  const auto add = [&text](const char* name, const auto& ours, const auto& theirs) {
    if (ours != theirs)
      absl::StrAppend(&text, text.empty() ? "" : "; ", name, " is ", ours, " here and ", theirs, " there");
  };
  add("layers", here.layers, there.layers);
  add("kv_heads", here.kv_heads, there.kv_heads);
  add("group", here.group, there.group);
  add("head_dim", here.head_dim, there.head_dim);
  add("sliding_window", here.sliding_window, there.sliding_window);
  if (const std::optional<uint32_t> layer = FindWindowDifference(here, there)) {
    const auto name = [&](const RPartShape& shape) { return shape.windowed(*layer) ? "windowed" : "not windowed"; };
    add(absl::StrCat("layer ", *layer).c_str(), name(here), name(there));
  }
  add("scale", here.scale, there.scale);
  add("soft_cap", here.soft_cap, there.soft_cap);
  return text;
}

std::string DescribePageDifference(const RPartShape& here, const RPartShape& there) {
  std::string text = DescribeModelDifference(here, there);
  const auto add = [&text](const char* name, const char* ours, const char* theirs) {
    absl::StrAppend(&text, text.empty() ? "" : "; ", name, " is ", ours, " here and ", theirs, " there");
  };
  const auto element_name = [](uint32_t type) { return ElementName(static_cast<ElementType>(type)); };
  const auto kv_name = [](uint32_t type) { return KvTypeName(static_cast<KvType>(type)); };
  if (here.element_type != there.element_type) {
    add("element_type", element_name(here.element_type), element_name(there.element_type));
  }
  if (here.kv_type != there.kv_type) add("kv_type", kv_name(here.kv_type), kv_name(there.kv_type));
  return text;
}

// With int4 a home would have to keep open pages between segments.
uint32_t PushTokensMax(const RPartShape& shape) {
  if (HasOpenPages(shape.attention()) || kPushRowsOffset + shape.kv_row_bytes() > kBulkSegmentBytesMax) return 0;
  return static_cast<uint32_t>(std::max<size_t>(1, kPushBytes / shape.kv_row_bytes()));
}

LinkSize LinkSizeFor(const RPartShape& shape, bool push) {
  LinkSize size;
  size.slots = static_cast<int>(shape.micro_batches);
  size.hop_payload_bytes_max = shape.max_rows * shape.hop_row_bytes();
  size.reply_payload_bytes_max = shape.max_rows * shape.reply_row_bytes();
  if (const uint32_t tokens = PushTokensMax(shape); push && tokens > 0) {
    size.bulk_segments = kPushSegments;
    size.bulk_segment_bytes_max = kPushRowsOffset + tokens * shape.kv_row_bytes();
  }
  return size;
}

absl::Status CheckLinkCarries(const RPartShape& shape, const LinkSize& size) {
  const LinkSize expected = LinkSizeFor(shape, /*push=*/true);
  if (size.slots == expected.slots && size.hop_payload_bytes_max == expected.hop_payload_bytes_max &&
      size.reply_payload_bytes_max == expected.reply_payload_bytes_max) {
    if (size.bulk_segments == 0 || (size.bulk_segments == expected.bulk_segments &&
                                    size.bulk_segment_bytes_max == expected.bulk_segment_bytes_max)) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrFormat("the link has %d bulk segments of %d bytes, this worker takes %d of %d", size.bulk_segments,
                        size.bulk_segment_bytes_max, expected.bulk_segments, expected.bulk_segment_bytes_max));
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("the link has %d slots of %d and %d bytes, the R-Part's shape needs %d of %d and %d", size.slots,
                      size.hop_payload_bytes_max, size.reply_payload_bytes_max, expected.slots,
                      expected.hop_payload_bytes_max, expected.reply_payload_bytes_max));
}

bool MayHavePromptKernel(const RPartShape& shape) {
  const AttentionShape attention = shape.attention();
  const bool rounds = attention.kv_type == KvType::kInt8 || attention.kv_type == KvType::kInt4;
  return rounds && attention.type == ElementType::kBf16;
}

}  // namespace fastdecode
