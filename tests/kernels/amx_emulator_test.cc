// The emulator that stands in for AMX in the kernels' tests: against sums written down here, against the CPU where it
// has AMX, and that it refuses what a CPU refuses.
#include "tests/kernels/amx_emulator.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "kernels/float_types.h"
#include "kernels/isa.h"

namespace fastdecode {
namespace {

using Product = TileUnit::Product;
constexpr Product kProducts[] = {Product::kBf16, Product::kSignedSigned, Product::kSignedUnsigned,
                                 Product::kUnsignedSigned, Product::kUnsignedUnsigned};

struct Config {
  uint8_t bytes[64] = {1};
  Config& Set(int tile, int rows, int row_bytes) {
    bytes[16 + 2 * tile] = static_cast<uint8_t>(row_bytes);
    bytes[48 + tile] = static_cast<uint8_t>(rows);
    return *this;
  }
  const std::byte* data() const { return reinterpret_cast<const std::byte*>(bytes); }
};

// Tiles of 1 KB, rows 64 bytes apart.
struct Operands {
  alignas(64) std::byte sum[16][64] = {}, left[16][64], right[16][64];
};

// Finite numbers, some of them denormal, or any bytes.
Operands RandomOperands(Product product, uint64_t seed) {
  std::mt19937_64 random(seed);
  Operands operands;
  for (auto* tile : {&operands.left, &operands.right}) {
    for (auto& row : *tile) {
      for (int i = 0; i < 64; i += 2) {
        const Bf16 element = ToBf16(std::ldexp(std::normal_distribution<float>()(random), random() % 5 ? 0 : -130));
        const uint16_t bytes = static_cast<uint16_t>(random());
        std::memcpy(&row[i], product == Product::kBf16 ? static_cast<const void*>(&element) : &bytes, 2);
      }
    }
  }
  for (auto& row : operands.sum) {
    for (int i = 0; i < 64; i += 4) {
      const float element = std::normal_distribution<float>()(random);
      std::memcpy(&row[i], &element, 4);
    }
  }
  return operands;
}

// sum += left * right of tiles of these sizes, by a TileUnit.
Operands Emulate(Product product, int rows, int steps, int lanes, const Operands& before) {
  Operands operands = before;
  TileUnit unit;
  EXPECT_EQ(unit.LoadConfig(Config().Set(0, rows, 4 * lanes).Set(1, rows, 4 * steps).Set(2, steps, 4 * lanes).data()),
            nullptr);
  EXPECT_EQ(unit.Load(0, operands.sum[0], 64), nullptr);
  EXPECT_EQ(unit.Load(1, operands.left[0], 64), nullptr);
  EXPECT_EQ(unit.Load(2, operands.right[0], 64), nullptr);
  EXPECT_EQ(unit.Multiply(product, 0, 1, 2), nullptr);
  EXPECT_EQ(unit.Store(0, operands.sum[0], 64), nullptr);
  return operands;
}

// The same by the instructions.
Operands Execute(Product product, int rows, int steps, int lanes, const Operands& before) {
  Operands operands = before;
  const Config config = Config().Set(0, rows, 4 * lanes).Set(1, rows, 4 * steps).Set(2, steps, 4 * lanes);
  asm volatile("ldtilecfg %0" ::"m"(config));
  asm volatile("tileloadd (%0,%1,1), %%tmm0" ::"r"(operands.sum), "r"(64l) : "memory");
  asm volatile("tileloadd (%0,%1,1), %%tmm1" ::"r"(operands.left), "r"(64l) : "memory");
  asm volatile("tileloadd (%0,%1,1), %%tmm2" ::"r"(operands.right), "r"(64l) : "memory");
  switch (product) {
    case Product::kBf16:
      asm volatile("tdpbf16ps %tmm2, %tmm1, %tmm0");
      break;
    case Product::kSignedSigned:
      asm volatile("tdpbssd %tmm2, %tmm1, %tmm0");
      break;
    case Product::kSignedUnsigned:
      asm volatile("tdpbsud %tmm2, %tmm1, %tmm0");
      break;
    case Product::kUnsignedSigned:
      asm volatile("tdpbusd %tmm2, %tmm1, %tmm0");
      break;
    case Product::kUnsignedUnsigned:
      asm volatile("tdpbuud %tmm2, %tmm1, %tmm0");
      break;
  }
  asm volatile("tilestored %%tmm0, (%0,%1,1)" ::"r"(operands.sum), "r"(64l) : "memory");
  asm volatile("tilerelease");
  return operands;
}

template <typename T>
T At(const std::byte (&tile)[16][64], int row, int index) {
  T element;
  std::memcpy(&element, &tile[row][index * sizeof(T)], sizeof(T));
  return element;
}

int ByteAt(const std::byte (&tile)[16][64], int row, int index, bool is_signed) {
  return is_signed ? int{At<int8_t>(tile, row, index)} : int{At<uint8_t>(tile, row, index)};
}

float Flushed(float x) { return std::fpclassify(x) == FP_SUBNORMAL ? std::copysign(0.0f, x) : x; }

// As the manual writes it: element by element, zeros for denormals before and after.
float ExpectedFloat(const Operands& o, int m, int n, int steps) {
  float chain[2] = {0, 0};
  for (int k = 0; k < steps; ++k) {
    for (int i = 0; i < 2; ++i) {
      const float left = Flushed(FromBf16(At<Bf16>(o.left, m, 2 * k + i)));
      const float right = Flushed(FromBf16(At<Bf16>(o.right, k, 2 * n + i)));
      chain[i] = Flushed(std::fma(left, right, chain[i]));
    }
  }
  return Flushed(At<float>(o.sum, m, n) + Flushed(chain[0] + chain[1]));
}

int32_t ExpectedInt(const Operands& o, int m, int n, int steps, bool left_signed, bool right_signed) {
  int64_t sum = At<int32_t>(o.sum, m, n);
  for (int i = 0; i < 4 * steps; ++i) {
    sum += ByteAt(o.left, m, i, left_signed) * ByteAt(o.right, i / 4, 4 * n + i % 4, right_signed);
  }
  return static_cast<int32_t>(sum);  // wraps around
}

struct Size {
  int rows, steps, lanes;
};
constexpr Size kSizes[] = {{16, 16, 16}, {1, 16, 16}, {7, 10, 16}, {16, 1, 3}, {5, 4, 1}, {16, 8, 16}};

TEST(AmxEmulatorTest, ProductsAreWhatTheManualSays) {
  for (const Product product : kProducts) {
    for (const Size& size : kSizes) {
      const Operands before = RandomOperands(product, size.rows * 100 + size.steps);
      const Operands after = Emulate(product, size.rows, size.steps, size.lanes, before);
      for (int m = 0; m < 16; ++m) {
        for (int n = 0; n < 16; ++n) {
          const bool inside = m < size.rows && n < size.lanes;
          const uint32_t now = At<uint32_t>(after.sum, m, n);
          if (!inside) {
            ASSERT_EQ(now, At<uint32_t>(before.sum, m, n)) << "stored beyond the tile";
          } else if (product == Product::kBf16) {
            ASSERT_EQ(now, std::bit_cast<uint32_t>(ExpectedFloat(before, m, n, size.steps))) << m << " " << n;
          } else {
            const bool left = product == Product::kSignedSigned || product == Product::kSignedUnsigned;
            const bool right = product == Product::kSignedSigned || product == Product::kUnsignedSigned;
            ASSERT_EQ(static_cast<int32_t>(now), ExpectedInt(before, m, n, size.steps, left, right)) << m << " " << n;
          }
        }
      }
    }
  }
}

// On a CPU with AMX it is that CPU which runs; elsewhere this tests that instructions are decoded as they are written.
TEST(AmxEmulatorTest, InstructionsDoTheSame) {
  if (!CanRunTiles()) GTEST_SKIP() << "no AVX-512 BF16, VBMI and VBMI2";
  for (const Product product : kProducts) {
    for (const Size& size : kSizes) {
      const Operands before = RandomOperands(product, size.rows * 100 + size.steps + 1);
      const Operands emulated = Emulate(product, size.rows, size.steps, size.lanes, before);
      const Operands executed = Execute(product, size.rows, size.steps, size.lanes, before);
      ASSERT_EQ(std::memcmp(&executed, &emulated, sizeof(executed)), 0)
          << static_cast<int>(product) << " of " << size.rows << " " << size.steps << " " << size.lanes;
    }
  }
}

TEST(AmxEmulatorTest, AddressesAreDecoded) {
  if (!CanRunTiles()) GTEST_SKIP() << "no AVX-512 BF16, VBMI and VBMI2";
  static Config config;
  config = Config().Set(7, 3, 12);
  std::vector<uint32_t> from(400), to(400, 7);
  for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<uint32_t>(i);
  asm volatile("ldtilecfg %0" ::"m"(config));  // relative to the instruction, in code that may lie anywhere
  asm volatile("mov %0, %%r12; mov %1, %%r13; tileloadd 8(%%r13,%%r12,4), %%tmm7" ::"r"(10l), "r"(from.data())
               : "r12", "r13", "memory");
  asm volatile("mov %0, %%r9; mov %1, %%rbx; tilestored %%tmm7, 400(%%r9,%%rbx,2)" ::"r"(to.data()), "r"(-32l)
               : "r9", "rbx", "memory");
  alignas(64) std::byte stored[64];
  asm volatile("sttilecfg %0" : "=m"(stored));
  asm volatile("tilerelease");
  EXPECT_EQ(std::memcmp(stored, config.bytes, 64), 0);
  std::vector<uint32_t> expected(400, 7);
  for (int row = 0; row < 3; ++row) {
    for (int i = 0; i < 3; ++i) expected[100 - 16 * row + i] = static_cast<uint32_t>(2 + 10 * row + i);
  }
  EXPECT_EQ(to, expected);
}

TEST(AmxEmulatorTest, EachThreadHasItsOwnTiles) {
  if (!CanRunTiles()) GTEST_SKIP() << "no AVX-512 BF16, VBMI and VBMI2";
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 200; ++i) {
        const Operands before = RandomOperands(Product::kBf16, static_cast<uint64_t>(1000 * t + i));
        const Operands emulated = Emulate(Product::kBf16, 1 + t, 16, 16, before);
        const Operands executed = Execute(Product::kBf16, 1 + t, 16, 16, before);
        ASSERT_EQ(std::memcmp(&executed, &emulated, sizeof(executed)), 0) << t;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(AmxEmulatorTest, RefusesWhatACpuRefuses) {
  const auto refused = [](Config config) { return TileUnit().LoadConfig(config.data()) != nullptr; };
  EXPECT_FALSE(refused(Config()));
  Config palette, reserved;
  palette.bytes[0] = 2;
  reserved.bytes[9] = 1;
  EXPECT_TRUE(refused(palette));
  EXPECT_TRUE(refused(reserved));
  EXPECT_TRUE(refused(Config().Set(0, 17, 64)));
  EXPECT_TRUE(refused(Config().Set(0, 16, 65)));
  EXPECT_TRUE(refused(Config().Set(0, 16, 0)));
  EXPECT_TRUE(refused(Config().Set(0, 0, 64)));
  EXPECT_TRUE(refused(Config().Set(8, 16, 64)));

  alignas(64) std::byte memory[16][64] = {};
  TileUnit unit;
  EXPECT_NE(unit.Zero(0), nullptr) << "no configuration";
  ASSERT_EQ(unit.LoadConfig(
                Config().Set(0, 4, 64).Set(1, 4, 32).Set(2, 8, 64).Set(3, 8, 32).Set(4, 5, 32).Set(5, 4, 6).data()),
            nullptr);
  EXPECT_EQ(unit.Multiply(Product::kBf16, 0, 1, 2), nullptr);
  EXPECT_NE(unit.Multiply(Product::kBf16, 0, 0, 2), nullptr);
  EXPECT_NE(unit.Multiply(Product::kBf16, 0, 4, 2), nullptr) << "rows";
  EXPECT_NE(unit.Multiply(Product::kBf16, 0, 1, 3), nullptr) << "columns";
  EXPECT_NE(unit.Multiply(Product::kBf16, 0, 1, 0), nullptr) << "steps";
  EXPECT_NE(unit.Load(5, memory[0], 64), nullptr) << "half a dword";
  EXPECT_NE(unit.Load(6, memory[0], 64), nullptr) << "no shape";
  EXPECT_NE(unit.Load(8, memory[0], 64), nullptr);
  unit.Release();
  EXPECT_NE(unit.Store(0, memory[0], 64), nullptr);
}

TEST(AmxEmulatorDeathTest, ARefusalEndsTheProgram) {
  if (!CanRunTiles()) GTEST_SKIP() << "no AVX-512 BF16, VBMI and VBMI2";
  EXPECT_DEATH(asm volatile("tilezero %tmm0"), DetectIsa() == Isa::kAmx ? "" : "tiles are not configured");
  EXPECT_DEATH(asm volatile("ud2"), DetectIsa() == Isa::kAmx ? "" : "no tile instruction");
}

}  // namespace
}  // namespace fastdecode
