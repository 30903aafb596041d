#include "tests/kernels/amx_emulator.h"

#include <immintrin.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>
#include <unistd.h>

#include "kernels/isa.h"

namespace fastdecode {
namespace {

constexpr int kLanes = 16;  // of 32 bits

float Bf16At(uint32_t pair, int odd) {
  const uint32_t bits = odd ? pair & 0xffff0000u : pair << 16;
  float value;
  memcpy(&value, &bits, sizeof(value));
  return value;
}

// A row of the sum: each of its lanes adds the chain of even elements' FMAs and that of the odd ones' to what it holds.
// The caller has set denormals to be zeros and rounding to nearest, as the CPU does whatever MXCSR says.
void MultiplyBf16(const uint32_t* left, const uint32_t (*right)[kLanes], int steps, float* sum, int lanes) {
  float even[kLanes] = {}, odd[kLanes] = {};
  for (int k = 0; k < steps; ++k) {
    const float left_even = Bf16At(left[k], 0), left_odd = Bf16At(left[k], 1);
    for (int n = 0; n < kLanes; ++n) {
      even[n] = __builtin_fmaf(left_even, Bf16At(right[k][n], 0), even[n]);
      odd[n] = __builtin_fmaf(left_odd, Bf16At(right[k][n], 1), odd[n]);
    }
  }
  for (int n = 0; n < lanes; ++n) sum[n] += even[n] + odd[n];
}

template <typename Left, typename Right>
void MultiplyBytes(const uint32_t* left, const uint32_t (*right)[kLanes], int steps, uint32_t* sum, int lanes) {
  for (int k = 0; k < steps; ++k) {
    for (int i = 0; i < 32; i += 8) {
      const int32_t factor = static_cast<Left>(left[k] >> i);
      for (int n = 0; n < lanes; ++n) {
        sum[n] += static_cast<uint32_t>(factor * int32_t{static_cast<Right>(right[k][n] >> i)});
      }
    }
  }
}

// DAZ and FTZ, all exceptions masked, to nearest even.
class TileRounding {
 public:
  TileRounding() : saved_(_mm_getcsr()) { _mm_setcsr(0x9fc0); }
  ~TileRounding() { _mm_setcsr(saved_); }

