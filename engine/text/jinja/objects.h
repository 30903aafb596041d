#ifndef FASTDECODE_ENGINE_TEXT_JINJA_OBJECTS_H_
#define FASTDECODE_ENGINE_TEXT_JINJA_OBJECTS_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/text/jinja/ast.h"
#include "engine/text/jinja/builtins.h"
#include "engine/text/jinja/interpreter.h"
#include "engine/text/jinja/operations.h"
#include "engine/text/jinja/value.h"

namespace fastdecode::jinja {

// What namespace() makes: the one thing that a template can change.
class NamespaceObject final : public Object {
 public:
  std::string TypeName() const override { return "Namespace"; }
  Text Printed() override;
  std::optional<Value> Attribute(Interpreter& interpreter, const std::string& name) override;
  void Clear() override { values_ = Dict(); }

  // `name` is a string. Failure: names that begin with an underline are refused.
  void Set(const Value& name, Value value);

 private:
  Dict values_;
};

// The variable `loop`.
class LoopObject final : public Object {
 public:
  LoopObject(SharedItems items, const For* node, std::shared_ptr<Scope> scope, uint32_t depth)
      : items_(std::move(items)), node_(node), scope_(std::move(scope)), loop_depth_(depth) {}

  // False: there is no further item, and the last one stays the current one.
  bool Next() {
    const bool more = index_ + 1 < static_cast<int64_t>(items_.size());
    if (more) ++index_;
    return more;
  }
  const Value& Current() const { return items_[static_cast<size_t>(index_)]; }

  std::string TypeName() const override { return "LoopContext"; }
  Text Printed() override;
  std::optional<Value> Attribute(Interpreter& interpreter, const std::string& name) override;
  bool callable() const override { return true; }
  Value Call(Interpreter& interpreter, Arguments arguments) override;
  std::optional<size_t> Length() override { return items_.size(); }
  // What an iterator would give: what is left, each with the loop itself.
  std::optional<std::vector<Value>> Items() override;
  bool iterable() const override { return true; }
  void Clear() override;

  bool Changed(const std::vector<Value>& values);

 private:
  SharedItems items_;
  const For* const node_;
  std::shared_ptr<Scope> scope_;
  const uint32_t loop_depth_;  // of loops that this one is called from
  int64_t index_ = -1;
  std::optional<std::vector<Value>> last_changed_;
};

class MacroObject final : public Object {
 public:
  MacroObject(const Macro* macro, std::shared_ptr<Scope> scope) : macro_(macro), scope_(std::move(scope)) {}
  std::string TypeName() const override { return "Macro"; }
  Text Printed() override {
    return Text(macro_->name.empty() ? "<Macro anonymous>" : "<Macro '" + macro_->name + "'>");
  }
  std::optional<Value> Attribute(Interpreter& interpreter, const std::string& name) override;
  bool callable() const override { return true; }
  Value Call(Interpreter& interpreter, Arguments arguments) override {
    return interpreter.CallMacro(*macro_, scope_, std::move(arguments));
  }
  void Clear() override { scope_.reset(); }

 private:
  const Macro* const macro_;
  std::shared_ptr<Scope> scope_;
};

// A function or a method of ours.
class FunctionObject : public Object {
 public:
  FunctionObject(Method function, Value self, const char* type_name = "builtin_function_or_method")
      : Object(self.depth()), function_(function), self_(std::move(self)), type_name_(type_name) {}
  std::string TypeName() const override { return type_name_; }
  bool callable() const override { return true; }
  Value Call(Interpreter& interpreter, Arguments arguments) override {
    return function_(interpreter, self_, arguments);
  }

 private:
  const Method function_;
  const Value self_;
  const char* const type_name_;
};

// The function dict, which has the method fromkeys.
class DictFunction final : public FunctionObject {
 public:
  DictFunction(Method function, Method from_keys)
      : FunctionObject(function, Value::None(), "function"), from_keys_(from_keys) {}
  std::optional<Value> Attribute(Interpreter&, const std::string& name) override {
    if (name != "fromkeys") return std::nullopt;
    return Value::OfObject(std::make_shared<FunctionObject>(from_keys_, Value::None(), "method"));
  }

 private:
  const Method from_keys_;
};

// dict.items(), keys() and values(): they have a length and no indexes.
class DictView final : public Object {
 public:
  DictView(std::vector<Value> items, const char* type_name)
      : Object(DeepestOf(items)), items_(std::move(items)), type_name_(type_name) {}
  std::string TypeName() const override { return type_name_; }
  Text Printed() override;
  std::optional<std::vector<Value>> Items() override;
  bool iterable() const override { return true; }
  std::optional<size_t> Length() override { return items_.size(); }

 private:
  const std::vector<Value> items_;
  const char* const type_name_;
};

// range(begin, end, step). Its numbers are the request's if one of these is.
class RangeObject final : public Object {
 public:
  RangeObject(Integer begin, Integer end, Integer step, size_t count, bool foreign)
      : begin_(begin), end_(end), step_(step), count_(count), foreign_(foreign) {}
  std::string TypeName() const override { return "range"; }
  Text Printed() override;
  std::optional<std::vector<Value>> Items() override;
  bool iterable() const override { return true; }
  std::optional<size_t> Length() override { return count_; }
  bool indexable() const override { return true; }
  std::optional<Value> Attribute(Interpreter&, const std::string& name) override {
    if (name == "start") return Value::Int(begin_, foreign_);
    if (name == "stop") return Value::Int(end_, foreign_);
    return name == "step" ? std::optional<Value>(Value::Int(step_, foreign_)) : std::nullopt;
  }

 private:
  const Integer begin_, end_, step_;
  const size_t count_;
  const bool foreign_;
};

// What groupby makes: a pair whose items have names.
class GroupObject final : public Object {
 public:
  GroupObject(Value grouper, Value list)
      : Object(std::max(grouper.depth(), list.depth())), grouper_(std::move(grouper)), list_(std::move(list)) {}
  std::string TypeName() const override { return "tuple"; }
  Text Printed() override;
  std::optional<Value> Attribute(Interpreter&, const std::string& name) override {
    if (name == "grouper") return grouper_;
    return name == "list" ? std::optional<Value>(list_) : std::nullopt;
  }
  std::optional<std::vector<Value>> Items() override { return std::vector<Value>{grouper_, list_}; }
  bool iterable() const override { return true; }
  std::optional<size_t> Length() override { return 2; }
  bool indexable() const override { return true; }

 private:
  const Value grouper_, list_;
};

// cycler(...) and joiner(...).
class CyclerObject final : public Object {
 public:
  explicit CyclerObject(std::vector<Value> items) : Object(DeepestOf(items)), items_(std::move(items)) {}
  std::string TypeName() const override { return "Cycler"; }
  std::optional<Value> Attribute(Interpreter& interpreter, const std::string& name) override;
  Value Next() { return items_[std::exchange(at_, (at_ + 1) % items_.size())]; }
  void Reset() { at_ = 0; }

 private:
  const std::vector<Value> items_;
  size_t at_ = 0;
};

class JoinerObject final : public Object {
 public:
  explicit JoinerObject(Value separator) : Object(separator.depth()), separator_(std::move(separator)) {}
  std::string TypeName() const override { return "Joiner"; }
  bool callable() const override { return true; }
  Value Call(Interpreter&, Arguments) override { return std::exchange(used_, true) ? separator_ : Value::String(""); }

 private:
  const Value separator_;
  bool used_ = false;
};

}  // namespace fastdecode::jinja

#endif  // FASTDECODE_ENGINE_TEXT_JINJA_OBJECTS_H_
