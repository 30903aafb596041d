#include "engine/text/protobuf_reader.h"

#include "absl/strings/str_cat.h"

namespace fastdecode {

bool WireReader::Next(WireField* field) {
  if (rest_.empty() || !error_.empty()) return false;
  const std::string_view begin = rest_;
  uint64_t tag = 0;
  if (!ReadVarint(&tag)) return false;
  *field = WireField();
  if (tag >> 3 == 0 || tag >> 3 > 0x1FFFFFFF) return Fail(absl::StrCat("field number ", tag >> 3), begin);
  field->number = static_cast<uint32_t>(tag >> 3);
  switch (tag & 7) {
    case 0:
      field->type = WireType::kVarint;
      return ReadVarint(&field->value);
    case 1:
      field->type = WireType::kFixed64;
      return ReadFixed(8, &field->value);
    case 2:
      field->type = WireType::kBytes;
      return ReadBytes(&field->bytes);
    case 5:
      field->type = WireType::kFixed32;
      return ReadFixed(4, &field->value);
    default:
      return Fail(absl::StrCat("field ", field->number, " has wire type ", tag & 7, ", expected 0, 1, 2 or 5"), begin);
  }
}

bool WireReader::ReadVarint(uint64_t* value) {
  const std::string_view begin = rest_;
  *value = 0;
  for (int shift = 0; shift < 70; shift += 7) {
    if (rest_.empty()) return Fail("a varint is cut off", begin);
    const auto byte = static_cast<uint8_t>(rest_[0]);
    rest_.remove_prefix(1);
    if (shift == 63 && byte > 1) break;
    *value |= uint64_t{byte & 0x7Fu} << shift;
    if (byte < 0x80) return true;
  }
  return Fail("a varint is longer than 64 bits", begin);
}

bool WireReader::ReadFixed(size_t bytes, uint64_t* value) {
  if (rest_.size() < bytes) return Fail(absl::StrCat("a value of ", bytes, " bytes is cut off"), rest_);
  for (size_t i = 0; i < bytes; ++i) *value |= uint64_t{static_cast<uint8_t>(rest_[i])} << (8 * i);
  rest_.remove_prefix(bytes);
  return true;
}

bool WireReader::ReadBytes(std::string_view* bytes) {
  const std::string_view begin = rest_;
  uint64_t length = 0;
  if (!ReadVarint(&length)) return false;
  if (length > rest_.size()) {
    return Fail(absl::StrCat("a length is ", length, ", but ", rest_.size(), " bytes are left"), begin);
  }
  *bytes = rest_.substr(0, length);
  rest_.remove_prefix(length);
  return true;
}

bool WireReader::Fail(const std::string& what, std::string_view at) {
  error_ = absl::StrCat(what, " at byte ", at.data() - message_.data());
  return false;
}

}  // namespace fastdecode
