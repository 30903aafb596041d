#ifndef FASTDECODE_ENGINE_TEXT_JINJA_OPERATIONS_H_
#define FASTDECODE_ENGINE_TEXT_JINJA_OPERATIONS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "engine/text/jinja/value.h"

// What Python does with values: types, truth, comparison, arithmetic, iteration, indexing. Failures say what Python
// says.
namespace fastdecode::jinja {

// "str", "dict", ...
std::string TypeName(const Value& value);
// Throws if the value is undefined: its use is an error.
void RequireDefined(const Value& value);

bool IsTrue(const Value& value);
bool Equal(const Value& a, const Value& b);
// Less than zero, zero, more; none where a NaN is compared. Failure: the types have no order.
std::optional<int> Compare(const Value& a, const Value& b, const char* op);
// `in`.
bool Contains(const Value& container, const Value& item);

enum class Arithmetic { kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo, kPower };
Value Calculate(Arithmetic op, const Value& a, const Value& b);
Value Negate(const Value& value);
Value Plus(const Value& value);

// len(). Failure: it has none.
size_t Length(const Value& value);
std::optional<size_t> LengthIfAny(const Value& value);
// list(): items of a sequence, characters, keys, what an iterator has left. None: not iterable.
std::optional<std::vector<Value>> ItemsIfAny(const Value& value);
std::vector<Value> ItemsOf(const Value& value);  // Failure: not iterable

// value[index]. None: there is no such item.
std::optional<Value> Item(const Value& value, const Value& index);
// value[from:to:step]. Each may be None. Undefined: it cannot be sliced.
Value Slice(const Value& value, const Value& from, const Value& to, const Value& step);

// str() and repr(). What they add of their own, such as quotes, counts as foreign beside foreign text.
Text Printed(const Value& value);
Text Represented(const Value& value);
void AppendPrinted(const Value& value, Text* out);
// ascii(): repr() with escapes for what is not ASCII.
Text RepresentedInAscii(const Value& value);
// Python's escape of one character: \xNN, \uNNNN or \UNNNNNNNN.
std::string HexEscape(char32_t c);
// Python's repr of a float.
std::string PrintFloat(double number);
std::string PrintInteger(Integer integer);

// An iterator over items that were computed before.
Value Iterator(std::vector<Value> items, const char* type_name = "generator");

}  // namespace fastdecode::jinja

#endif  // FASTDECODE_ENGINE_TEXT_JINJA_OPERATIONS_H_
