#include "kernels/cpu/upcoming_rows.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <vector>

namespace fastdecode {
namespace {

// Rows of q, k and v of some KV heads, as a hop has them, one page's behind the other's.
struct Hop {
  Hop(int kv_heads, int head_bytes) : kv_heads(kv_heads), head_bytes(head_bytes), k_bytes(kv_heads * head_bytes) {
    const size_t row = static_cast<size_t>(6 * k_bytes);
    stride = (row + 63) / 64 * 64;
    memory.resize(2 * kPageTokens * stride + 64);
    first = memory.data() + (64 - reinterpret_cast<uintptr_t>(memory.data()) % 64) % 64;
  }

  // Whose next page begins behind it.
  AppendArgs ArgsOf(int kv_head) const {
    AppendArgs args = {};
    args.kv_head = kv_head;
    args.tokens = kPageTokens;
    args.k = first + 4 * k_bytes + kv_head * head_bytes;
    args.v = args.k + k_bytes;
    args.row_stride_bytes = stride;
    args.next_page_k = first + kPageTokens * stride + 4 * k_bytes;
    return args;
  }

  const int kv_heads, head_bytes, k_bytes;
  size_t stride;
  std::vector<std::byte> memory;
  const std::byte* first;
};

// How often the shares of all heads have each line of the next page's k.
std::map<ptrdiff_t, int> SharedLines(const Hop& hop) {
  std::map<ptrdiff_t, int> times;
  const int lines = kPageTokens * ((hop.head_bytes + 63) / 64);
  for (int kv_head = 0; kv_head < hop.kv_heads; ++kv_head) {
    const AppendArgs args = hop.ArgsOf(kv_head);
    PageShare share(args, hop.kv_heads, hop.head_bytes);
    for (int i = 0; i < lines; ++i, share.Advance()) ++times[(share.line() - args.next_page_k) / 64];
  }
  return times;
}

std::map<ptrdiff_t, int> LinesOfThePage(const Hop& hop) {
  std::map<ptrdiff_t, int> times;
  for (int row = 0; row < kPageTokens; ++row) {
    for (int byte = 0; byte < hop.k_bytes; byte += 64) {
      times[(row * static_cast<ptrdiff_t>(hop.stride) + byte) / 64] = 1;
    }
  }
  return times;
}

TEST(PageShareTest, IsEmptyByDefault) { EXPECT_EQ(PageShare().line(), nullptr); }

TEST(PageShareTest, AllHeadsTogetherHaveThePageOnce) {
  for (const int kv_heads : {1, 2, 3, 5, 8, 32}) {
    for (const int head_bytes : {64, 128, 256, 384, 512, 1024}) {
      const Hop hop(kv_heads, head_bytes);
      EXPECT_EQ(SharedLines(hop), LinesOfThePage(hop)) << kv_heads << " KV heads of " << head_bytes << " bytes";
    }
  }
}

// Where heads are no multiple of a line, shares overlap, and a few lines of odd shapes are no one's.
TEST(PageShareTest, AllHeadsTogetherHaveAlmostAllOfThePageWhereLinesAreOfTwoHeads) {
  for (const int kv_heads : {1, 2, 3, 5, 8, 32}) {
    for (const int head_bytes : {32, 96, 160, 192, 224, 320, 480}) {
      const Hop hop(kv_heads, head_bytes);
      const std::map<ptrdiff_t, int> shared = SharedLines(hop), page = LinesOfThePage(hop);
      size_t missing = 0;
      for (const auto& [line, times] : page) missing += shared.count(line) == 0;
      EXPECT_LE(missing, page.size() / 100) << kv_heads << " KV heads of " << head_bytes << " bytes";
    }
  }
}

}  // namespace
}  // namespace fastdecode
