#include "kernels/cpu/appended_page.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <vector>

namespace fastdecode {
namespace {

constexpr int kHeads = 3, kHead = 1;

AttentionShape ShapeOf(KvType type, int head_dim) {
  AttentionShape shape;
  shape.type = ElementType::kBf16;
  shape.kv_type = type;
  shape.kv_heads = kHeads;
  shape.group = 1;
  shape.head_dim = head_dim;
  return shape;
}

// Lines of `bytes` that appending one token of kHead writes to.
std::set<ptrdiff_t> LinesWrittenTo(const AttentionShape& shape, int slot, std::vector<std::byte>* bytes,
                                   std::byte* page, const OpenPage* open) {
  std::mt19937 random(static_cast<unsigned>(slot * 1000 + shape.head_dim));
  for (std::byte& byte : *bytes) byte = static_cast<std::byte>(random());
  std::vector<Bf16> k(static_cast<size_t>(shape.head_dim)), v(k.size());
  for (std::vector<Bf16>* row : {&k, &v}) {
    for (Bf16& x : *row) x = static_cast<Bf16>(0x3f80 | (random() & 0x807f));  // 1 to 2, of both signs
  }
  const std::vector<std::byte> before = *bytes;
  AppendArgs args = {};
  args.page = page;
  args.open_page = open;
  args.kv_head = kHead;
  args.first_slot = slot;
  args.tokens = 1;
  args.k = reinterpret_cast<const std::byte*>(k.data());
  args.v = reinterpret_cast<const std::byte*>(v.data());
  args.row_stride_bytes = k.size() * sizeof(Bf16);
  AppendToPage(shape, args);
  std::set<ptrdiff_t> lines;
  for (size_t i = 0; i < bytes->size(); ++i) {
    if ((*bytes)[i] != before[i]) lines.insert(reinterpret_cast<intptr_t>(bytes->data() + i) / kLineBytes);
  }
  return lines;
}

template <class Runs, class At>
std::set<ptrdiff_t> LinesOf(const Runs& runs, At at) {
  std::set<ptrdiff_t> lines;
  for (int run = 0; run < runs.count(); ++run) {
    for (int i = 0; i < runs.bytes(run); i += kLineBytes) {
      lines.insert(reinterpret_cast<intptr_t>(at(run) + i) / kLineBytes);
    }
  }
  EXPECT_EQ(lines.size(), static_cast<size_t>(runs.lines()));
  return lines;
}

std::byte* Aligned(std::vector<std::byte>& bytes) {
  return bytes.data() + (kLineBytes - reinterpret_cast<uintptr_t>(bytes.data()) % kLineBytes) % kLineBytes;
}

TEST(AppendedPageTest, TokenRunsAreWhatAppendingWritesTo) {
  for (const KvType type : {KvType::kF32, KvType::kBf16, KvType::kFp16, KvType::kInt8}) {
    for (const int head_dim : {16, 48, 80, 128, 240, 256}) {
      const AttentionShape shape = ShapeOf(type, head_dim);
      std::vector<std::byte> bytes(PageBytes(shape) + kLineBytes);
      std::byte* const page = Aligned(bytes);
      const std::byte* const head = page + PageBytes(shape) / kHeads * kHead;
      for (int slot = 1; slot < kPageTokens; ++slot) {
        SCOPED_TRACE(std::string(KvTypeName(type)) + ", head_dim " + std::to_string(head_dim) + ", slot " +
                     std::to_string(slot));
        const TokenRuns runs(shape, slot);
        EXPECT_EQ(LinesOf(runs, [&](int run) { return head + runs.Offset(run); }),
                  LinesWrittenTo(shape, slot, &bytes, page, nullptr));
      }
    }
  }
}

TEST(AppendedPageTest, OpenRunsAreWhatAllTokensWereWrittenTo) {
  for (const int head_dim : {16, 48, 80, 128, 240, 256}) {
    const AttentionShape shape = ShapeOf(KvType::kInt4, head_dim);
    const size_t piece_bytes = OpenPieceBytes(shape);
    std::vector<std::byte> bytes(kOpenPieces * kHeads * piece_bytes + kLineBytes);
    OpenPage open;
    for (size_t i = 0; i < kOpenPieces; ++i) {  // they lie here and there
      open.pieces[i] = Aligned(bytes) + (i * 3 + 1) % kOpenPieces * kHeads * piece_bytes;
    }
    open.head_stride_bytes = piece_bytes;
    std::set<ptrdiff_t> written;
    for (int slot = 0; slot < kPageTokens; ++slot) {
      SCOPED_TRACE("head_dim " + std::to_string(head_dim) + ", slot " + std::to_string(slot));
      written.merge(LinesWrittenTo(shape, slot, &bytes, nullptr, &open));
      const OpenRuns runs(head_dim, slot + 1);
      EXPECT_EQ(LinesOf(runs, [&](int run) { return runs.At(open, kHead, run); }), written);
    }
  }
}

}  // namespace
}  // namespace fastdecode
