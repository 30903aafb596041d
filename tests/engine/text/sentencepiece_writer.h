#ifndef FASTDECODE_TESTS_ENGINE_TEXT_SENTENCEPIECE_WRITER_H_
#define FASTDECODE_TESTS_ENGINE_TEXT_SENTENCEPIECE_WRITER_H_

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace fastdecode {

// Writers of protobuf's wire format, and of a SentencePiece model in it.

inline std::string Varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
  return out;
}

inline std::string VarintField(uint32_t number, uint64_t value) {
  return absl::StrCat(Varint(number << 3), Varint(value));
}

inline std::string BytesField(uint32_t number, std::string_view bytes) {
  return absl::StrCat(Varint(number << 3 | 2), Varint(bytes.size()), std::string(bytes));
}

inline std::string FloatField(uint32_t number, float value) {
  std::string out = Varint(number << 3 | 5);
  for (int shift = 0; shift < 32; shift += 8) {
    out.push_back(static_cast<char>(std::bit_cast<uint32_t>(value) >> shift));
  }
  return out;
}

// Types of pieces.
inline constexpr int kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6;

inline std::string PieceField(std::string_view text, float score, int type) {
  return BytesField(1, absl::StrCat(BytesField(1, text), FloatField(2, score), VarintField(3, type)));
}

inline std::string ByteFields() {
  std::string out;
  for (int byte = 0; byte < 256; ++byte) absl::StrAppend(&out, PieceField(absl::StrFormat("<0x%02X>", byte), 0, kByte));
  return out;
}

inline std::string TrainerField(std::string_view fields) { return BytesField(2, fields); }
inline std::string NormalizerField(std::string_view fields) { return BytesField(3, fields); }

inline const std::string kBpe = VarintField(3, 2);            // of the trainer's spec
inline const std::string kByteFallback = VarintField(35, 1);  // of the trainer's spec
inline const std::string kKeepSpaces = VarintField(4, 0);     // of the normalizer's spec

// <unk>, <s> and </s>, as most models have them.
inline std::string SpecialFields() {
  return absl::StrCat(PieceField("<unk>", 0, kUnknown), PieceField("<s>", 0, kControl),
                      PieceField("</s>", 0, kControl));
}

// A model of 11 pieces, whose scores fall with their ids.
inline std::string SmallPieces() {
  std::string out = SpecialFields();
  float score = 0;
  for (const char* text : {"ab", "abc", "bc", "\u2581a", "\u2581", "a", "b", "c"}) {
    absl::StrAppend(&out, PieceField(text, score--, kNormal));
  }
  return out;
}
inline std::string SmallModel() {
  return absl::StrCat(SmallPieces(), TrainerField(kBpe), NormalizerField(kKeepSpaces));
}

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_ENGINE_TEXT_SENTENCEPIECE_WRITER_H_
