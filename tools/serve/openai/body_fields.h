#ifndef FASTDECODE_TOOLS_SERVE_OPENAI_BODY_FIELDS_H_
#define FASTDECODE_TOOLS_SERVE_OPENAI_BODY_FIELDS_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "nlohmann/json.hpp"

namespace fastdecode::serve {

// The fields of a request's body, by name and type. Null is the same as absent. What has another type, or is out of
// range, throws an ApiError that names the field and shows its value. Lends: the body. Thread: any.
class BodyFields {
 public:
  explicit BodyFields(const nlohmann::json& body) : body_(body) {}

  const nlohmann::json* Find(const char* name) const;  // null: absent

  std::optional<bool> Bool(const char* name) const;
  bool Bool(const char* name, bool absent) const { return Bool(name).value_or(absent); }
  // `advice` goes behind what is said of a value that is out of range: "; 0 is off".
  std::optional<int64_t> Integer(const char* name, int64_t low, int64_t high, const char* advice = "") const;
  // The limits are floats, so that a value can be at one of them.
  std::optional<float> Float(const char* name, float low, float high, const char* advice = "") const;
  std::optional<std::string> String(const char* name) const;
  // A list of token ids, none below 0; at most `count_max`.
  std::vector<int32_t> TokenIds(const char* name, size_t count_max = std::numeric_limits<size_t>::max()) const;

 private:
  const nlohmann::json& body_;
};

// A value for a message: short, whatever it is.
std::string ShowValue(const nlohmann::json& value);
// The integer that a number is, written as 3 or 3.0; nothing for other values and those that no int64_t has.
std::optional<int64_t> AsInteger(const nlohmann::json& value);
// Reads the elements of a list of token ids. `param`: the field. `what`: how a message calls the list, such as
// "prompt[2]".
std::vector<int32_t> ReadTokenIds(const nlohmann::json& list, std::string_view param, const std::string& what);

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_OPENAI_BODY_FIELDS_H_
