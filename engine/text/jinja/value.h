#ifndef FASTDECODE_ENGINE_TEXT_JINJA_VALUE_H_
#define FASTDECODE_ENGINE_TEXT_JINJA_VALUE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "engine/text/jinja/text.h"

namespace fastdecode::jinja {

class Interpreter;
class Value;
class Object;
struct Dict;

// Wide enough for what JSON and templates have. Python's are wider: what does not fit is an error.
using Integer = __int128;

// Items of a list or a tuple, which never change: Jinja's sandbox refuses what would.
struct Sequence {
  std::vector<Value> items;
  uint32_t depth = 1;  // of containers in containers
};

// A value of a template, with Python's types. Copies are cheap: what is large is shared, and counts for the rendering
// of this thread when it is made (SpendBytes). Numbers, too, know whether they came from the request. Thread: shared
// parts are immutable, but for Objects.
class Value {
 public:
  enum class Kind : uint8_t { kUndefined, kNone, kBool, kInteger, kFloat, kString, kList, kTuple, kDict, kObject };

  // Undefined without a name.
  Value() = default;
  // `why`: what an error says when the value is used, such as "'x' is undefined".
  static Value Undefined(std::string why);
  static Value None() { return Value(Kind::kNone); }
  static Value Bool(bool value, bool foreign = false);
  static Value Int(Integer value, bool foreign = false);
  static Value Float(double value, bool foreign = false);
  static Value String(Text text, bool markup = false);
  static Value String(std::string own_bytes) { return String(Text(std::move(own_bytes))); }
  // Failures: kLimit if they nest too deeply.
  static Value List(std::vector<Value> items);
  static Value Tuple(std::vector<Value> items);
  static Value OfDict(Dict dict);
  static Value OfObject(std::shared_ptr<Object> object);

  Kind kind() const { return kind_; }
  bool Is(Kind kind) const { return kind_ == kind; }
  bool is_number() const { return kind_ == Kind::kBool || kind_ == Kind::kInteger || kind_ == Kind::kFloat; }
  bool is_integer() const { return kind_ == Kind::kBool || kind_ == Kind::kInteger; }
  bool is_sequence() const { return kind_ == Kind::kList || kind_ == Kind::kTuple; }
  bool foreign() const { return foreign_; }
  bool markup() const { return markup_; }  // a string that escape leaves alone

  // REQUIRE: the kind.
  bool boolean() const { return std::get<Integer>(data_) != 0; }
  Integer integer() const { return std::get<Integer>(data_); }  // also of a bool
  double number() const;                                        // of any number
  const Text& text() const { return *std::get<std::shared_ptr<const Text>>(data_); }
  const std::string& bytes() const { return text().bytes(); }
  const std::vector<Value>& items() const { return std::get<std::shared_ptr<const Sequence>>(data_)->items; }
  std::shared_ptr<const std::vector<Value>> shared_items() const {
    const auto& sequence = std::get<std::shared_ptr<const Sequence>>(data_);
    return {sequence, &sequence->items};
  }
  const Dict& dict() const { return *std::get<std::shared_ptr<const Dict>>(data_); }
  Object& object() const { return *std::get<std::shared_ptr<Object>>(data_); }
  const std::shared_ptr<Object>& shared_object() const { return std::get<std::shared_ptr<Object>>(data_); }

  std::string why_undefined() const;
  uint32_t depth() const;  // of containers in containers, and of objects that hold values
  // The same place in memory: Python's `is`, for what is shared.
  bool IsSame(const Value& other) const;

 private:
  explicit Value(Kind kind) : kind_(kind) {}

  Kind kind_ = Kind::kUndefined;
  bool foreign_ = false;
  bool markup_ = false;
  std::variant<std::monostate, Integer, double, std::shared_ptr<const std::string>, std::shared_ptr<const Text>,
               std::shared_ptr<const Sequence>, std::shared_ptr<const Dict>, std::shared_ptr<Object>>
      data_;
};

// Keys in the order in which they were set first, as in Python. Keys are strings, numbers, None or tuples of these.
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  absl::flat_hash_map<std::string, size_t> index;  // by HashKey; its hashes differ from process to process
  uint32_t depth = 1;

  void Set(Value key, Value value);
  const Value* Find(const Value& key) const;
  const Value* Find(std::string_view key) const;
};

// A text that is equal for keys that Python calls equal (1, 1.0 and True). Failure: Python cannot hash the key.
std::string HashKey(const Value& key);

// The arguments of a call. Names are strings: those of **dict are the dict's keys, with their marks.
struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<Value, Value>> named;
};

// The depth of the deepest of them.
uint32_t DeepestOf(const std::vector<Value>& items);

// What is neither a plain value nor a container: functions, macros, namespaces, loops, iterators.
class Object : public std::enable_shared_from_this<Object> {
 public:
  // It holds no values, or gives them up in Clear.
  Object() : depth_(0) {}
  // It holds values until it is destroyed, of which the deepest has this depth. Failure: they nest too deeply.
  explicit Object(uint32_t deepest);
  virtual ~Object() = default;
  uint32_t depth() const { return depth_; }
  virtual std::string TypeName() const = 0;  // as Python's errors call it
  virtual Text Printed() { return Text("<" + TypeName() + " object>"); }
  // A public attribute; none: it has no such.
  virtual std::optional<Value> Attribute(Interpreter&, const std::string& /*name*/) { return std::nullopt; }
  virtual bool callable() const { return false; }
  virtual Value Call(Interpreter& interpreter, Arguments arguments);
  virtual bool iterable() const { return false; }
  // None: it is not iterable. An iterator gives what is left of it, and nothing the next time.
  virtual std::optional<std::vector<Value>> Items() { return std::nullopt; }
  // None: Python's len refuses it.
  virtual std::optional<size_t> Length() { return std::nullopt; }
  virtual bool indexable() const { return false; }
  virtual bool True() { return Length().value_or(1) != 0; }
  // Gives up what it refers to, so that no circle keeps anything alive.
  virtual void Clear() {}

 private:
  const uint32_t depth_;
};

}  // namespace fastdecode::jinja

#endif  // FASTDECODE_ENGINE_TEXT_JINJA_VALUE_H_
