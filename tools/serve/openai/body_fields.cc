#include "tools/serve/openai/body_fields.h"

#include <cmath>
#include <cstdio>

#include "tools/serve/api_error.h"
#include "tools/serve/openai/json_text.h"
#include "tools/serve/openai/utf8.h"

namespace fastdecode::serve {
namespace {

constexpr size_t kShownBytesMax = 60;
constexpr int32_t kTokenIdMax = std::numeric_limits<int32_t>::max();

ApiError WrongType(const char* name, const nlohmann::json& value, const char* wanted) {
  return BadField(name, std::string(name) + ": " + ShowValue(value) + " is not " + wanted);
}

std::string ShowFloat(float value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", static_cast<double>(value));
  return text;
}

}  // namespace

const nlohmann::json* BodyFields::Find(const char* name) const {
  const auto found = body_.find(name);
  return found == body_.end() || found->is_null() ? nullptr : &*found;
}

std::optional<bool> BodyFields::Bool(const char* name) const {
  const nlohmann::json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_boolean()) throw WrongType(name, *value, "true or false");
  return value->get<bool>();
}

std::optional<int64_t> BodyFields::Integer(const char* name, int64_t low, int64_t high, const char* advice) const {
  const nlohmann::json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) throw WrongType(name, *value, "an integer");
  const std::optional<int64_t> integer = AsInteger(*value);
  if (!integer && value->is_number_float() && std::fabs(value->get<double>()) < 0x1p53) {
    throw WrongType(name, *value, "an integer");
  }
  if (!integer || *integer < low || *integer > high) {
    throw BadField(name, std::string(name) + ": " + ShowValue(*value) + " is not in [" + std::to_string(low) + ", " +
                             std::to_string(high) + "]" + advice);
  }
  return integer;
}

std::optional<float> BodyFields::Float(const char* name, float low, float high, const char* advice) const {
  const nlohmann::json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_number()) throw WrongType(name, *value, "a number");
  const double wide = value->get<double>();
  // A double that no float comes near stays out of every range; what rounds to a limit is let in.
  const bool is_float = std::fabs(wide) <= double{std::numeric_limits<float>::max()};
  const float number = is_float ? static_cast<float>(wide) : std::numeric_limits<float>::quiet_NaN();
  if (!(number >= low && number <= high)) {
    throw BadField(name, std::string(name) + ": " + ShowValue(*value) + " is not in [" + ShowFloat(low) + ", " +
                             ShowFloat(high) + "]" + advice);
  }
  return number;
}

std::optional<std::string> BodyFields::String(const char* name) const {
  const nlohmann::json* const value = Find(name);
  if (value == nullptr) return std::nullopt;
  if (!value->is_string()) throw WrongType(name, *value, "a string");
  return value->get<std::string>();
}

std::vector<int32_t> BodyFields::TokenIds(const char* name, size_t count_max) const {
  const nlohmann::json* const value = Find(name);
  if (value == nullptr) return {};
  if (!value->is_array()) throw WrongType(name, *value, "a list of token ids");
  if (value->size() > count_max) {
    throw BadField(name, std::string(name) + ": there are " + std::to_string(value->size()) + " ids, more than " +
                             std::to_string(count_max));
  }
  return ReadTokenIds(*value, name, name);
}

std::string ShowValue(const nlohmann::json& value) {
  if (value.is_array()) return "a list of " + std::to_string(value.size());
  if (value.is_object()) return "an object";
  if (!value.is_string()) return value.dump();
  const auto& text = value.get_ref<const std::string&>();
  std::string shown;
  AppendJsonString(CutUtf8(text, kShownBytesMax), &shown);
  return text.size() > kShownBytesMax ? shown + "..." : shown;
}

std::optional<int64_t> AsInteger(const nlohmann::json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
    return static_cast<int64_t>(number);
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (!value.is_number_float()) return std::nullopt;
  const auto number = value.get<double>();
  // Every double in here with nothing behind its point is an int64_t.
  if (!(number >= -0x1p63 && number < 0x1p63) || number != std::trunc(number)) return std::nullopt;
  return static_cast<int64_t>(number);
}

std::vector<int32_t> ReadTokenIds(const nlohmann::json& list, std::string_view param, const std::string& what) {
  std::vector<int32_t> ids;
  ids.reserve(list.size());
  for (const nlohmann::json& element : list) {
    const std::optional<int64_t> id = AsInteger(element);
    if (!id || *id < 0 || *id > kTokenIdMax) {
      throw BadField(param, what + "[" + std::to_string(ids.size()) + "]: " + ShowValue(element) +
                                " is not a token id, which is an integer from 0 on");
    }
    ids.push_back(static_cast<int32_t>(*id));
  }
  return ids;
}

}  // namespace fastdecode::serve
