// Python's arithmetic.
#include <algorithm>
#include <cmath>

#include "engine/text/jinja/budget.h"
#include "engine/text/jinja/failure.h"
#include "engine/text/jinja/formatting.h"
#include "engine/text/jinja/operations.h"

namespace fastdecode::jinja {

namespace {

using Kind = Value::Kind;

const char* SymbolOf(Arithmetic op) {
  switch (op) {
    case Arithmetic::kAdd:
      return "+";
    case Arithmetic::kSubtract:
      return "-";
    case Arithmetic::kMultiply:
      return "*";
    case Arithmetic::kDivide:
      return "/";
    case Arithmetic::kFloorDivide:
      return "//";
    case Arithmetic::kModulo:
      return "%";
    case Arithmetic::kPower:
      return "** or pow()";
  }
  return "";
}

void RequireFit(bool overflow) {
  if (overflow) throw Failure{.message = "an integer needs more than 128 bits"};
}

Integer FloorDivide(Integer a, Integer b) {
  const Integer quotient = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? quotient - 1 : quotient;
}

Integer FloorModulo(Integer a, Integer b) {
  const Integer rest = a % b;
  return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

Integer Power(Integer base, Integer exponent) {
  Integer result = 1;
  while (exponent > 0) {
    RequireFit((exponent & 1) != 0 && __builtin_mul_overflow(result, base, &result));
    exponent >>= 1;
    RequireFit(exponent > 0 && __builtin_mul_overflow(base, base, &base));
  }
  return result;
}

double FloatModulo(double a, double b) {
  const double rest = std::fmod(a, b);
  if (rest == 0) return std::copysign(0.0, b);
  return (rest < 0) != (b < 0) ? rest + b : rest;
}

Value CalculateIntegers(Arithmetic op, Integer a, Integer b, bool foreign) {
  Integer result = 0;
  switch (op) {
    case Arithmetic::kAdd:
      RequireFit(__builtin_add_overflow(a, b, &result));
      return Value::Int(result, foreign);
    case Arithmetic::kSubtract:
      RequireFit(__builtin_sub_overflow(a, b, &result));
      return Value::Int(result, foreign);
    case Arithmetic::kMultiply:
      RequireFit(__builtin_mul_overflow(a, b, &result));
      return Value::Int(result, foreign);
    case Arithmetic::kDivide:
      if (b == 0) throw Failure{.message = "division by zero"};
      return Value::Float(static_cast<double>(a) / static_cast<double>(b), foreign);
    case Arithmetic::kFloorDivide:
    case Arithmetic::kModulo: {
      if (b == 0) throw Failure{.message = "integer division or modulo by zero"};
      if (b == -1) return op == Arithmetic::kModulo ? Value::Int(0, foreign) : Negate(Value::Int(a, foreign));
      return Value::Int(op == Arithmetic::kModulo ? FloorModulo(a, b) : FloorDivide(a, b), foreign);
    }
    case Arithmetic::kPower:
      if (b >= 0) return Value::Int(Power(a, b), foreign);
      if (a == 0) throw Failure{.message = "zero to a negative power"};
      return Value::Float(std::pow(static_cast<double>(a), static_cast<double>(b)), foreign);
  }
  return Value();
}

Value CalculateFloats(Arithmetic op, double a, double b, bool foreign) {
  switch (op) {
    case Arithmetic::kAdd:
      return Value::Float(a + b, foreign);
    case Arithmetic::kSubtract:
      return Value::Float(a - b, foreign);
    case Arithmetic::kMultiply:
      return Value::Float(a * b, foreign);
    case Arithmetic::kPower: {
      if (a == 0 && b < 0) throw Failure{.message = "zero to a negative power"};
      if (a < 0 && b != std::floor(b)) throw Failure{.message = "complex numbers are not supported"};
      const double power = std::pow(a, b);
      if (std::isinf(power) && std::isfinite(a) && std::isfinite(b)) throw Failure{.message = "the power is too large"};
      return Value::Float(power, foreign);
    }
    default:
      if (b == 0) throw Failure{.message = "float division by zero"};
      if (op == Arithmetic::kDivide) return Value::Float(a / b, foreign);
      if (op == Arithmetic::kModulo) return Value::Float(FloatModulo(a, b), foreign);
      return Value::Float(std::floor((a - FloatModulo(a, b)) / b + 0.25), foreign);
  }
}

Value AddStrings(const Value& a, const Value& b) {
  const bool markup = a.markup() || b.markup();
  Text text = markup && !a.markup() ? Escaped(a.text()) : a.text();
  text.Append(markup && !b.markup() ? Escaped(b.text()) : b.text());
  return Value::String(std::move(text), markup);
}

Value AddSequences(const Value& a, const Value& b) {
  RequireSize(sizeof(Value), a.items().size() + b.items().size());
  std::vector<Value> items = a.items();
  items.insert(items.end(), b.items().begin(), b.items().end());
  return a.Is(Kind::kList) ? Value::List(std::move(items)) : Value::Tuple(std::move(items));
}

Value Repeat(const Value& value, Integer count) {
  const Integer times = std::clamp<Integer>(count, 0, SIZE_MAX);
  const size_t bytes = value.Is(Kind::kString) ? value.text().size() : value.items().size() * sizeof(Value);
  RequireSize(bytes, static_cast<size_t>(times));
  if (value.Is(Kind::kString)) {
    Text text;
    for (Integer i = 0; bytes != 0 && i < times; ++i) text.Append(value.text());
    return Value::String(std::move(text), value.markup());
  }
  std::vector<Value> items;
  for (Integer i = 0; bytes != 0 && i < times; ++i) {
    items.insert(items.end(), value.items().begin(), value.items().end());
  }
  return value.Is(Kind::kList) ? Value::List(std::move(items)) : Value::Tuple(std::move(items));
}

bool IsRepeatable(const Value& value) { return value.Is(Kind::kString) || value.is_sequence(); }

}  // namespace

std::optional<Integer> Truncated(double number) {
  if (!std::isfinite(number)) return std::nullopt;
  RequireFit(std::abs(number) >= 0x1p127);
  return static_cast<Integer>(number);
}

Integer RoundedToZeros(Integer integer, int zeros) {
  Integer scale = 1;
  for (int i = 0; i < zeros; ++i) {
    if (__builtin_mul_overflow(scale, Integer{10}, &scale)) return 0;  // more than twice any integer
  }
  const Integer down = FloorDivide(integer, scale), rest = FloorModulo(integer, scale);
  const bool up = rest > scale - rest || (rest == scale - rest && down % 2 != 0);
  Integer rounded = 0;
  RequireFit(__builtin_mul_overflow(down + (up ? 1 : 0), scale, &rounded));
  return rounded;
}

Value Calculate(Arithmetic op, const Value& a, const Value& b) {
  if (op == Arithmetic::kModulo && a.Is(Kind::kString)) return PercentFormat(a, b);
  RequireDefined(a);
  RequireDefined(b);
  const bool foreign = a.foreign() || b.foreign();
  if (a.is_integer() && b.is_integer()) return CalculateIntegers(op, a.integer(), b.integer(), foreign);
  if (a.is_number() && b.is_number()) return CalculateFloats(op, a.number(), b.number(), foreign);
  if (op == Arithmetic::kAdd && a.Is(Kind::kString) && b.Is(Kind::kString)) return AddStrings(a, b);
  if (op == Arithmetic::kAdd && a.is_sequence() && a.kind() == b.kind()) return AddSequences(a, b);
  if (op == Arithmetic::kMultiply && IsRepeatable(a) && b.is_integer()) return Repeat(a, b.integer());
  if (op == Arithmetic::kMultiply && IsRepeatable(b) && a.is_integer()) return Repeat(b, a.integer());
  throw Failure{.message = std::string("unsupported operand type(s) for ") + SymbolOf(op) + ": '" + TypeName(a) +
                           "' and '" + TypeName(b) + "'"};
}

Value Negate(const Value& value) {
  RequireDefined(value);
  if (value.Is(Kind::kFloat)) return Value::Float(-value.number(), value.foreign());
  if (!value.is_integer()) throw Failure{.message = "bad operand type for unary -: '" + TypeName(value) + "'"};
  Integer result = 0;
  RequireFit(__builtin_sub_overflow(Integer{0}, value.integer(), &result));
  return Value::Int(result, value.foreign());
}

Value Plus(const Value& value) {
  RequireDefined(value);
  if (value.Is(Kind::kFloat)) return value;
  if (!value.is_integer()) throw Failure{.message = "bad operand type for unary +: '" + TypeName(value) + "'"};
  return Value::Int(value.integer(), value.foreign());
}

}  // namespace fastdecode::jinja
