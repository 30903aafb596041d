#include "rdma/verbs/crc32c.h"

#include <nmmintrin.h>

#include <array>
#include <cstring>

namespace fastdecode {

namespace {

constexpr uint32_t kPolynomial = 0x82f63b78;  // reflected

constexpr std::array<uint32_t, 256> MakeTable() {
  std::array<uint32_t, 256> table = {};
  for (uint32_t byte = 0; byte < 256; ++byte) {
    uint32_t remainder = byte;
    for (int bit = 0; bit < 8; ++bit) remainder = (remainder >> 1) ^ ((remainder & 1) != 0 ? kPolynomial : 0);
    table[byte] = remainder;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = MakeTable();

__attribute__((target("sse4.2"))) uint32_t Crc32cByInstruction(uint32_t crc, const void* data, size_t bytes) {
  const unsigned char* at = static_cast<const unsigned char*>(data);
  uint64_t state = ~crc;
  for (; bytes >= sizeof(uint64_t); bytes -= sizeof(uint64_t), at += sizeof(uint64_t)) {
    uint64_t word;
    std::memcpy(&word, at, sizeof(word));
    state = _mm_crc32_u64(state, word);
  }
  uint32_t rest = static_cast<uint32_t>(state);
  for (; bytes > 0; --bytes, ++at) rest = _mm_crc32_u8(rest, *at);
  return ~rest;
}

using Crc32cFunction = uint32_t (*)(uint32_t, const void*, size_t);
Crc32cFunction Select() {
  __builtin_cpu_init();
  return __builtin_cpu_supports("sse4.2") ? Crc32cByInstruction : Crc32cByTable;
}
const Crc32cFunction kCrc32c = Select();

}  // namespace

uint32_t Crc32cByTable(uint32_t crc, const void* data, size_t bytes) {
  const unsigned char* at = static_cast<const unsigned char*>(data);
  uint32_t state = ~crc;
  for (; bytes > 0; --bytes, ++at) state = (state >> 8) ^ kTable[(state ^ *at) & 0xff];
  return ~state;
}

uint32_t Crc32c(uint32_t crc, const void* data, size_t bytes) { return kCrc32c(crc, data, bytes); }

}  // namespace fastdecode
