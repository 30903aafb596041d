#include <gtest/gtest.h>
#include <immintrin.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <vector>

#include "kernels/cpu/attention_page.h"
#include "kernels/cpu/page_codes.h"
#include "kernels/isa.h"
#include "kernels/reference/page_reference.h"

// Appending and closing against the reference, bit for bit.
namespace fastdecode {
namespace {

constexpr int kKvHeads = 3, kHead = 1;

// Rows of one KV head among three.
struct TokenRows {
  TokenRows(const AttentionShape& shape, const std::vector<float>& values)
      : stride_bytes(static_cast<size_t>(kKvHeads * shape.head_dim) * ElementBytes(shape.type)),
        bytes(values.size() / static_cast<size_t>(shape.head_dim) * stride_bytes, std::byte{0x55}),
        head_bytes(static_cast<size_t>(shape.head_dim) * ElementBytes(shape.type)) {
    for (size_t i = 0; i < values.size(); ++i) {
      const size_t token = i / static_cast<size_t>(shape.head_dim), dim = i % static_cast<size_t>(shape.head_dim);
      std::byte* const at = bytes.data() + token * stride_bytes + kHead * head_bytes + dim * ElementBytes(shape.type);
      const Bf16 high_half = static_cast<Bf16>(std::bit_cast<uint32_t>(values[i]) >> 16);  // any of its bits
      std::memcpy(at, shape.type == ElementType::kF32 ? static_cast<const void*>(&values[i]) : &high_half,
                  ElementBytes(shape.type));
    }
  }
  const std::byte* first() const { return bytes.data() + kHead * head_bytes; }

  size_t stride_bytes;
  std::vector<std::byte> bytes;
  size_t head_bytes;
};

// What rows of tokens are made of.
enum class Values { kOrdinary, kTies, kSpecial, kAnyBits };
constexpr Values kAllValues[] = {Values::kOrdinary, Values::kTies, Values::kSpecial, Values::kAnyBits};

float Special(std::mt19937_64& random) {
  constexpr float kMax = std::numeric_limits<float>::max(), kMin = std::numeric_limits<float>::min();
  const float some[] = {0,
                        INFINITY,
                        std::bit_cast<float>(0x7fc00000u),
                        std::bit_cast<float>(0x7f812345u),
                        kMax,
                        0x1.fep127f,
                        0x1.fefffep127f,
                        0x1.ffp127f,
                        kMin,
                        kMin / 2,
                        kMin / 4096,
                        0x1p-149f,
                        65504,
                        65519,
                        65520,
                        1e6f,
                        0x1p-14f,
                        0x1.8p-15f,
                        0x1p-24f,
                        0x1p-25f,
                        0x1p-26f,
                        0x1.004p0f,
                        0x1.00cp0f,
                        0x1.01p0f,
                        0x1.03p0f,
                        1,
                        1e-20f,
                        3};
  const float x = some[random() % std::size(some)];
  return random() % 2 == 0 ? x : -x;
}

// Each token's rows have a magnitude of their own. kTies: multiples of half the scale that int8 finds, and their
// neighbours.
std::vector<float> MakeValues(Values kind, int tokens, int head_dim, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  std::vector<float> values;
  for (int t = 0; t < tokens; ++t) {
    const float magnitude = std::ldexp(1.0f, static_cast<int>(random() % 60) - 30);
    const float scale = std::ldexp(static_cast<float>(128 + random() % 128), static_cast<int>(random() % 40) - 20);
    for (int d = 0; d < head_dim; ++d) {
      float x = normal(random) * magnitude;
      if (kind == Values::kTies) {
        const int half_steps = static_cast<int>(random() % 509) - 254;
        x = d == 0 ? 127 * scale : static_cast<float>(half_steps) * scale / 2;
        if (d > 0 && random() % 2 == 0) x = std::nextafter(x, random() % 2 == 0 ? INFINITY : -INFINITY);
      }
      if (kind == Values::kSpecial && random() % 8 == 0) x = Special(random);
      if (kind == Values::kAnyBits) x = std::bit_cast<float>(static_cast<uint32_t>(random()));
      values.push_back(x);
    }
  }
  return values;
}

// On cache lines, as a pool's pages are.
template <typename T>
struct LineAllocator : std::allocator<T> {
  template <typename Other>
  struct rebind {
    using other = LineAllocator<Other>;
  };
  T* allocate(size_t count) { return static_cast<T*>(::operator new (count * sizeof(T), std::align_val_t{64})); }
  void deallocate(T* at, size_t) { ::operator delete (at, std::align_val_t{64}); }
};

// Pages and open pages as one row of bytes, with stale bits.
struct Memory {
  Memory(const AttentionShape& shape, uint64_t seed)
      : page_bytes(PageBytes(shape)),
        piece_bytes(OpenPieceBytes(shape)),
        bytes(page_bytes + kOpenPieces * kKvHeads * piece_bytes) {
    std::mt19937_64 random(seed);
    for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  }
  // Its pieces lie here and there, or those of a head one behind the other.
  OpenPage open(bool adjacent = false) {
    OpenPage page;
    for (size_t i = 0; i < kOpenPieces; ++i) {
      page.pieces[i] = bytes.data() + page_bytes + (adjacent ? i : (i * 3 + 1) % kOpenPieces * kKvHeads) * piece_bytes;
    }
    page.head_stride_bytes = adjacent ? kOpenPieces * piece_bytes : piece_bytes;
    return page;
  }

