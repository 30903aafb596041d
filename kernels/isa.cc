#include "kernels/isa.h"

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

namespace fastdecode {
namespace {

struct CpuidRegisters {
  uint32_t eax = 0, ebx = 0, ecx = 0, edx = 0;
};

// Zeros where the CPU does not know the leaf.
CpuidRegisters Cpuid(uint32_t leaf, uint32_t subleaf) {
  CpuidRegisters r;
  if (!__get_cpuid_count(leaf, subleaf, &r.eax, &r.ebx, &r.ecx, &r.edx)) return CpuidRegisters();
  return r;
}

constexpr bool Bit(uint64_t word, int bit) { return (word >> bit) & 1; }

// The register states that the kernel saves (XCR0); 0 where it does not use XSAVE.
uint64_t SavedStates() {
  if (!Bit(Cpuid(1, 0).ecx, 27)) return 0;  // OSXSAVE
  uint32_t low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (static_cast<uint64_t>(high) << 32) | low;
}

constexpr uint64_t kYmmState = 0x6;       // SSE, AVX
constexpr uint64_t kZmmState = 0xe6;      // and opmask, ZMM_Hi256, Hi16_ZMM
constexpr uint64_t kTileState = 0x60000;  // XTILECFG, XTILEDATA

// Linux gives a process the state of AMX, bit 18, when it asks. Older kernels know no such question.
bool TilesAreGranted() {
  constexpr long kArchReqXcompPerm = 0x1023, kTileData = 18;
  static const bool granted = syscall(SYS_arch_prctl, kArchReqXcompPerm, kTileData) == 0;
  return granted;
}

}  // namespace

Isa DetectIsa() {
  const uint64_t saved = SavedStates();
  const CpuidRegisters leaf1 = Cpuid(1, 0);
  const CpuidRegisters leaf7 = Cpuid(7, 0);
  const bool fma = Bit(leaf1.ecx, 12), f16c = Bit(leaf1.ecx, 29), avx2 = Bit(leaf7.ebx, 5);
  if ((saved & kYmmState) != kYmmState || !fma || !f16c || !avx2) return Isa::kNone;
#ifdef FASTDECODE_AVX2_ONLY
  return Isa::kAvx2;  // the build has no others
#endif

  const bool avx512 =
      Bit(leaf7.ebx, 16) && Bit(leaf7.ebx, 17) && Bit(leaf7.ebx, 30) && Bit(leaf7.ebx, 31);  // F DQ BW VL
  if ((saved & kZmmState) != kZmmState || !avx512) return Isa::kAvx2;

  if (!Bit(leaf7.ecx, 11)) return Isa::kAvx512;  // AVX512-VNNI
  const bool avx512_bf16 = leaf7.eax >= 1 && Bit(Cpuid(7, 1).eax, 5);
  if (!avx512_bf16) return Isa::kAvx512Vnni;
  return CpuHasAmxKernels() && TilesAreGranted() ? Isa::kAmx : Isa::kAvx512Bf16;
}

bool CpuHasAmxKernels() {
  const uint32_t tiles = Cpuid(7, 0).edx;
  const bool bf16 = Bit(tiles, 22), tile = Bit(tiles, 24), int8 = Bit(tiles, 25);
  return (SavedStates() & kTileState) == kTileState && tile && bf16 && int8 && CpuHasVbmi();
}

bool CpuHasVbmi() {
  const CpuidRegisters leaf7 = Cpuid(7, 0);
  return (SavedStates() & kZmmState) == kZmmState && Bit(leaf7.ecx, 1) && Bit(leaf7.ecx, 6);
}

bool CpuIsAmd() {
  constexpr uint32_t kAuth = 0x68747541;            // of "AuthenticAMD"
  static const bool is = Cpuid(0, 0).ebx == kAuth;  // guests pay for each CPUID
  return is;
}

bool CpuIsZen5OrLater() {
  const auto family = [](uint32_t version) { return (version >> 8 & 0xf) + (version >> 20 & 0xff); };
  static const bool is = CpuIsAmd() && family(Cpuid(1, 0).eax) >= 26;
  return is;
}

const char* IsaName(Isa isa) {
  switch (isa) {
    case Isa::kNone:
      return "none";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kAvx512Vnni:
      return "avx512vnni";
    case Isa::kAvx512Bf16:
      return "avx512bf16";
    case Isa::kAmx:
      return "amx";
  }
  return "none";
}

bool ParseIsa(const std::string& name, Isa* isa) {
  for (Isa candidate : kIsas) {
    if (name == IsaName(candidate)) {
      *isa = candidate;
      return true;
    }
  }
  return false;
}

}  // namespace fastdecode
