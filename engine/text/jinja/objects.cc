#include "engine/text/jinja/objects.h"

#include <algorithm>

#include "engine/text/jinja/budget.h"
#include "engine/text/jinja/failure.h"
#include "engine/text/jinja/operations.h"

namespace fastdecode::jinja {

namespace {

Value Bound(Method method, std::shared_ptr<Object> self, Interpreter* interpreter) {
  return interpreter->Own(std::make_shared<FunctionObject>(method, Value::OfObject(std::move(self)), "method"));
}

Value LoopCycle(Interpreter&, const Value& self, const Arguments& arguments) {
  if (arguments.positional.empty()) throw Failure{.message = "no items for cycling given"};
  return arguments.positional[static_cast<size_t>(self.integer()) % arguments.positional.size()];
}

Value LoopChanged(Interpreter&, const Value& self, const Arguments& arguments) {
  return Value::Bool(dynamic_cast<LoopObject&>(self.object()).Changed(arguments.positional));
}

Value CyclerNext(Interpreter&, const Value& self, const Arguments&) {
  return dynamic_cast<CyclerObject&>(self.object()).Next();
}

Value CyclerReset(Interpreter&, const Value& self, const Arguments&) {
  dynamic_cast<CyclerObject&>(self.object()).Reset();
  return Value::None();
}

}  // namespace

Text NamespaceObject::Printed() {
  SpendBytes(values_.items.size() * 4 * sizeof(Value));
  Text text("<Namespace ");
  text.Append(Represented(Value::OfDict(values_)));
  text.Append(">");
  return text;
}

std::optional<Value> NamespaceObject::Attribute(Interpreter&, const std::string& name) {
  const Value* const value = values_.Find(name);
  return value == nullptr ? std::nullopt : std::optional<Value>(*value);
}

void NamespaceObject::Set(const Value& name, Value value) {
  if (name.bytes().starts_with('_')) {
    throw Failure{.message = "a namespace takes no name that begins with an underline, such as '" + name.bytes() +
                             "'; rename it"};
  }
  values_.Set(name, std::move(value));
}

Text LoopObject::Printed() {
  return Text("<LoopContext " + std::to_string(index_ + 1) + "/" + std::to_string(items_.size()) + ">");
}

std::optional<Value> LoopObject::Attribute(Interpreter& interpreter, const std::string& name) {
  const auto length = static_cast<int64_t>(items_.size());
  if (name == "index") return Value::Int(index_ + 1);
  if (name == "index0") return Value::Int(index_);
  if (name == "revindex") return Value::Int(length - index_);
  if (name == "revindex0") return Value::Int(length - index_ - 1);
  if (name == "first") return Value::Bool(index_ == 0);
  if (name == "last") return Value::Bool(index_ + 1 >= length);
  if (name == "length") return Value::Int(length);
  if (name == "depth") return Value::Int(loop_depth_ + 1);
  if (name == "depth0") return Value::Int(loop_depth_);
  if (name == "previtem") {
    return index_ > 0 ? items_[static_cast<size_t>(index_ - 1)] : Value::Undefined("there is no previous item");
  }
  if (name == "nextitem") {
    return index_ + 1 < length ? items_[static_cast<size_t>(index_ + 1)] : Value::Undefined("there is no next item");
  }
  if (name == "cycle") {
    return interpreter.Own(std::make_shared<FunctionObject>(&LoopCycle, Value::Int(index_), "method"));
  }
  if (name == "changed") {
    return interpreter.Own(
        std::make_shared<FunctionObject>(&LoopChanged, Value::OfObject(shared_from_this()), "method"));
  }
  return std::nullopt;
}

bool LoopObject::Changed(const std::vector<Value>& values) {
  const bool same =
      last_changed_ && std::equal(values.begin(), values.end(), last_changed_->begin(), last_changed_->end(),
                                  [](const Value& a, const Value& b) { return Equal(a, b); });
  SpendBytes(values.size() * sizeof(Value));
  last_changed_ = values;
  return !same;
}

Value LoopObject::Call(Interpreter& interpreter, Arguments arguments) {
  if (!node_->recursive) {
    throw Failure{.message = "The loop must have the 'recursive' marker to be called recursively."};
  }
  const ArgumentReader reader("loop", arguments, {"iterable"}, 1);
  return interpreter.RunLoopAgain(*node_, reader.Get(0), scope_, loop_depth_ + 1);
}

std::optional<std::vector<Value>> LoopObject::Items() {
  std::vector<Value> left;
  while (Next()) {
    SpendBytes(sizeof(Value));
    left.push_back(Current());
  }
  return left;
}

void LoopObject::Clear() {
  items_ = SharedItems(std::vector<Value>());
  scope_.reset();
  last_changed_.reset();
}

std::optional<Value> MacroObject::Attribute(Interpreter&, const std::string& name) {
  if (name == "name") return macro_->name.empty() ? Value::None() : Value::String(macro_->name);
  if (name == "arguments") {
    std::vector<Value> names;
    for (const Parameter& parameter : macro_->parameters) names.push_back(Value::String(parameter.name));
    return Value::Tuple(std::move(names));
  }
  if (name == "catch_kwargs") return Value::Bool(macro_->uses_kwargs);
  if (name == "catch_varargs") return Value::Bool(macro_->uses_varargs);
  if (name == "caller") return Value::Bool(macro_->uses_caller);
  return std::nullopt;
}

Text DictView::Printed() {
  Text text(std::string(type_name_) + "(");
  text.Append(Represented(Value::List(items_)));
  text.Append(")");
  return text;
}

std::optional<std::vector<Value>> DictView::Items() {
  SpendBytes(items_.size() * sizeof(Value));
  return items_;
}

Text RangeObject::Printed() {
  std::string text = "range(" + PrintInteger(begin_) + ", " + PrintInteger(end_);
  if (step_ != 1) text += ", " + PrintInteger(step_);
  return Text(text + ")", foreign_);
}

std::optional<std::vector<Value>> RangeObject::Items() {
  SpendBytes(count_ * sizeof(Value));
  std::vector<Value> items;
  for (size_t i = 0; i < count_; ++i) items.push_back(Value::Int(begin_ + step_ * static_cast<Integer>(i), foreign_));
  return items;
}

Text GroupObject::Printed() { return Represented(Value::Tuple({grouper_, list_})); }

std::optional<Value> CyclerObject::Attribute(Interpreter& interpreter, const std::string& name) {
  if (name == "next") return Bound(&CyclerNext, shared_from_this(), &interpreter);
  if (name == "reset") return Bound(&CyclerReset, shared_from_this(), &interpreter);
  if (name == "current") return items_[at_];
  return std::nullopt;
}

}  // namespace fastdecode::jinja
