#include "engine/text/jinja/operations.h"

#include <algorithm>
#include <cmath>

#include "engine/text/jinja/budget.h"
#include "engine/text/jinja/failure.h"
#include "engine/text/utf8.h"

namespace fastdecode::jinja {

namespace {

using Kind = Value::Kind;

class ItemIterator final : public Object {
 public:
  ItemIterator(std::vector<Value> items, const char* type_name)
      : Object(DeepestOf(items)), items_(std::move(items)), type_name_(type_name) {}
  std::string TypeName() const override { return type_name_; }
  std::optional<std::vector<Value>> Items() override { return std::exchange(items_, {}); }
  bool iterable() const override { return true; }
  void Clear() override { items_.clear(); }

 private:
  std::vector<Value> items_;
  const char* const type_name_;
};

int Sign(const auto& a, const auto& b) { return a < b ? -1 : b < a ? 1 : 0; }

int CompareExactly(Integer integer, double number) {
  const double whole = std::floor(number);
  const int sign = Sign(integer, static_cast<Integer>(whole));
  return sign == 0 && number > whole ? -1 : sign;
}

std::optional<int> CompareNumbers(const Value& a, const Value& b) {
  if (a.is_integer() && b.is_integer()) return Sign(a.integer(), b.integer());
  const double x = a.number(), y = b.number();
  if (x != x || y != y) return std::nullopt;
  // An integer and a float are compared by their exact values.
  if (a.is_integer() && std::abs(y) < 1e38) return CompareExactly(a.integer(), y);
  if (b.is_integer() && std::abs(x) < 1e38) return -CompareExactly(b.integer(), x);
  return Sign(x, y);
}

// The index that Python's s[i] means; none if it is outside.
std::optional<size_t> Place(Integer index, size_t length) {
  if (index < 0) index += static_cast<Integer>(length);
  if (index < 0 || index >= static_cast<Integer>(length)) return std::nullopt;
  return static_cast<size_t>(index);
}

// As Python's slice.indices does it.
struct Steps {
  Integer begin, end, step;
};
Steps SliceSteps(const Value& from, const Value& to, const Value& step, size_t size) {
  const auto length = static_cast<Integer>(size);
  const auto integer = [](const Value& value, Integer fallback) {
    if (value.Is(Kind::kNone)) return fallback;
    RequireDefined(value);
    if (!value.is_integer()) throw Failure{.message = "slice indices must be integers or None"};
    return value.integer();
  };
  Steps steps = {0, 0, integer(step, 1)};
  if (steps.step == 0) throw Failure{.message = "slice step cannot be zero"};
  const bool back = steps.step < 0;
  const Integer low = back ? -1 : 0, high = back ? length - 1 : length;
  const auto clamp = [&](Integer index) {
    if (index < 0) index += length;
    return std::clamp(index, low, high);
  };
  steps.begin = from.Is(Kind::kNone) ? (back ? high : low) : clamp(integer(from, 0));
  steps.end = to.Is(Kind::kNone) ? (back ? low : high) : clamp(integer(to, 0));
  // A longer step leads outside just as well.
  steps.step = std::clamp(steps.step, -length - 1, length + 1);
  return steps;
}

// The characters of a text that these steps touch.
Text TakeCharacters(const Text& text, const Steps& steps) {
  const std::string& bytes = text.bytes();
  SpendBytes((bytes.size() + 1) * sizeof(uint32_t));
  std::vector<uint32_t> offsets;  // of characters, and of the end
  for (size_t at = 0; at < bytes.size(); at += NextUtf8(std::string_view(bytes).substr(at)).bytes) {
    offsets.push_back(static_cast<uint32_t>(at));
  }
  offsets.push_back(static_cast<uint32_t>(bytes.size()));
  Text taken;
  for (Integer i = steps.begin; steps.step > 0 ? i < steps.end : i > steps.end; i += steps.step) {
    taken.Append(text, offsets[static_cast<size_t>(i)], offsets[static_cast<size_t>(i) + 1]);
  }
  return taken;
}

}  // namespace

std::string TypeName(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return "Undefined";
    case Kind::kNone:
      return "NoneType";
    case Kind::kBool:
      return "bool";
    case Kind::kInteger:
      return "int";
    case Kind::kFloat:
      return "float";
    case Kind::kString:
      return value.markup() ? "Markup" : "str";
    case Kind::kList:
      return "list";
    case Kind::kTuple:
      return "tuple";
    case Kind::kDict:
      return "dict";
    case Kind::kObject:
      return value.object().TypeName();
  }
  return "";
}

