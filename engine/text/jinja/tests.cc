// Tests: what may stand behind `is`.
#include <map>

#include "engine/text/jinja/builtins.h"
#include "engine/text/jinja/failure.h"
#include "engine/text/jinja/operations.h"

namespace fastdecode::jinja {

namespace {

using Kind = Value::Kind;

template <Kind kind>
bool IsKind(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("test", arguments, {});
  return input.Is(kind);
}

template <bool wanted>
bool IsDefined(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("defined", arguments, {});
  return input.Is(Kind::kUndefined) != wanted;
}

template <bool wanted>
bool IsBoolean(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("true", arguments, {});
  return input.Is(Kind::kBool) && input.boolean() == wanted;
}

bool IsNumber(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("number", arguments, {});
  return input.is_number();
}

bool IsIterable(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("iterable", arguments, {});
  if (input.Is(Kind::kObject)) return input.object().iterable();
  return !input.is_number() && !input.Is(Kind::kNone);
}

bool IsSequence(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("sequence", arguments, {});
  if (input.Is(Kind::kObject)) return input.object().indexable();
  return input.Is(Kind::kString) || input.is_sequence() || input.Is(Kind::kDict) || input.Is(Kind::kUndefined);
}

bool IsCallable(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("callable", arguments, {});
  return input.Is(Kind::kUndefined) || (input.Is(Kind::kObject) && input.object().callable());
}

bool IsSameAs(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("sameas", arguments, {"other"}, 1);
  return input.IsSame(reader.Get(0));
}

bool IsEscaped(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("escaped", arguments, {});
  return input.markup();
}

bool IsIn(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("in", arguments, {"seq"}, 1);
  return Contains(reader.Get(0), input);
}

bool IsLowerTest(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("lower", arguments, {});
  return IsLowerText(Printed(input).bytes());
}

bool IsUpperTest(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("upper", arguments, {});
  return IsUpperText(Printed(input).bytes());
}

template <bool wanted>
bool IsEqual(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("eq", arguments, {"other"}, 1);
  return Equal(input, reader.Get(0)) == wanted;
}

enum class Order { kLess, kLessEqual, kGreater, kGreaterEqual };

template <Order order>
bool IsOrdered(Interpreter&, const Value& input, const Arguments& arguments) {
  static constexpr const char* kSymbols[] = {"<", "<=", ">", ">="};
  const ArgumentReader reader("comparison", arguments, {"other"}, 1);
  const std::optional<int> sign = Compare(input, reader.Get(0), kSymbols[static_cast<int>(order)]);
  if (!sign) return false;
  switch (order) {
    case Order::kLess:
      return *sign < 0;
    case Order::kLessEqual:
      return *sign <= 0;
    case Order::kGreater:
      return *sign > 0;
    case Order::kGreaterEqual:
      return *sign >= 0;
  }
  return false;
}

bool HasRest(const Value& input, const Value& divisor, Integer rest) {
  return Equal(Calculate(Arithmetic::kModulo, input, divisor), Value::Int(rest));
}

bool IsDivisible(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("divisibleby", arguments, {"num"}, 1);
  return HasRest(input, reader.Get(0), 0);
}

template <int rest>
bool IsParity(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader(rest == 0 ? "even" : "odd", arguments, {});
  return HasRest(input, Value::Int(2), rest);
}

bool IsFilter(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("filter", arguments, {});
  return input.Is(Kind::kString) && FindFilter(input.bytes()) != nullptr;
}

bool IsTest(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("test", arguments, {});
  return input.Is(Kind::kString) && FindTest(input.bytes()) != nullptr;
}

bool IsAnyBoolean(Interpreter&, const Value& input, const Arguments& arguments) {
  const ArgumentReader reader("boolean", arguments, {});
  return input.Is(Kind::kBool);
}

}  // namespace

Test FindTest(std::string_view name) {
  static const std::map<std::string_view, Test> kTests = {
      {"!=", &IsEqual<false>},
      {"<", &IsOrdered<Order::kLess>},
      {"<=", &IsOrdered<Order::kLessEqual>},
      {"==", &IsEqual<true>},
      {">", &IsOrdered<Order::kGreater>},
      {">=", &IsOrdered<Order::kGreaterEqual>},
      {"boolean", &IsAnyBoolean},
      {"callable", &IsCallable},
      {"defined", &IsDefined<true>},
      {"divisibleby", &IsDivisible},
      {"eq", &IsEqual<true>},
      {"equalto", &IsEqual<true>},
      {"escaped", &IsEscaped},
      {"even", &IsParity<0>},
      {"false", &IsBoolean<false>},
      {"filter", &IsFilter},
      {"float", &IsKind<Kind::kFloat>},
      {"ge", &IsOrdered<Order::kGreaterEqual>},
      {"greaterthan", &IsOrdered<Order::kGreater>},
      {"gt", &IsOrdered<Order::kGreater>},
      {"in", &IsIn},
      {"integer", &IsKind<Kind::kInteger>},
      {"iterable", &IsIterable},
      {"le", &IsOrdered<Order::kLessEqual>},
      {"lessthan", &IsOrdered<Order::kLess>},
      {"lower", &IsLowerTest},
      {"lt", &IsOrdered<Order::kLess>},
      {"mapping", &IsKind<Kind::kDict>},
      {"ne", &IsEqual<false>},
      {"none", &IsKind<Kind::kNone>},
      {"number", &IsNumber},
      {"odd", &IsParity<1>},
      {"sameas", &IsSameAs},
      {"sequence", &IsSequence},
      {"string", &IsKind<Kind::kString>},
      {"test", &IsTest},
      {"true", &IsBoolean<true>},
      {"undefined", &IsDefined<false>},
      {"upper", &IsUpperTest},
  };
  const auto found = kTests.find(name);
  return found == kTests.end() ? nullptr : found->second;
}

}  // namespace fastdecode::jinja
