#ifndef FASTDECODE_ENGINE_API_SIZED_STRUCT_H_
#define FASTDECODE_ENGINE_API_SIZED_STRUCT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "absl/strings/str_format.h"

namespace fastdecode {

// Structs of callers who may know an older or newer header than this library. Each begins with uint32_t struct_size,
// and grows at its end alone.

// Whether some version of the header can have set it: every such struct consists of whole 8-byte words, two at least.
inline bool IsStructSize(size_t bytes) { return bytes >= 16 && bytes % 8 == 0 && bytes <= 1 << 16; }

// Copies what both sides know of *given over *out, which holds the defaults. Returns what is wrong, or nothing: `name`
// with a size that is none, or with bytes that only a newer library knows and that are not 0.
template <class Struct>
std::string ReadSizedAt(const char* name, const void* given, size_t bytes, Struct* out) {
  static_assert(std::is_trivially_copyable_v<Struct> && sizeof(Struct) % 8 == 0);
  if (!IsStructSize(bytes)) {
    return absl::StrFormat(
        "%s.struct_size: %d is no size of this struct, which now has %d bytes: its init function, or "
        "the caller, sets it to sizeof(%s)",
        name, bytes, sizeof(Struct), name);
  }
  const char* const from = static_cast<const char*>(given);
  for (size_t i = sizeof(Struct); i < bytes; ++i) {
    if (from[i] == 0) continue;
    return absl::StrFormat(
        "%s.struct_size: its caller uses fields behind byte %d, where it ends for this library, "
        "version " FASTDECODE_VERSION ": a newer one is needed, or these fields must be 0",
        name, sizeof(Struct));
  }
  std::memcpy(static_cast<void*>(out), from, std::min(bytes, sizeof(Struct)));
  out->struct_size = sizeof(Struct);
  return "";
}

template <class Struct>
std::string ReadSized(const char* name, const Struct* given, Struct* out) {
  if (given == nullptr) return std::string(name) + ": it is NULL";
  return ReadSizedAt(name, given, given->struct_size, out);
}

// Fills in a caller's struct of `bytes` bytes: what it does not know is left out, and what this library does not know
// is 0. REQUIRES: IsStructSize(bytes).
template <class Struct>
void WriteSized(const Struct& from, size_t bytes, void* out) {
  static_assert(std::is_trivially_copyable_v<Struct> && sizeof(Struct) % 8 == 0);
  const size_t known = std::min(bytes, sizeof(Struct));
  std::memcpy(out, &from, known);
  std::memset(static_cast<char*>(out) + known, 0, bytes - known);
  const uint32_t size = static_cast<uint32_t>(bytes);
  std::memcpy(out, &size, sizeof(size));
}

// Sets a caller's struct to its defaults, as init functions do. A size that is none leaves it alone.
template <class Struct>
void InitSized(const Struct& defaults, size_t bytes, Struct* out) {
  if (IsStructSize(bytes)) WriteSized(defaults, bytes, out);
}

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_API_SIZED_STRUCT_H_
