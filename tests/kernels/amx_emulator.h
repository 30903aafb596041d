#ifndef FASTDECODE_TESTS_KERNELS_AMX_EMULATOR_H_
#define FASTDECODE_TESTS_KERNELS_AMX_EMULATOR_H_

#include <cstddef>
#include <cstdint>

namespace fastdecode {

// One thread's tiles, as Intel's Software Developer's Manual says what the instructions of AMX-TILE, AMX-INT8 and
// AMX-BF16 do. What a CPU would refuse (#UD, #GP) returns the reason, else it is null. Stricter than a CPU: a tile that
// has no shape may not be used, and no load is resumed at a row.
class TileUnit {
 public:
  enum class Product { kBf16, kSignedSigned, kSignedUnsigned, kUnsignedSigned, kUnsignedUnsigned };  // left, right

  const char* LoadConfig(const std::byte* config);  // 64 bytes
  void StoreConfig(std::byte* config) const;
  void Release() { *this = TileUnit(); }
  const char* Zero(int tile);
  const char* Load(int tile, const std::byte* rows, ptrdiff_t stride_bytes);
  const char* Store(int tile, std::byte* rows, ptrdiff_t stride_bytes) const;
  // sum[m][n] += sum over k of left[m][k] · right[k][n]
  const char* Multiply(Product product, int sum, int left, int right);

 private:
  static constexpr int kTiles = 8, kRows = 16, kRowBytes = 64;
  struct Tile {
    int rows = 0, row_bytes = 0;
    alignas(64) std::byte data[kRows][kRowBytes] = {};
  };

  const char* CheckUse(int tile) const;

  bool configured_ = false;
  Tile tiles_[kTiles];
};

// Whether code with these instructions runs here from now on: by the CPU, or if it lacks only AMX, trapped (SIGILL) and
// executed by a TileUnit of the thread's own, which ends the program with the reason where a CPU would refuse. What it
// reads and writes counts as the program's own access, for guard pages and sanitizers alike.
bool CanRunTiles();

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_KERNELS_AMX_EMULATOR_H_
