// The attention kernels read and write what they were given and nothing beside it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "kernels/attention.h"
#include "tests/kernels/guarded_areas.h"
#include "tests/kernels/runnable_kernels.h"

namespace fastdecode {
namespace {

AttentionShape ShapeOf(ElementType type, KvType kv_type, int kv_heads, int group, int head_dim) {
  return {type, kv_type, kv_heads, group, head_dim, 1 / std::sqrt(static_cast<float>(head_dim)), 0, 0};
}

void FillRandom(ElementType type, std::byte* to, size_t elements, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (size_t i = 0; i < elements; ++i) {
    const float x = static_cast<float>(random() % 2048) / 1024 - 1;
    const Bf16 rounded = ToBf16(x);
    std::memcpy(to + i * ElementBytes(type), type == ElementType::kF32 ? static_cast<const void*>(&x) : &rounded,
                ElementBytes(type));
  }
}

struct Call {
  int tokens, rows, first_head, heads;
};

// A prompt's, if these are kernels for so many.
std::vector<Call> CallsWithManyRows(const AttentionKernels& kernels, const AttentionShape& shape) {
  if (!kernels.many_prompt_rows || kernels.HasPrompts() != AreForPrompts(kernels)) return {};
  const int rows = std::min(MaxPromptRows(shape), kBlockTokens - 5);
  return {{kBlockTokens, rows, 2, 1}, {kBlockTokens - 5, rows - kPageTokens, 1, 1}};
}

// Appends, closes, attends, folds and finishes, with everything in guarded areas. Returns o.
std::vector<std::byte> Attend(const AttentionKernels& kernels, const AttentionShape& shape, const Call& call,
                              Flush flush) {
  const size_t element = ElementBytes(shape.type),
               pages = static_cast<size_t>(call.tokens + kPageTokens - 1) / kPageTokens;
  const size_t kv_row = static_cast<size_t>(shape.kv_heads) * shape.head_dim * element;
  const size_t row_heads = static_cast<size_t>(call.heads) * call.rows * shape.group;
  const size_t q_row = static_cast<size_t>(call.heads) * shape.group * shape.head_dim * element;
  const bool int4 = shape.kv_type == KvType::kInt4;
  GuardedAreas kv(PageBytes(shape), pages, flush);
  GuardedAreas pieces(std::max<size_t>(1, shape.kv_heads * OpenPieceBytes(shape)), kOpenPieces * pages, flush);
  std::vector<OpenPage> open(pages);
  for (size_t page = 0; page < pages; ++page) {
    const int tokens = std::min<int>(kPageTokens, call.tokens - static_cast<int>(page) * kPageTokens);
    GuardedAreas k(tokens * kv_row, 1, flush), v(tokens * kv_row, 1, flush);
    FillRandom(shape.type, k.at(), tokens * kv_row / element, 2 * page);
    FillRandom(shape.type, v.at(), tokens * kv_row / element, 2 * page + 1);
    for (int i = 0; i * kOpenPieceTokens < tokens; ++i) {
      open[page].pieces[i] = pieces.at(kOpenPieces * page + static_cast<size_t>(i));
    }
    open[page].head_stride_bytes = OpenPieceBytes(shape);
    for (int head = 0; head < shape.kv_heads; ++head) {
      const size_t offset = static_cast<size_t>(head) * shape.head_dim * element;
      kernels.append(shape, {kv.at(page), int4 ? &open[page] : nullptr, head, 0, tokens, k.at() + offset,
                             v.at() + offset, kv_row});
      if (int4 && tokens == kPageTokens) ClosePage(shape, head, open[page], kv.at(page));
    }
  }

  GuardedAreas q(q_row * call.rows, 1, flush), o(q_row * call.rows, 1, flush);
  FillRandom(shape.type, q.at(), q_row * call.rows / element, 99);
  GuardedAreas max(row_heads * sizeof(float), 2, flush), sum(row_heads * sizeof(float), 2, flush);
  GuardedAreas acc(row_heads * shape.head_dim * sizeof(float), 2, flush);
  GuardedAreas scratch(AttendScratchBytes(shape), 1, flush);
  GuardedAreas ids(pages * sizeof(uint32_t), 1, flush);
  for (uint32_t page = 0; page < pages; ++page) std::memcpy(ids.at() + page * sizeof(page), &page, sizeof(page));
  const auto partial = [&](size_t i) {
    return Partial{reinterpret_cast<float*>(max.at(i)), reinterpret_cast<float*>(sum.at(i)),
                   reinterpret_cast<float*>(acc.at(i))};
  };

  AttendArgs args = {};
  args.layer_base = kv.at(0);
  args.page_stride_bytes = kv.stride_bytes();
  args.page_ids = reinterpret_cast<const uint32_t*>(ids.at());
  const int first_open = (call.tokens - call.rows) / kPageTokens;
  const std::vector<OpenPage> open_pages(open.begin() + first_open, open.end());
  args.open_pages = int4 ? open_pages.data() : nullptr;
  args.first_head = call.first_head;
  args.heads = call.heads;
  args.tokens = call.tokens;
  args.q = q.at();
  args.q_row_stride_bytes = q_row;
  args.rows = call.rows;
  args.first_row_position = call.tokens - call.rows;
  args.next = kv.at(0);
  args.scratch = scratch.at();
  args.out = partial(0);
  kernels.attend(shape, args);
  args.out = partial(1);
  args.into = partial(0);
  args.same_queries = true;
  args.next_page_ids = args.page_ids;
  args.next_pages = static_cast<int>(pages);
  args.next_q = q.at();
  args.next_rows = kMaxAttendRows;  // more than one page has steps to bring them in
  const NextAppend next_append = {int4 ? nullptr : args.next, int4 ? open_pages[0] : OpenPage{}, call.first_head,
                                  call.heads, (call.tokens - 1) % kPageTokens + 1};
  args.next_append = &next_append;
  args.o = o.at();
  args.o_row_stride_bytes = q_row;
  kernels.attend(shape, args);
  args.into = {};
  args.o = nullptr;
  kernels.attend(shape, args);
  kernels.fold(shape, partial(0), partial(1), static_cast<int>(row_heads));
  kernels.finish(shape, partial(0), call.heads, call.rows, o.at(), q_row);
  return {o.at(), o.at() + q_row * call.rows};
}

class AttentionBoundsTest : public testing::TestWithParam<KvType> {};

TEST_P(AttentionBoundsTest, NothingBesideWhatWasGivenIsTouched) {
  for (const int head_dim : {16, 48, 128, 256}) {
    for (const ElementType type : {ElementType::kF32, ElementType::kBf16}) {
      const AttentionShape shape = ShapeOf(type, GetParam(), 3, type == ElementType::kF32 ? 1 : 5, head_dim);
      for (const AttentionKernels& kernels : RunnableKernels(shape)) {
        std::vector<Call> calls = {Call{1, 1, 0, 3},  Call{20, 7, 2, 1},   Call{38, 6, 1, 2},
                                   Call{64, 8, 0, 3}, Call{109, 13, 2, 1}, Call{128, kMaxAttendRows, 2, 1},
                                   Call{512, 1, 2, 1}};
        for (const Call& call : CallsWithManyRows(kernels, shape)) calls.push_back(call);
        for (const Call& call : calls) {
          SCOPED_TRACE(std::string(kernels.name) + ", head_dim " + std::to_string(head_dim) + ", tokens " +
                       std::to_string(call.tokens));
          const std::vector<std::byte> at_start = Attend(kernels, shape, call, Flush::kStart);
          EXPECT_TRUE(Attend(kernels, shape, call, Flush::kEnd) == at_start);
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Types, AttentionBoundsTest, testing::ValuesIn(kKvTypes),
                         [](const auto& info) { return std::string(KvTypeName(info.param)); });

}  // namespace
}  // namespace fastdecode
