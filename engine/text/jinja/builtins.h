#ifndef FASTDECODE_ENGINE_TEXT_JINJA_BUILTINS_H_
#define FASTDECODE_ENGINE_TEXT_JINJA_BUILTINS_H_

#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/jinja/value.h"

// What templates find there: filters, tests, functions, and the methods of Python's types.
namespace fastdecode::jinja {

using Filter = Value (*)(Interpreter& interpreter, const Value& input, const Arguments& arguments);
using Test = bool (*)(Interpreter& interpreter, const Value& input, const Arguments& arguments);
using Method = Value (*)(Interpreter& interpreter, const Value& self, const Arguments& arguments);

// Null: there is none of this name.
Filter FindFilter(std::string_view name);
Test FindTest(std::string_view name);
Method FindStringMethod(std::string_view name);
// What an attribute of a value other than an Object is: a method, or what the sandbox makes of one that changes it.
std::optional<Value> BuiltinAttribute(const Value& object, const std::string& name);

// range, dict, namespace and the other names that every template knows; null: it is none.
const Value* FindGlobal(std::string_view name);

// Views of a dict, which are no lists: items(), keys(), values().
Value DictItems(const Dict& dict);

// The arguments of a function of Python's, by their names. Failures say which one is missing or too many.
class ArgumentReader {
 public:
  // `required`: so many of the first must be there.
  ArgumentReader(const char* function, const Arguments& given, std::initializer_list<const char*> names,
                 size_t required = 0);

  bool Has(size_t index) const { return values_[index].has_value(); }
  Value Get(size_t index, Value fallback = Value::None()) const { return values_[index].value_or(fallback); }
  // Absent or None: the fallback. Failure: the value has another type.
  Integer Int(size_t index, Integer fallback) const;
  bool True(size_t index, bool fallback) const;
  Value String(size_t index, const char* fallback) const;  // a string; REQUIRED if there is no fallback

 private:
  const char* const function_;
  std::vector<const char*> names_;
  std::vector<std::optional<Value>> values_;
};

// The function's name again. Failure: there are named arguments, which it does not take.
const char* Positional(const char* function, const Arguments& given);

enum class Case { kUpper, kLower, kCapitalized, kTitle, kSwapped, kFolded };
Text WithCase(const Text& text, Case to);
Text Replaced(const Text& text, const Text& from, const Text& to, Integer count);
// The lines of a text, as Python's splitlines has them.
std::vector<Text::Span> Lines(std::string_view text, bool with_ends);
bool IsLowerText(std::string_view text);
bool IsUpperText(std::string_view text);
// Whether a regular expression's \w fits one character.
bool IsWordText(std::string_view character);

}  // namespace fastdecode::jinja

#endif  // FASTDECODE_ENGINE_TEXT_JINJA_BUILTINS_H_
