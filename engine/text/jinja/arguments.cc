// The arguments of functions, filters and methods by their names.
#include "engine/text/jinja/builtins.h"
#include "engine/text/jinja/failure.h"
#include "engine/text/jinja/operations.h"

namespace fastdecode::jinja {

ArgumentReader::ArgumentReader(const char* function, const Arguments& given, std::initializer_list<const char*> names,
                               size_t required)
    : function_(function), names_(names), values_(names_.size()) {
  const std::string name = function;
  if (given.positional.size() > names_.size()) {
    throw Failure{.message = name + "() takes at most " + std::to_string(names_.size()) + " argument(s), " +
                             std::to_string(given.positional.size()) + " given"};
  }
  for (size_t i = 0; i < given.positional.size(); ++i) values_[i] = given.positional[i];
  for (const auto& [key_value, value] : given.named) {
    const std::string& key = key_value.bytes();
    size_t index = 0;
    while (index < names_.size() && key != names_[index]) ++index;
    if (index == names_.size()) throw Failure{.message = name + "() got an unexpected keyword argument '" + key + "'"};
    if (values_[index]) throw Failure{.message = name + "() got multiple values for argument '" + key + "'"};
    values_[index] = value;
  }
  for (size_t i = 0; i < required; ++i) {
    if (!values_[i]) throw Failure{.message = name + "() missing the argument '" + names_[i] + "'"};
  }
}

Integer ArgumentReader::Int(size_t index, Integer fallback) const {
  if (!values_[index] || values_[index]->Is(Value::Kind::kNone)) return fallback;
  RequireDefined(*values_[index]);
  if (!values_[index]->is_integer()) {
    throw Failure{.message = std::string(function_) + "(): " + names_[index] + " must be an integer, not " +
                             TypeName(*values_[index])};
  }
  return values_[index]->integer();
}

bool ArgumentReader::True(size_t index, bool fallback) const {
  return values_[index] ? IsTrue(*values_[index]) : fallback;
}

Value ArgumentReader::String(size_t index, const char* fallback) const {
  if (!values_[index] && fallback != nullptr) return Value::String(fallback);
  Value value = Get(index);
  RequireDefined(value);
  if (!value.Is(Value::Kind::kString)) {
    throw Failure{.message =
                      std::string(function_) + "(): " + names_[index] + " must be a string, not " + TypeName(value)};
  }
  return value;
}

const char* Positional(const char* function, const Arguments& given) {
  if (!given.named.empty()) throw Failure{.message = std::string(function) + "() takes no keyword arguments"};
  return function;
}

}  // namespace fastdecode::jinja