void RequireDefined(const Value& value) {
  if (value.Is(Kind::kUndefined)) throw Failure{.message = value.why_undefined()};
}

bool IsTrue(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return false;
    case Kind::kNone:
      return false;
    case Kind::kBool:
    case Kind::kInteger:
      return value.integer() != 0;
    case Kind::kFloat:
      return value.number() != 0;
    case Kind::kString:
      return !value.text().empty();
    case Kind::kList:
    case Kind::kTuple:
      return !value.items().empty();
    case Kind::kDict:
      return !value.dict().items.empty();
    case Kind::kObject:
      return value.object().True();
  }
  return false;
}

bool Equal(const Value& a, const Value& b) {
  Spend(1);
  if (a.is_number() && b.is_number()) return CompareNumbers(a, b) == 0;
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::kString:
      if (a.text().size() == b.text().size()) SpendSearch(a.text().size());
      return a.bytes() == b.bytes();
    case Kind::kList:
    case Kind::kTuple:
      return std::equal(a.items().begin(), a.items().end(), b.items().begin(), b.items().end(),
                        &fastdecode::jinja::Equal);
    case Kind::kDict:
      if (a.dict().items.size() != b.dict().items.size()) return false;
      return std::all_of(a.dict().items.begin(), a.dict().items.end(), [&](const auto& pair) {
        const Value* const other = b.dict().Find(pair.first);
        return other != nullptr && Equal(pair.second, *other);
      });
    case Kind::kObject:
      return a.IsSame(b);
    default:
      return true;
  }
}

std::optional<int> Compare(const Value& a, const Value& b, const char* op) {
  Spend(1);
  RequireDefined(a);
  RequireDefined(b);
  if (a.is_number() && b.is_number()) return CompareNumbers(a, b);
  if (a.Is(Kind::kString) && b.Is(Kind::kString)) {
    SpendSearch(std::min(a.text().size(), b.text().size()));
    return Sign(a.bytes(), b.bytes());
  }
  if (a.is_sequence() && a.kind() == b.kind()) {
    const std::vector<Value>&x = a.items(), &y = b.items();
    for (size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!Equal(x[i], y[i])) return Compare(x[i], y[i], op);
    }
    return Sign(x.size(), y.size());
  }
  throw Failure{.message = std::string("'") + op + "' not supported between instances of '" + TypeName(a) + "' and '" +
                           TypeName(b) + "'"};
}

bool Contains(const Value& container, const Value& item) {
  switch (container.kind()) {
    case Kind::kString:
      if (!item.Is(Kind::kString)) {
        throw Failure{.message = "'in <string>' requires string as left operand, not " + TypeName(item)};
      }
      return FindFirst(container.bytes(), item.bytes()) != std::string_view::npos;
    case Kind::kDict:
      return container.dict().Find(item) != nullptr;
    default: {
      const std::optional<SharedItems> items = SharedItemsIfAny(container);
      if (!items) throw Failure{.message = "argument of type '" + TypeName(container) + "' is not iterable"};
      return std::any_of(items->begin(), items->end(), [&](const Value& each) { return Equal(each, item); });
    }
  }
}

std::optional<size_t> LengthIfAny(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return 0;
    case Kind::kString:
      SpendSearch(value.text().size() / 4);
      return CountCharacters(value.bytes());
    case Kind::kList:
    case Kind::kTuple:
      return value.items().size();
    case Kind::kDict:
      return value.dict().items.size();
    case Kind::kObject:
      return value.object().Length();
    default:
      return std::nullopt;
  }
}

size_t Length(const Value& value) {
  const std::optional<size_t> length = LengthIfAny(value);
  if (!length) throw Failure{.message = "object of type '" + TypeName(value) + "' has no len()"};
  return *length;
}

