#ifndef FASTDECODE_TESTS_ENGINE_MODEL_SAFETENSORS_TEXT_H_
#define FASTDECODE_TESTS_ENGINE_MODEL_SAFETENSORS_TEXT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/model/safetensors.h"

namespace fastdecode {

// The bytes of a safetensors file with this header and buffer, right or wrong. The length field says `header_length`,
// or the header's own length if that is negative.
inline std::string SafetensorsText(const std::string& header, const std::string& buffer, int64_t header_length = -1) {
  const uint64_t length = header_length < 0 ? header.size() : static_cast<uint64_t>(header_length);
  std::string text;
  for (int i = 0; i < 8; ++i) text.push_back(static_cast<char>(length >> (8 * i) & 0xff));
  return text + header + buffer;
}

inline std::span<const std::byte> AsBytes(const std::string& text) { return std::as_bytes(std::span(text)); }

// A tensor of zeros to be written.
struct PlainTensor {
  std::string name;
  std::vector<int64_t> shape;
};

// A right file of bf16 zeros.
inline std::string ZeroSafetensors(const std::vector<PlainTensor>& tensors) {
  std::vector<std::string> entries;
  int64_t offset = 0;
  for (const PlainTensor& tensor : tensors) {
    int64_t end = 2;
    for (const int64_t extent : tensor.shape) end *= extent;
    end += offset;
    entries.push_back(absl::StrCat("\"", tensor.name, "\":{\"dtype\":\"BF16\",\"shape\":", ShowShape(tensor.shape),
                                   ",\"data_offsets\":[", offset, ",", end, "]}"));
    offset = end;
  }
  return SafetensorsText(absl::StrCat("{", absl::StrJoin(entries, ","), "}"),
                         std::string(static_cast<size_t>(offset), '\0'));
}

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_ENGINE_MODEL_SAFETENSORS_TEXT_H_
