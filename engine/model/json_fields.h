#ifndef FASTDECODE_ENGINE_MODEL_JSON_FIELDS_H_
#define FASTDECODE_ENGINE_MODEL_JSON_FIELDS_H_

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace fastdecode {

// Opens a file to read, without waiting for a pipe's other end. Errors name the path; a link that leads to nothing is
// no missing file (kNotFound), since somebody put it there.
absl::StatusOr<int> OpenToRead(const std::string& path);

// Reads a whole regular file of at most `bytes_max` bytes. Errors name the path.
absl::StatusOr<std::string> ReadTextFile(const std::string& path, int64_t bytes_max);

// Parses one JSON object. `file` is only named in errors. Nesting is bounded, so that no input makes the document's
// memory more than some dozen times the text. NaN, Infinity and -Infinity, which Python's json writes, become numbers
// that are not finite: no field takes one that is read.
absl::StatusOr<nlohmann::json> ParseJsonObject(std::string_view text, const std::string& file);

// Typed, bounded reading of one JSON object's fields. The first bad field is kept in `error` (as "FILE: FIELD is VALUE,
// expected ..."); later calls return their fallback or lower bound, so that a reader is a plain list of fields with one
// check at its end. A field that is null counts as absent. Owns: nothing; object and error outlive it.
class JsonFields {
 public:
  // `prefix` is put before the names of fields in errors, such as "rope_scaling.".
  JsonFields(const nlohmann::json& object, std::string file, std::string prefix, absl::Status* error);

  bool Has(const char* name) const { return Find(name) != nullptr; }
  // Whether it is there, be it null.
  bool Contains(const char* name) const { return object_.contains(name); }
  // True for a field that is there with the value null.
  bool IsNull(const char* name) const;

  // REQUIRED fields: absent is an error. An integer may be written as 2048.0.
  int64_t Integer(const char* name, int64_t min, int64_t max);
  double Number(const char* name, double min, double max);
  std::string String(const char* name);

  // Optional fields.
  int64_t IntegerOr(const char* name, int64_t min, int64_t max, int64_t fallback);
  double NumberOr(const char* name, double min, double max, double fallback);
  bool BoolOr(const char* name, bool fallback);
  std::string StringOr(const char* name, const std::string& fallback);

  // The value of a field, null if it is absent.
  const nlohmann::json* Find(const char* name) const;
  // Keeps the error that `name`'s value is not `expected` ("FILE: NAME is missing" if it is not there).
  void Fail(const char* name, const std::string& expected);

  const std::string& file() const { return file_; }

 private:
  const nlohmann::json& object_;
  const std::string file_;
  const std::string prefix_;
  absl::Status* const error_;
};

// Whether Python's "if value" goes on: false for null, false, 0, and an empty string, list or object.
bool IsTruthy(const nlohmann::json& value);

// A value as errors show it: JSON text, cut to a readable length.
std::string ShowJson(const nlohmann::json& value);

// Text out of a file as errors show it, such as a name or a parser's message that quotes it: as inside a JSON string,
// in ASCII without control characters, cut to a readable length.
std::string ShowText(std::string_view text, size_t bytes_max = 80);

// What the parser says of text that is no JSON. It quotes what it read last, be it the whole text.
std::string ShowParseError(const nlohmann::json::exception& error);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_MODEL_JSON_FIELDS_H_
