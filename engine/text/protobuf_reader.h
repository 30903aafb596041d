#ifndef FASTDECODE_ENGINE_TEXT_PROTOBUF_READER_H_
#define FASTDECODE_ENGINE_TEXT_PROTOBUF_READER_H_

#include <cstdint>
#include <string>
#include <string_view>

namespace fastdecode {

// How a field's value is written.
enum class WireType { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

// One field of a protobuf message as it is written: what it means is up to whoever knows the message.
struct WireField {
  uint32_t number = 0;
  WireType type = WireType::kVarint;
  uint64_t value = 0;      // kVarint, kFixed64, kFixed32
  std::string_view bytes;  // kBytes, such as a text or a message
};

// Walks over the fields of one message in protobuf's wire format (https://protobuf.dev/programming-guides/encoding/).
// Groups, which no message has had for long, are an error.
//
// Owns: nothing; the message outlives it. Thread: one caller at a time. Bounded: one pass over the message.
class WireReader {
 public:
  explicit WireReader(std::string_view message) : message_(message), rest_(message) {}

  // The next field; false at the end of the message and at the first error.
  bool Next(WireField* field);

  // What is wrong and at which byte of the message, such as "the varint at byte 7 is cut off"; empty if nothing is.
  const std::string& error() const { return error_; }

 private:
  bool ReadVarint(uint64_t* value);
  bool ReadFixed(size_t bytes, uint64_t* value);
  bool ReadBytes(std::string_view* bytes);
  bool Fail(const std::string& what, std::string_view at);

  const std::string_view message_;
  std::string_view rest_;
  std::string error_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_TEXT_PROTOBUF_READER_H_