  size_t page_bytes, piece_bytes;
  std::vector<std::byte, LineAllocator<std::byte>> bytes;
};

AttentionShape ShapeOf(ElementType type, KvType kv_type, int head_dim) {
  AttentionShape shape;
  shape.type = type;
  shape.kv_type = kv_type;
  shape.kv_heads = kKvHeads;
  shape.group = 1;
  shape.head_dim = head_dim;
  return shape;
}

using AppendPage = void (*)(const AttentionShape&, const AppendArgs&);

AppendArgs ArgsOf(int first_slot, const TokenRows& k, const TokenRows& v, Memory* memory) {
  AppendArgs args = {};
  args.page = memory->bytes.data();
  args.kv_head = kHead;
  args.first_slot = first_slot;
  args.tokens = static_cast<int>(k.bytes.size() / k.stride_bytes);
  args.k = k.first();
  args.v = v.first();
  args.row_stride_bytes = k.stride_bytes;
  return args;
}

void Append(AppendPage append, const AttentionShape& shape, int first_slot, const TokenRows& k, const TokenRows& v,
            Memory* memory) {
  const OpenPage open = memory->open();
  AppendArgs args = ArgsOf(first_slot, k, v, memory);
  if (HasOpenPages(shape)) args.open_page = &open;
  append(shape, args);
}

struct Denormals {  // flushed, as in a team's threads, or not
  explicit Denormals(bool flush) : saved(_mm_getcsr()) { _mm_setcsr(flush ? saved | 0x8040 : saved & ~0x8040u); }
  ~Denormals() { _mm_setcsr(saved); }
  unsigned saved;
};

// AppendToPage, or what CPUs with VBMI have in its place.
struct Appending {
  KvType type;
  bool vbmi;
};
class PagePackTest : public testing::TestWithParam<Appending> {
 protected:
  void SetUp() override {
    if (GetParam().vbmi && !CpuHasVbmi()) GTEST_SKIP() << "this CPU has no AVX512-VBMI";
  }
  static AppendPage append() { return GetParam().vbmi ? &VbmiAppendToPage : &AppendToPage; }
};

TEST_P(PagePackTest, AppendWritesTheReferencesBits) {
  std::mt19937_64 random(1);
  for (const ElementType type : {ElementType::kF32, ElementType::kBf16}) {
    for (const int head_dim : {16, 48, 64, 112, 128, 240, 256}) {
      const AttentionShape shape = ShapeOf(type, GetParam().type, head_dim);
      for (const Values kind : kAllValues) {
        for (const auto& [first_slot, tokens] :
             {std::pair(0, 32), std::pair(0, 1), std::pair(0, 16), std::pair(0, 19), std::pair(16, 16),
              std::pair(15, 17), std::pair(1, 31), std::pair(3, 7), std::pair(31, 1), std::pair(13, 1), std::pair(6, 2),
              std::pair(12, 5)}) {
          for (const bool flush : {false, true}) {
            SCOPED_TRACE(std::string(ElementName(type)) + " rows, head_dim " + std::to_string(head_dim) + ", values " +
                         std::to_string(static_cast<int>(kind)) + ", slot " + std::to_string(first_slot) + ", tokens " +
                         std::to_string(tokens) + (flush ? ", flushed" : ""));
            const TokenRows k(shape, MakeValues(kind, tokens, head_dim, random));
            const TokenRows v(shape, MakeValues(kind, tokens, head_dim, random));
            const uint64_t stale = random();
            Memory expected(shape, stale), memory(shape, stale);
            const Denormals denormals(flush);
            Append(&ReferenceAppendToPage, shape, first_slot, k, v, &expected);
            Append(append(), shape, first_slot, k, v, &memory);
            ASSERT_TRUE(memory.bytes == expected.bytes);
          }
        }
      }
    }
  }
}

std::vector<Appending> Appendings() {
  std::vector<Appending> all;
  for (const KvType type : kKvTypes) {
    all.push_back({type, false});
    if (type != KvType::kF32) all.push_back({type, true});
  }
  return all;
}
INSTANTIATE_TEST_SUITE_P(Types, PagePackTest, testing::ValuesIn(Appendings()), [](const auto& info) {
  return std::string(KvTypeName(info.param.type)) + (info.param.vbmi ? "_vbmi" : "");
});

// The least element halfway between two multiples of the scale, others next to nothing or halfway: quotients that lie
// next to halfway.
std::vector<float> MiddleValues(int head_dim, std::mt19937_64& random) {
  constexpr int kMantissas[] = {128, 136, 144, 160, 170, 192, 204, 240};
  const float scale = std::ldexp(static_cast<float>(kMantissas[random() % std::size(kMantissas)]),
                                 static_cast<int>(random() % 40) - 20);
  const float low = -scale * (static_cast<float>(random() % 15) + 0.5f);
  std::vector<float> values;
  for (int i = 0; i < PageHeadElements(head_dim); ++i) {
    const float sign = random() % 2 == 0 ? 1 : -1;
    switch (random() % 4) {
      case 0:
        values.push_back(random() % 2 == 0 ? low : low + 15 * scale);
        break;
      case 1:
        values.push_back(sign * std::ldexp(scale, -static_cast<int>(random() % 40)));
        break;
      case 2:
        values.push_back(low + scale / 2 * static_cast<float>(random() % 31));
        break;
      default:
        values.push_back(random() % 2 == 0 ? 0 : low + scale * 15 * static_cast<float>(random() % 1000) / 1000);
    }
  }
  return values;
}

// Some of the tokens' elements of few values, zeros of both signs among them, or all of one sign.
void Repeat(std::vector<float>* values, size_t mode) {
  for (size_t i = 0; mode > 0 && i < values->size(); ++i) {
    float& x = (*values)[i];
    if (mode == 1) x = i % 5 == 0 ? (*values)[0] : i % 3 == 0 ? 0 : -0.0f;
    if (mode == 2) x = -std::abs(x);
    if (mode == 3) x = std::abs(x);
  }
}

// Rows of a whole page become what the reference makes of them, by appending, and closing if there is an open page.
TEST_P(PagePackTest, WholePagesHaveTheReferencesBits) {
  std::mt19937_64 random(3);
  for (const ElementType type : {ElementType::kF32, ElementType::kBf16}) {
    for (int head_dim = 16; head_dim <= 256; head_dim += 16) {
      const AttentionShape shape = ShapeOf(type, GetParam().type, head_dim);
      for (const Values kind : kAllValues) {
        for (int mode = 0; mode < 10; ++mode) {
          const bool flush = mode % 2 == 1;
          SCOPED_TRACE(std::string(ElementName(type)) + " rows, head_dim " + std::to_string(head_dim) + ", values " +
                       std::to_string(static_cast<int>(kind)) + ", mode " + std::to_string(mode));
          std::vector<float> values[2];
          for (std::vector<float>& some : values) {
            some = mode < 8 ? MakeValues(kind, kPageTokens, head_dim, random) : MiddleValues(head_dim, random);
            some.resize(kPageTokens * static_cast<size_t>(head_dim));
            Repeat(&some, static_cast<size_t>(mode / 2));
          }
          const TokenRows k(shape, values[0]), v(shape, values[1]);
          const uint64_t stale = random();
          Memory expected(shape, stale), memory(shape, stale);
          const Denormals denormals(flush);
          Append(&ReferenceAppendToPage, shape, 0, k, v, &expected);
          if (HasOpenPages(shape)) ReferenceClosePage(shape, kHead, expected.open(), expected.bytes.data());
          AppendArgs args = ArgsOf(0, k, v, &memory);
          if (mode / 2 % 2 == 1) {
            args.next_k = k.first();
            args.next_page_k = k.bytes.data();
          }
          append()(shape, args);
          const auto end = memory.bytes.begin() + static_cast<ptrdiff_t>(memory.page_bytes);
          ASSERT_TRUE(std::equal(memory.bytes.begin(), end, expected.bytes.begin()));
        }
      }
    }
  }
}

// Else the tests with VBMI would be those without.
TEST(VbmiPackTest, PacksWholePagesOfOrdinaryNumbers) {
  if (!CpuHasVbmi()) GTEST_SKIP() << "this CPU has no AVX512-VBMI";
  std::mt19937_64 random(5);
  for (const KvType type : {KvType::kBf16, KvType::kFp16, KvType::kInt8, KvType::kInt4}) {
    for (int head_dim = 16; head_dim <= 256; head_dim += 16) {
      const AttentionShape shape = ShapeOf(ElementType::kBf16, type, head_dim);
      std::vector<float> values = MakeValues(Values::kOrdinary, kPageTokens, head_dim, random);
      for (float& x : values) x = std::clamp(x, -65000.0f, 65000.0f);
      const TokenRows rows(shape, values);
      values.back() = INFINITY;
      const TokenRows infinite(shape, values);
      Memory memory(shape, 0);
      const bool packs = head_dim % 64 == 0, packs_all = packs && type == KvType::kBf16;
      EXPECT_EQ(Avx512VbmiPackPage(shape, ArgsOf(0, rows, rows, &memory)), packs);
      EXPECT_EQ(Avx512VbmiPackPage(shape, ArgsOf(0, infinite, rows, &memory)), packs_all);
      EXPECT_EQ(Avx512VbmiPackPage(shape, ArgsOf(0, rows, infinite, &memory)), packs_all);
      AppendArgs unaligned = ArgsOf(0, rows, rows, &memory);
      unaligned.page += 32;
      EXPECT_FALSE(Avx512VbmiPackPage(shape, unaligned));
    }
  }
}

// So many tokens of an open page become what appending them to a page of bf16 makes of them, and all else of V, but for
// the last pair, stays.
TEST(PackOpenHeadTest, WritesTheBitsOfAPageOfBf16) {
  std::mt19937_64 random(6);
  for (int head_dim = 16; head_dim <= 256; head_dim += 16) {
    const AttentionShape int4 = ShapeOf(ElementType::kBf16, KvType::kInt4, head_dim);
    const AttentionShape bf16 = ShapeOf(ElementType::kBf16, KvType::kBf16, head_dim);
    for (int tokens = 1; tokens <= kPageTokens; ++tokens) {
      SCOPED_TRACE("head_dim " + std::to_string(head_dim) + ", tokens " + std::to_string(tokens));
      const TokenRows k(bf16, MakeValues(Values::kOrdinary, tokens, head_dim, random));
      const TokenRows v(bf16, MakeValues(Values::kOrdinary, tokens, head_dim, random));
      Memory panels(bf16, random()), rows(int4, random());
      Append(&ReferenceAppendToPage, bf16, 0, k, v, &panels);
      Append(&ReferenceAppendToPage, int4, 0, k, v, &rows);
      OpenPage open = rows.open();
      for (int i = (tokens - 1) / kOpenPieceTokens + 1; i < kOpenPieces; ++i) open.pieces[i] = nullptr;
      constexpr Bf16 kStale = 0x7fc1;
      std::vector<Bf16> packed(static_cast<size_t>(PageHeadElements(head_dim)), kStale);
      Avx2PackOpenHead(head_dim, tokens, open, kHead, reinterpret_cast<std::byte*>(packed.data()));
      const Bf16* const expected =
          reinterpret_cast<const Bf16*>(panels.bytes.data()) + kHead * PageHeadElements(head_dim);
      for (int token = 0; token < kPageTokens; ++token) {
        for (int d = 0; d < head_dim; ++d) {
          const int of_k = token / kPanelLanes * kPanelLanes * head_dim + PanelOffset<Bf16>(d, token % kPanelLanes);
          const int of_v = PageKElements(head_dim) + d / kPanelLanes * kPanelLanes * kPageTokens +
                           PanelOffset<Bf16>(token, d % kPanelLanes);
          if (token < tokens) {
            ASSERT_EQ(packed[of_k], expected[of_k]) << "k of token " << token << ", dim " << d;
          }
          ASSERT_EQ(packed[of_v], token < (tokens + 1) / 2 * 2 ? expected[of_v] : kStale)
              << "v of token " << token << ", dim " << d;
        }
      }
    }
  }
}

// A head of int4 whose elements are `values`, as they are.
void FillOpenPage(const std::vector<float>& values, const OpenPage& open) {
  const size_t piece_elements = values.size() / kOpenPieces;
  for (size_t i = 0; i < values.size(); ++i) {
    const Bf16 element = static_cast<Bf16>(std::bit_cast<uint32_t>(values[i]) >> 16);
    std::byte* const piece = open.pieces[i / piece_elements] + kHead * open.head_stride_bytes;
    std::memcpy(piece + i % piece_elements * sizeof(element), &element, sizeof(element));
  }
}

void CheckClosing(const AttentionShape& shape, const std::vector<float>& values, bool adjacent, uint64_t stale) {
  Memory expected(shape, stale), memory(shape, stale);
  FillOpenPage(values, expected.open(adjacent));
  FillOpenPage(values, memory.open(adjacent));
  ReferenceClosePage(shape, kHead, expected.open(adjacent), expected.bytes.data());
  ClosePage(shape, kHead, memory.open(adjacent), memory.bytes.data());
  ASSERT_TRUE(memory.bytes == expected.bytes);
}

TEST(ClosePageTest, WritesTheReferencesBitsNextToHalfway) {
  std::mt19937_64 random(4);
  for (int page = 0; page < 300; ++page) {
    const int head_dim = page % 2 == 0 ? 128 : 48;
    const AttentionShape shape = ShapeOf(ElementType::kBf16, KvType::kInt4, head_dim);
    SCOPED_TRACE(page);
    ASSERT_NO_FATAL_FAILURE(CheckClosing(shape, MiddleValues(head_dim, random), true, random()));
  }
}

TEST(ClosePageTest, WritesTheReferencesBits) {
  std::mt19937_64 random(2);
  for (int head_dim = 16; head_dim <= 256; head_dim += 16) {
    const AttentionShape shape = ShapeOf(ElementType::kBf16, KvType::kInt4, head_dim);
    for (const Values kind : kAllValues) {
      for (const bool constant : {false, true}) {
        for (const bool adjacent : {false, true}) {
          for (const bool flush : {false, true}) {
            SCOPED_TRACE("head_dim " + std::to_string(head_dim) + ", values " + std::to_string(static_cast<int>(kind)) +
                         (constant ? ", constant" : "") + (adjacent ? ", adjacent" : "") + (flush ? ", flushed" : ""));
            std::vector<float> values = MakeValues(kind, 2 * kPageTokens, head_dim, random);
            // Of few values, zeros of both signs among them.
            for (size_t i = 0; constant && i < values.size(); ++i)
              values[i] = i % 5 == 0 ? values[0] : i % 3 == 0 ? 0 : -0.0f;
            const Denormals denormals(flush);
            ASSERT_NO_FATAL_FAILURE(CheckClosing(shape, values, adjacent, random()));
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace fastdecode
