#include "tools/latency/export/saved_fields.h"

#include <cmath>
#include <utility>

namespace fastdecode {

namespace {

constexpr size_t kShownMax = 60;

// Short enough for a message.
std::string Shown(const nlohmann::json& value) {
  if (value.is_array()) return "an array of " + std::to_string(value.size());
  if (value.is_object()) return "an object";
  std::string text = value.dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
  if (text.size() > kShownMax) text = text.substr(0, kShownMax) + "...";
  return text;
}

}  // namespace

void SavedFields::Refuse(const std::string& what) const {
  if (!status_->ok()) return;
  *status_ = absl::InvalidArgumentError(*file_ + ": " + (path_.empty() ? "the document" : path_) + ": " +
                                        Shown(*value_) + " " + what);
}

SavedFields SavedFields::At(const char* key) const {
  static const nlohmann::json kNull;
  const std::string path = path_.empty() ? key : path_ + "." + key;
  if (!value_->is_object()) {
    Refuse("is not an object");
    return SavedFields(&kNull, path, file_, status_);
  }
  const auto member = value_->find(key);
  if (member != value_->end()) return SavedFields(&*member, path, file_, status_);
  if (status_->ok()) *status_ = absl::InvalidArgumentError(*file_ + ": " + path + ": missing");
  return SavedFields(&kNull, path, file_, status_);
}

std::vector<SavedFields> SavedFields::Elements() const {
  std::vector<SavedFields> elements;
  if (!value_->is_array()) {
    Refuse("is not an array");
    return elements;
  }
  elements.reserve(value_->size());
  for (const nlohmann::json& element : *value_) {
    elements.emplace_back(&element, path_ + "[" + std::to_string(elements.size()) + "]", file_, status_);
  }
  return elements;
}

std::string SavedFields::String() const {
  if (const auto* text = value_->get_ptr<const std::string*>()) return *text;
  Refuse("is not a string");
  return "";
}

bool SavedFields::Bool() const {
  if (value_->is_boolean()) return value_->get<bool>();
  Refuse("is not true or false");
  return false;
}

uint64_t SavedFields::Count(uint64_t most) const {
  // The parser keeps every whole number that is not negative as unsigned.
  const bool whole = value_->is_number_unsigned() || (value_->is_number_integer() && value_->get<int64_t>() >= 0);
  if (!whole) {
    Refuse("is not a whole number of 0 or more");
    return 0;
  }
  const uint64_t count = value_->get<uint64_t>();
  if (count > most) {
    Refuse("is more than " + std::to_string(most));
    return 0;
  }
  return count;
}

std::optional<uint64_t> SavedFields::OptionalCount() const {
  if (value_->is_null()) return std::nullopt;
  return Count();
}

double SavedFields::Number() const {
  if (value_->is_null()) return std::nan("");
  if (value_->is_number()) return value_->get<double>();
  Refuse("is not a number");
  return 0;
}

std::optional<double> SavedFields::OptionalNumber() const {
  if (value_->is_null()) return std::nullopt;
  return Number();
}

int SavedFields::Index() const {
  if (value_->is_null()) return -1;
  return static_cast<int>(Count(std::numeric_limits<int>::max()));
}

std::vector<uint64_t> SavedFields::Ascending(size_t most) const {
  std::vector<uint64_t> values;
  if (value_->is_array() && value_->size() > most) {
    Refuse("has more than " + std::to_string(most));
    return values;
  }
  for (const SavedFields& element : Elements()) {
    values.push_back(element.Count());
    if (values.size() > 1 && values.back() < values[values.size() - 2]) element.Refuse("is less than the one before");
  }
  return values;
}

}  // namespace fastdecode