std::optional<std::vector<Value>> ItemsIfAny(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return std::vector<Value>();
    case Kind::kString: {
      const Text& text = value.text();
      std::vector<Value> characters;
      size_t bytes = 0;
      for (size_t at = 0; at < text.size(); at += bytes) {
        SpendBytes(sizeof(Value));
        CharacterAt(text.bytes(), at, &bytes);
        characters.push_back(Value::String(text.Slice(at, at + bytes)));
      }
      return characters;
    }
    case Kind::kList:
    case Kind::kTuple:
      SpendBytes(value.items().size() * sizeof(Value));
      return value.items();
    case Kind::kDict: {
      SpendBytes(value.dict().items.size() * sizeof(Value));
      std::vector<Value> keys;
      for (const auto& [key, item] : value.dict().items) keys.push_back(key);
      return keys;
    }
    case Kind::kObject:
      return value.object().Items();
    default:
      return std::nullopt;
  }
}

std::vector<Value> ItemsOf(const Value& value) {
  std::optional<std::vector<Value>> items = ItemsIfAny(value);
  if (!items) throw Failure{.message = "'" + TypeName(value) + "' object is not iterable"};
  return *std::move(items);
}

std::optional<SharedItems> SharedItemsIfAny(const Value& value) {
  if (value.is_sequence()) return SharedItems(value.shared_items());
  std::optional<std::vector<Value>> items = ItemsIfAny(value);
  return items ? std::optional(SharedItems(*std::move(items))) : std::nullopt;
}

SharedItems SharedItemsOf(const Value& value) {
  return value.is_sequence() ? SharedItems(value.shared_items()) : SharedItems(ItemsOf(value));
}

std::optional<Value> Item(const Value& value, const Value& index) {
  RequireDefined(value);
  if (value.Is(Kind::kDict)) {
    if (index.is_sequence() || index.Is(Kind::kDict) || index.Is(Kind::kUndefined)) return std::nullopt;
    const Value* const item = value.dict().Find(index);
    return item == nullptr ? std::nullopt : std::optional<Value>(*item);
  }
  if (!index.is_integer()) return std::nullopt;
  if (value.Is(Kind::kString)) {
    const std::optional<size_t> place = Place(index.integer(), Length(value));
    if (!place) return std::nullopt;
    SpendSearch(value.text().size());
    const size_t begin = OffsetOf(value.bytes(), *place);
    size_t bytes = 0;
    CharacterAt(value.bytes(), begin, &bytes);
    return Value::String(value.text().Slice(begin, begin + bytes), value.markup());
  }
  if (value.Is(Kind::kObject) && value.object().indexable()) {
    const std::vector<Value> items = ItemsOf(value);
    const std::optional<size_t> place = Place(index.integer(), items.size());
    return place ? std::optional<Value>(items[*place]) : std::nullopt;
  }
  if (!value.is_sequence()) return std::nullopt;
  const std::optional<size_t> place = Place(index.integer(), value.items().size());
  return place ? std::optional<Value>(value.items()[*place]) : std::nullopt;
}

Value Slice(const Value& value, const Value& from, const Value& to, const Value& step) {
  RequireDefined(value);
  const bool object = value.Is(Kind::kObject) && value.object().indexable();
  if (!value.Is(Kind::kString) && !value.is_sequence() && !object) {
    return Value::Undefined("'" + TypeName(value) + "' object cannot be sliced");
  }
  const Steps steps = SliceSteps(from, to, step, Length(value));
  if (value.Is(Kind::kString) && steps.step == 1) {
    const std::string& bytes = value.bytes();
    SpendSearch(bytes.size());
    const size_t begin = OffsetOf(bytes, static_cast<size_t>(steps.begin));
    const auto count = static_cast<size_t>(std::max<Integer>(steps.end - steps.begin, 0));
    const size_t end = begin + OffsetOf(std::string_view(bytes).substr(begin), count);
    return Value::String(value.text().Slice(begin, end), value.markup());
  }
  if (value.Is(Kind::kString)) return Value::String(TakeCharacters(value.text(), steps), value.markup());
  const SharedItems items = SharedItemsOf(value);
  std::vector<Value> taken;
  for (Integer i = steps.begin; steps.step > 0 ? i < steps.end : i > steps.end; i += steps.step) {
    taken.push_back(items[static_cast<size_t>(i)]);
  }
  return value.Is(Kind::kTuple) ? Value::Tuple(std::move(taken)) : Value::List(std::move(taken));
}

Value Iterator(std::vector<Value> items, const char* type_name) {
  SpendBytes(items.size() * sizeof(Value));
  return Value::OfObject(std::make_shared<ItemIterator>(std::move(items), type_name));
}

}  // namespace fastdecode::jinja