 private:
  const unsigned saved_;
};

}  // namespace

const char* TileUnit::LoadConfig(const std::byte* config) {
  uint8_t bytes[64];
  memcpy(bytes, config, sizeof(bytes));
  Release();
  if (bytes[0] == 0) return nullptr;
  if (bytes[0] != 1) return "a palette other than 0 and 1";
  for (int i = 1; i < 16; ++i) {
    if (bytes[i] != 0) return "a start row or a reserved byte is set";
  }
  for (int i = 0; i < 16; ++i) {
    uint16_t row_bytes;
    memcpy(&row_bytes, bytes + 16 + 2 * i, sizeof(row_bytes));
    const int rows = bytes[48 + i];
    if (i >= kTiles) {
      if (rows != 0 || row_bytes != 0) return "a shape for a tile that palette 1 has not";
      continue;
    }
    if (rows > kRows || row_bytes > kRowBytes) return "more than 16 rows or 64 bytes a row";
    if ((rows == 0) != (row_bytes == 0)) return "rows without bytes, or bytes without rows";
    tiles_[i].rows = rows;
    tiles_[i].row_bytes = row_bytes;
  }
  configured_ = true;
  return nullptr;
}

void TileUnit::StoreConfig(std::byte* config) const {
  uint8_t bytes[64] = {};
  bytes[0] = configured_;
  for (int i = 0; i < kTiles; ++i) {
    const uint16_t row_bytes = static_cast<uint16_t>(tiles_[i].row_bytes);
    memcpy(bytes + 16 + 2 * i, &row_bytes, sizeof(row_bytes));
    bytes[48 + i] = static_cast<uint8_t>(tiles_[i].rows);
  }
  memcpy(config, bytes, sizeof(bytes));
}

const char* TileUnit::CheckUse(int tile) const {
  if (!configured_) return "tiles are not configured";
  if (tile >= kTiles) return "a tile that palette 1 has not";
  if (tiles_[tile].rows == 0) return "a tile without a shape";
  if (tiles_[tile].row_bytes % 4 != 0) return "rows that are not of whole dwords";
  return nullptr;
}

const char* TileUnit::Zero(int tile) {
  if (const char* refused = CheckUse(tile)) return refused;
  memset(tiles_[tile].data, 0, sizeof(tiles_[tile].data));
  return nullptr;
}

const char* TileUnit::Load(int tile, const std::byte* rows, ptrdiff_t stride_bytes) {
  if (const char* refused = Zero(tile)) return refused;
  Tile& to = tiles_[tile];
  for (int r = 0; r < to.rows; ++r) memcpy(to.data[r], rows + r * stride_bytes, static_cast<size_t>(to.row_bytes));
  return nullptr;
}

const char* TileUnit::Store(int tile, std::byte* rows, ptrdiff_t stride_bytes) const {
  if (const char* refused = CheckUse(tile)) return refused;
  const Tile& from = tiles_[tile];
  for (int r = 0; r < from.rows; ++r) {
    memcpy(rows + r * stride_bytes, from.data[r], static_cast<size_t>(from.row_bytes));
  }
  return nullptr;
}

const char* TileUnit::Multiply(Product product, int sum, int left, int right) {
  for (const int tile : {sum, left, right}) {
    if (const char* refused = CheckUse(tile)) return refused;
  }
  if (sum == left || sum == right || left == right) return "a tile twice in a product";
  Tile &c = tiles_[sum], &a = tiles_[left], &b = tiles_[right];
  if (c.rows != a.rows) return "sum and left tile have different rows";
  if (c.row_bytes != b.row_bytes) return "sum and right tile have different columns";
  if (a.row_bytes / 4 != b.rows) return "the left tile's columns are not the right one's rows";

  alignas(64) uint32_t b_steps[kRows][kLanes], a_row[kLanes], c_row[kLanes];
  memcpy(b_steps, b.data, sizeof(b_steps));
  const int steps = b.rows, lanes = c.row_bytes / 4;
  const TileRounding rounding;
  for (int m = 0; m < c.rows; ++m) {
    memcpy(a_row, a.data[m], sizeof(a_row));
    memcpy(c_row, c.data[m], sizeof(c_row));
    switch (product) {
      case Product::kBf16: {
        float floats[kLanes];
        memcpy(floats, c_row, sizeof(floats));
        MultiplyBf16(a_row, b_steps, steps, floats, lanes);
        memcpy(c_row, floats, sizeof(floats));
        break;
      }
      case Product::kSignedSigned:
        MultiplyBytes<int8_t, int8_t>(a_row, b_steps, steps, c_row, lanes);
        break;
      case Product::kSignedUnsigned:
        MultiplyBytes<int8_t, uint8_t>(a_row, b_steps, steps, c_row, lanes);
        break;
      case Product::kUnsignedSigned:
        MultiplyBytes<uint8_t, int8_t>(a_row, b_steps, steps, c_row, lanes);
        break;
      case Product::kUnsignedUnsigned:
        MultiplyBytes<uint8_t, uint8_t>(a_row, b_steps, steps, c_row, lanes);
        break;
    }
    memcpy(c.data[m], c_row, sizeof(c_row));
  }
  return nullptr;
}

namespace {

// An instruction of AMX: VEX.128.map 0F38.W0, with pp being 0 for no prefix, 1 for 66, 2 for F3, 3 for F2.
struct Instruction {
  int opcode, pp, reg, rm, vvvv;
  bool memory;
  uint64_t base;   // of a memory operand: base + displacement
  int64_t stride;  // its index, scaled
  int bytes;
};

uint64_t RegisterAt(const greg_t* gregs, int number) {
  constexpr int kOrder[] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                            REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
  return static_cast<uint64_t>(gregs[kOrder[number]]);
}

int64_t Displacement(const uint8_t* at, int bytes) {
  int32_t wide = 0;
  if (bytes == 1) return static_cast<int8_t>(*at);
  if (bytes == 4) memcpy(&wide, at, sizeof(wide));
  return wide;
}

// Registers as they stand: an instruction has one memory operand at most. False: none of ours.
bool Decode(const greg_t* gregs, Instruction* instruction) {
  const uint8_t* const code = reinterpret_cast<const uint8_t*>(gregs[REG_RIP]);
  if (code[0] != 0xc4 || (code[1] & 0x1f) != 2 || (code[2] & 0x84) != 0) return false;
  const int x = (~code[1] >> 6 & 1) << 3, b = (~code[1] >> 5 & 1) << 3, r = (~code[1] >> 7 & 1) << 3;
  const int mod = code[4] >> 6, rm = code[4] & 7;
  *instruction = {code[3], code[2] & 3, (code[4] >> 3 & 7) + r, rm + b, ~code[2] >> 3 & 15, mod != 3, 0, 0, 5};
  if (mod == 3) return true;
  const uint8_t* next = code + 5;
  int displacement_bytes = mod == 1 ? 1 : mod == 2 ? 4 : 0;
  bool relative = false;
  if (rm == 4) {
    const int scale = *next >> 6, index = (*next >> 3 & 7) + x, base = *next & 7;
    ++next;
    if (index != 4) instruction->stride = static_cast<int64_t>(RegisterAt(gregs, index)) << scale;
    if (mod == 0 && base == 5) {
      displacement_bytes = 4;
    } else {
      instruction->base = RegisterAt(gregs, base + b);
    }
  } else if (mod == 0 && rm == 5) {
    displacement_bytes = 4;
    relative = true;
  } else {
    instruction->base = RegisterAt(gregs, rm + b);
  }
  instruction->base += static_cast<uint64_t>(Displacement(next, displacement_bytes));
  next += displacement_bytes;
  if (relative) instruction->base += reinterpret_cast<uint64_t>(next);
  instruction->bytes = static_cast<int>(next - code);
  return true;
}

constexpr char kUnknown[] = "no tile instruction";

const char* Execute(const Instruction& i, TileUnit* unit) {
  std::byte* const memory = reinterpret_cast<std::byte*>(i.base);
  using Product = TileUnit::Product;
  switch (i.opcode << 4 | i.pp << 1 | i.memory) {
    case 0x490 | 0 << 1 | 1:
      return unit->LoadConfig(memory);
    case 0x490 | 1 << 1 | 1:
      unit->StoreConfig(memory);
      return nullptr;
    case 0x490 | 0 << 1 | 0:
      unit->Release();
      return nullptr;
    case 0x490 | 3 << 1 | 0:
      return unit->Zero(i.reg);
    case 0x4b0 | 3 << 1 | 1:
    case 0x4b0 | 1 << 1 | 1:
      return unit->Load(i.reg, memory, i.stride);
    case 0x4b0 | 2 << 1 | 1:
      return unit->Store(i.reg, memory, i.stride);
    case 0x5c0 | 2 << 1 | 0:
      return unit->Multiply(Product::kBf16, i.reg, i.rm, i.vvvv);
    case 0x5e0 | 3 << 1 | 0:
      return unit->Multiply(Product::kSignedSigned, i.reg, i.rm, i.vvvv);
    case 0x5e0 | 2 << 1 | 0:
      return unit->Multiply(Product::kSignedUnsigned, i.reg, i.rm, i.vvvv);
    case 0x5e0 | 1 << 1 | 0:
      return unit->Multiply(Product::kUnsignedSigned, i.reg, i.rm, i.vvvv);
    case 0x5e0 | 0 << 1 | 0:
      return unit->Multiply(Product::kUnsignedUnsigned, i.reg, i.rm, i.vvvv);
    default:
      return kUnknown;
  }
}

thread_local TileUnit tile_unit;

void OnIllegalInstruction(int, siginfo_t*, void* context) {
  greg_t* const gregs = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  Instruction instruction;
  const char* refused = Decode(gregs, &instruction) ? Execute(instruction, &tile_unit) : kUnknown;
  if (refused != nullptr) {
    for (const char* text : {"illegal instruction: ", refused, "\n"}) {
      if (write(STDERR_FILENO, text, strlen(text)) < 0) break;
    }
    abort();
  }
  gregs[REG_RIP] += instruction.bytes;
}

bool TrapTiles() {
  struct sigaction action = {};
  action.sa_sigaction = OnIllegalInstruction;
  action.sa_flags = SA_SIGINFO | SA_NODEFER;
  return sigaction(SIGILL, &action, nullptr) == 0;
}

}  // namespace

bool CanRunTiles() {
  if (DetectIsa() != Isa::kAvx512Bf16 || !CpuHasVbmi()) return DetectIsa() == Isa::kAmx;
  static const bool trapped = TrapTiles();
  return trapped;
}

}  // namespace fastdecode
