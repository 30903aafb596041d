#include "engine/text/jinja/value.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "engine/text/jinja/budget.h"
#include "engine/text/jinja/failure.h"
#include "engine/text/jinja/operations.h"

namespace fastdecode::jinja {
namespace {

constexpr uint32_t kContainerDepthMax = 200;  // of containers in containers

// What values take beside what is in them, in bytes.
constexpr size_t kStringBytes = 100, kListBytes = 100, kDictBytes = 200, kObjectBytes = 100;
constexpr size_t kEntryBytes = 2 * sizeof(Value) + 64;  // of a dict

uint32_t DepthOver(uint32_t deepest) {
  if (deepest >= kContainerDepthMax) {
    throw Failure{.message = "lists and dicts nest more than " + std::to_string(kContainerDepthMax) + " deep",
                  .kind = Failure::Kind::kLimit};
  }
  return deepest + 1;
}

}  // namespace

uint32_t DeepestOf(const std::vector<Value>& items) {
  uint32_t deepest = 0;
  for (const Value& item : items) deepest = std::max(deepest, item.depth());
  return deepest;
}

Value Value::Undefined(std::string why) {
  if (why.size() > kStringBytes) SpendBytes(why.size());  // else it goes with its expression, and is not worth counting
  Value value;
  value.data_ = std::make_shared<const std::string>(std::move(why));
  return value;
}

Value Value::Bool(bool boolean, bool foreign) {
  Value value(Kind::kBool);
  value.foreign_ = foreign;
  value.data_ = static_cast<Integer>(boolean ? 1 : 0);
  return value;
}

Value Value::Int(Integer integer, bool foreign) {
  Value value(Kind::kInteger);
  value.foreign_ = foreign;
  value.data_ = integer;
  return value;
}

Value Value::Float(double number, bool foreign) {
  Value value(Kind::kFloat);
  value.foreign_ = foreign;
  value.data_ = number;
  return value;
}

Value Value::String(Text text, bool markup) {
  SpendBytes(kStringBytes);
  Value value(Kind::kString);
  value.markup_ = markup;
  value.data_ = std::make_shared<const Text>(std::move(text));
  return value;
}

Value Value::List(std::vector<Value> items) {
  SpendBytes(kListBytes + items.size() * sizeof(Value));
  Value value(Kind::kList);
  const uint32_t depth = DepthOver(DeepestOf(items));
  value.data_ = std::make_shared<const Sequence>(Sequence{std::move(items), depth});
  return value;
}

Value Value::Tuple(std::vector<Value> items) {
  Value value = List(std::move(items));
  value.kind_ = Kind::kTuple;
  return value;
}

Value Value::OfDict(Dict dict) {
  SpendBytes(kDictBytes);
  Value value(Kind::kDict);
  uint32_t deepest = 0;
  for (const auto& [key, item] : dict.items) deepest = std::max({deepest, key.depth(), item.depth()});
  dict.depth = DepthOver(deepest);
  value.data_ = std::make_shared<const Dict>(std::move(dict));
  return value;
}

Value Value::OfObject(std::shared_ptr<Object> object) {
  SpendBytes(kObjectBytes);
  Value value(Kind::kObject);
  value.data_ = std::move(object);
  return value;
}

double Value::number() const {
  return kind_ == Kind::kFloat ? std::get<double>(data_) : static_cast<double>(std::get<Integer>(data_));
}

std::string Value::why_undefined() const {
  return std::holds_alternative<std::monostate>(data_) ? "a value is undefined"
                                                       : *std::get<std::shared_ptr<const std::string>>(data_);
}

uint32_t Value::depth() const {
  if (kind_ == Kind::kDict) return dict().depth;
  if (kind_ == Kind::kObject) return object().depth();
  return is_sequence() ? std::get<std::shared_ptr<const Sequence>>(data_)->depth : 0;
}

bool Value::IsSame(const Value& other) const {
  if (kind_ != other.kind_) return false;
  switch (kind_) {
    case Kind::kUndefined:
      return false;
    case Kind::kNone:
      return true;
    case Kind::kBool:
    case Kind::kInteger:
    case Kind::kFloat:
      return Equal(*this, other);
    case Kind::kString:
      return bytes() == other.bytes();
    default:
      return data_ == other.data_;
  }
}

std::string HashKey(const Value& key) {
  switch (key.kind()) {
    case Value::Kind::kString:
      SpendSearch(key.text().size());
      return "s" + key.bytes();
    case Value::Kind::kNone:
      return "n";
    case Value::Kind::kBool:
    case Value::Kind::kInteger:
      return "i" + Printed(Value::Int(key.integer())).bytes();
    case Value::Kind::kFloat: {
      const double number = key.number();
      if (number == std::floor(number) && std::abs(number) < 1e18) {
        return "i" + std::to_string(static_cast<int64_t>(number));
      }
      return "f" + Printed(key).bytes();
    }
    case Value::Kind::kTuple: {
      std::string text = "t";
      for (const Value& item : key.items()) {
        const std::string one = HashKey(item);
        SpendBytes(one.size());
        text += std::to_string(one.size()) + ":" + one;
      }
      return text;
    }
    default:
      throw Failure{.message = "unhashable type: '" + TypeName(key) + "'"};
  }
}

void Dict::Set(Value key, Value value) {
  const auto [place, is_new] = index.try_emplace(HashKey(key), items.size());
  if (is_new) {
    SpendBytes(kEntryBytes + place->first.size());
    items.emplace_back(std::move(key), std::move(value));
  } else {
    items[place->second].second = std::move(value);
  }
}

const Value* Dict::Find(const Value& key) const {
  const auto found = index.find(HashKey(key));
  return found == index.end() ? nullptr : &items[found->second].second;
}

const Value* Dict::Find(std::string_view key) const {
  const auto found = index.find("s" + std::string(key));
  return found == index.end() ? nullptr : &items[found->second].second;
}

Object::Object(uint32_t deepest) : depth_(DepthOver(deepest)) {}

Value Object::Call(Interpreter&, Arguments) { throw Failure{.message = "'" + TypeName() + "' object is not callable"}; }

}  // namespace fastdecode::jinja
