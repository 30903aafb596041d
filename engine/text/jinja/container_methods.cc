// The methods of Python's dict, list and tuple, and the functions that every template knows.
#include <algorithm>
#include <ctime>
#include <map>

#include "engine/text/jinja/budget.h"
#include "engine/text/jinja/builtins.h"
#include "engine/text/jinja/failure.h"
#include "engine/text/jinja/interpreter.h"
#include "engine/text/jinja/objects.h"
#include "engine/text/jinja/operations.h"
#include "engine/text/utf8.h"

namespace fastdecode::jinja {

namespace {

using Kind = Value::Kind;

constexpr int64_t kRangeMax = 100'000;  // as Jinja's sandbox has it

enum class View { kItems, kKeys, kValues };

Value ViewOf(const Dict& dict, View view) {
  std::vector<Value> items;
  for (const auto& [key, value] : dict.items) {
    SpendBytes(sizeof(Value));
    items.push_back(view == View::kItems ? Value::Tuple({key, value}) : view == View::kKeys ? key : value);
  }
  const char* const name = view == View::kItems ? "dict_items" : view == View::kKeys ? "dict_keys" : "dict_values";
  return Value::OfObject(std::make_shared<DictView>(std::move(items), name));
}

template <View view>
Value DictViewMethod(Interpreter&, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader("dict view", arguments, {});
  return ViewOf(self.dict(), view);
}

Value DictGet(Interpreter&, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader(Positional("get", arguments), arguments, {"key", "default"}, 1);
  const Value* const value = self.dict().Find(reader.Get(0));
  return value == nullptr ? reader.Get(1) : *value;
}

Value CopyOf(Interpreter&, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader("copy", arguments, {});
  return self;  // nothing can change either
}

Value FromKeys(Interpreter&, const Value&, const Arguments& arguments) {
  const ArgumentReader reader("fromkeys", arguments, {"iterable", "value"}, 1);
  Dict dict;
  for (const Value& key : SharedItemsOf(reader.Get(0))) dict.Set(key, reader.Get(1));
  return Value::OfDict(std::move(dict));
}

Value SequenceCount(Interpreter&, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader("count", arguments, {"value"}, 1);
  const Value value = reader.Get(0);
  return Value::Int(
      std::count_if(self.items().begin(), self.items().end(), [&](const Value& item) { return Equal(item, value); }));
}

Value SequenceIndex(Interpreter&, const Value& self, const Arguments& arguments) {
  const ArgumentReader reader("index", arguments, {"value", "start", "stop"}, 1);
  const auto size = static_cast<Integer>(self.items().size());
  const auto place = [&](Integer index) { return std::clamp<Integer>(index < 0 ? index + size : index, 0, size); };
  const Integer end = place(reader.Int(2, size));
  for (Integer i = place(reader.Int(1, 0)); i < end; ++i) {
    if (Equal(self.items()[static_cast<size_t>(i)], reader.Get(0))) return Value::Int(i);
  }
  throw Failure{.message = Represented(reader.Get(0)).bytes() + " is not in the " + TypeName(self)};
}

Method FindDictMethod(std::string_view name) {
  if (name == "items") return &DictViewMethod<View::kItems>;
  if (name == "keys") return &DictViewMethod<View::kKeys>;
  if (name == "values") return &DictViewMethod<View::kValues>;
  if (name == "get") return &DictGet;
  if (name == "copy") return &CopyOf;
  if (name == "fromkeys") return &FromKeys;
  return nullptr;
}

bool HasName(std::initializer_list<std::string_view> names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Methods that would change a value.
bool IsMutator(Kind kind, std::string_view name) {
  if (kind == Kind::kDict) return HasName({"clear", "pop", "popitem", "setdefault", "update"}, name);
  return kind == Kind::kList &&
         HasName({"append", "clear", "pop", "reverse", "insert", "sort", "extend", "remove"}, name);
}

// --- Functions

Value Range(Interpreter&, const Value&, const Arguments& arguments) {
  const ArgumentReader reader(Positional("range", arguments), arguments, {"start", "stop", "step"}, 1);
  for (size_t i = 0; i < 3; ++i) {
    if (reader.Has(i) && !reader.Get(i).is_integer()) {
      RequireDefined(reader.Get(i));
      throw Failure{.message = "'" + TypeName(reader.Get(i)) + "' object cannot be interpreted as an integer"};
    }
  }
  const Integer begin = reader.Has(1) ? reader.Int(0, 0) : 0;
  const Integer end = reader.Has(1) ? reader.Int(1, 0) : reader.Int(0, 0);
  const Integer step = reader.Int(2, 1);
  if (step == 0) throw Failure{.message = "range() arg 3 must not be zero"};
  using Magnitude = unsigned __int128;
  const auto from = static_cast<Magnitude>(begin), to = static_cast<Magnitude>(end);
  const Magnitude gap = step > 0 ? to - from : from - to;
  const Magnitude stride = step > 0 ? static_cast<Magnitude>(step) : -static_cast<Magnitude>(step);
  const bool empty = step > 0 ? begin >= end : begin <= end;
  const Magnitude count = empty ? 0 : (gap - 1) / stride + 1;
  if (count > kRangeMax) {
    throw Failure{.message = "Range too big. The sandbox blocks ranges larger than MAX_RANGE (100000)."};
  }
  const bool foreign = std::any_of(arguments.positional.begin(), arguments.positional.end(),
                                   [](const Value& argument) { return argument.foreign(); });
  return Value::OfObject(std::make_shared<RangeObject>(begin, end, step, static_cast<size_t>(count), foreign));
}

// The pairs that dict(...) and namespace(...) are made of.
Dict DictFrom(const char* function, const Arguments& arguments) {
  Dict dict;
  if (arguments.positional.size() > 1) {
    throw Failure{.message = std::string(function) + " expected at most 1 argument, got " +
                             std::to_string(arguments.positional.size())};
  }
  if (!arguments.positional.empty()) {
    const Value& given = arguments.positional[0];
    RequireDefined(given);
    if (given.Is(Kind::kDict)) {
      SpendBytes(given.dict().items.size() * 4 * sizeof(Value));
      dict = given.dict();
    } else {
      for (const Value& pair : SharedItemsOf(given)) {
        std::vector<Value> items = ItemsOf(pair);
        if (items.size() != 2) {
          throw Failure{.message = "dictionary update sequence element has length " + std::to_string(items.size()) +
                                   "; 2 is required"};
        }
        dict.Set(std::move(items[0]), std::move(items[1]));
      }
    }
  }
  for (const auto& [name, value] : arguments.named) dict.Set(name, value);
  return dict;
}

Value MakeDict(Interpreter&, const Value&, const Arguments& arguments) {
  return Value::OfDict(DictFrom("dict", arguments));
}

Value MakeNamespace(Interpreter& interpreter, const Value&, const Arguments& arguments) {
  const auto made = std::make_shared<NamespaceObject>();
  for (const auto& [name, value] : DictFrom("namespace", arguments).items) {
    if (!name.Is(Kind::kString)) throw Failure{.message = "a namespace's names are strings, not " + TypeName(name)};
    made->Set(name, value);
  }
  return interpreter.Own(made);
}

Value MakeCycler(Interpreter& interpreter, const Value&, const Arguments& arguments) {
  if (!arguments.named.empty()) throw Failure{.message = "cycler() takes no keyword arguments"};
  if (arguments.positional.empty()) throw Failure{.message = "at least one item has to be provided"};
  return interpreter.Own(std::make_shared<CyclerObject>(arguments.positional));
}

Value MakeJoiner(Interpreter& interpreter, const Value&, const Arguments& arguments) {
  const ArgumentReader reader("joiner", arguments, {"sep"});
  return interpreter.Own(std::make_shared<JoinerObject>(reader.Get(0, Value::String(", "))));
}

Value RaiseException(Interpreter&, const Value&, const Arguments& arguments) {
  const ArgumentReader reader("raise_exception", arguments, {"message"}, 1);
  throw Failure{.message = Printed(reader.Get(0)).bytes()};
}

Value StrftimeNow(Interpreter& interpreter, const Value&, const Arguments& arguments) {
  const ArgumentReader reader("strftime_now", arguments, {"format"}, 1);
  const Value given = reader.String(0, nullptr);
  const Text& format = given.text();
  if (format.size() > 1000) throw Failure{.message = "strftime_now(): the format has more than 1000 bytes"};
  const time_t now = interpreter.now_s();
  tm local = {};
  if (localtime_r(&now, &local) == nullptr) throw Failure{.message = "strftime_now(): the time is out of range"};
  // datetime.now() knows no time zone, and the clock's microseconds are those of a whole second.
  std::string adapted;
  for (size_t i = 0; i < format.size(); ++i) {
    const std::string pair = format.bytes().substr(i, 2);
    if (pair == "%f") adapted += "000000";
    if (pair == "%%") adapted += pair;
    if (pair == "%f" || pair == "%z" || pair == "%Z" || pair == "%%") {
      ++i;
    } else {
      adapted += format.bytes()[i];
    }
  }
  std::string text(64 + adapted.size() * 40, 0);
  text.resize(std::strftime(text.data(), text.size(), adapted.c_str(), &local));
  return Value::String(Text(ReplaceInvalidUtf8(text), format.any_foreign()));
}

}  // namespace

Value DictItems(const Dict& dict) { return ViewOf(dict, View::kItems); }

std::optional<Value> BuiltinAttribute(const Value& object, const std::string& name) {
  if (IsMutator(object.kind(), name)) {
    return Value::Undefined("access to attribute '" + name + "' of '" + TypeName(object) + "' object is unsafe.");
  }
  jinja::Method method = nullptr;
  switch (object.kind()) {
    case Kind::kString:
      method = FindStringMethod(name);
      break;
    case Kind::kDict:
      method = FindDictMethod(name);
      break;
    case Kind::kList:
    case Kind::kTuple:
      if (name == "count") method = &SequenceCount;
      if (name == "index") method = &SequenceIndex;
      if (name == "copy" && object.Is(Kind::kList)) method = &CopyOf;
      break;
    case Kind::kBool:
    case Kind::kInteger:
      if (name == "real" || name == "numerator") return Value::Int(object.integer(), object.foreign());
      if (name == "imag") return Value::Int(0);
      if (name == "denominator") return Value::Int(1);
      break;
    case Kind::kFloat:
      if (name == "real") return object;
      if (name == "imag") return Value::Float(0);
      break;
    default:
      break;
  }
  if (method == nullptr) return std::nullopt;
  return Value::OfObject(std::make_shared<FunctionObject>(method, object));
}

const Value* FindGlobal(std::string_view name) {
  static const auto& kGlobals = *new std::map<std::string_view, Value>([] {
    std::map<std::string_view, Value> globals;
    const auto add = [&](const char* each, Method function) {
      globals[each] = Value::OfObject(std::make_shared<FunctionObject>(function, Value::None(), "function"));
    };
    add("range", &Range);
    globals["dict"] = Value::OfObject(std::make_shared<DictFunction>(&MakeDict, &FromKeys));
    add("namespace", &MakeNamespace);
    add("cycler", &MakeCycler);
    add("joiner", &MakeJoiner);
    add("raise_exception", &RaiseException);
    add("strftime_now", &StrftimeNow);
    return globals;
  }());
  const auto found = kGlobals.find(name);
  return found == kGlobals.end() ? nullptr : &found->second;
}

}  // namespace fastdecode::jinja
