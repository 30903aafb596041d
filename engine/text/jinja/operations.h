#ifndef FASTDECODE_ENGINE_TEXT_JINJA_OPERATIONS_H_
#define FASTDECODE_ENGINE_TEXT_JINJA_OPERATIONS_H_

#include <cstddef>
#include <cstdint>
#include <memory>
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
// Python's int(number). None: there is no such integer. Failure: it needs more than 128 bits.
std::optional<Integer> Truncated(double number);
// Python's round(integer, -zeros), for more than no zeros: halves go to the even one.
Integer RoundedToZeros(Integer integer, int zeros);

// len(). Failure: it has none.
size_t Length(const Value& value);
std::optional<size_t> LengthIfAny(const Value& value);
// list(): items of a sequence, characters, keys, what an iterator has left. None: not iterable.
std::optional<std::vector<Value>> ItemsIfAny(const Value& value);
std::vector<Value> ItemsOf(const Value& value);  // Failure: not iterable
// The same to read: what a list or a tuple has is shared, not copied.
class SharedItems {
 public:
  explicit SharedItems(std::shared_ptr<const std::vector<Value>> items) : items_(std::move(items)) {}
  explicit SharedItems(std::vector<Value> items)
      : items_(std::make_shared<const std::vector<Value>>(std::move(items))) {}
  size_t size() const { return items_->size(); }
  bool empty() const { return items_->empty(); }
  const Value& operator[](size_t index) const { return (*items_)[index]; }
  auto begin() const { return items_->begin(); }
  auto end() const { return items_->end(); }

 private:
  std::shared_ptr<const std::vector<Value>> items_;
};
std::optional<SharedItems> SharedItemsIfAny(const Value& value);  // none: not iterable
SharedItems SharedItemsOf(const Value& value);                    // Failure: not iterable

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
