#include "engine/text/jinja/interpreter.h"

#include <algorithm>
#include <set>

#include "engine/text/jinja/builtins.h"
#include "engine/text/jinja/formatting.h"
#include "engine/text/jinja/operations.h"

namespace fastdecode::jinja {

namespace {

using Kind = Value::Kind;

}  // namespace

void Scope::Set(std::string_view name, Value value) {
  for (auto& [known, old] : values_) {
    if (known == name) {
      old = std::move(value);
      return;
    }
  }
  if (kept_) SpendBytes(sizeof(values_[0]));
  values_.emplace_back(name, std::move(value));
}

void Scope::Keep() {
  for (Scope* scope = this; scope != nullptr && !scope->kept_; scope = scope->outer_.get()) {
    SpendBytes(sizeof(Scope) + scope->values_.size() * sizeof(scope->values_[0]));
    scope->kept_ = true;
  }
}

const Value* Scope::Find(std::string_view name) const {
  for (const Scope* scope = this; scope != nullptr; scope = scope->outer_.get()) {
    for (const auto& [known, value] : scope->values_) {
      if (known == name) return &value;
    }
  }
  return nullptr;
}

bool Scope::Knows(const std::string& name) const {
  if (Find(name) != nullptr) return true;
  for (const Scope* scope = this; scope != nullptr; scope = scope->outer_.get()) {
    if (scope->block_ == nullptr) continue;
    if (std::binary_search(scope->block_->names.begin(), scope->block_->names.end(), name)) return true;
  }
  return false;
}

Interpreter::Interpreter(const Block& program, const Dict& variables, int64_t now_s)
    : program_(program), variables_(variables), now_s_(now_s), root_(std::make_shared<Scope>(nullptr)), scope_(root_) {}

Interpreter::~Interpreter() {
  for (const std::shared_ptr<Object>& object : objects_) object->Clear();
  for (const std::shared_ptr<Scope>& scope : kept_scopes_) scope->Clear();
}

Text Interpreter::Run() {
  Text out;
  out_ = &out;
  ExecuteFrame(program_);
  return out;
}

Value Interpreter::Own(std::shared_ptr<Object> object) {
  SpendBytes(128);
  objects_.push_back(object);
  return Value::OfObject(std::move(object));
}

Value Interpreter::Evaluate(const Expression& expression) {
  const Nesting nesting;
  return PlacedAt(expression.at,
                  [&] { return std::visit([&](const auto& node) { return Visit(node); }, expression.node); });
}

std::vector<Value> Interpreter::EvaluateAll(const std::vector<ExpressionPtr>& expressions) {
  std::vector<Value> values;
  values.reserve(expressions.size());
  for (const ExpressionPtr& each : expressions) values.push_back(Evaluate(each));
  return values;
}

Value Interpreter::Visit(const Name& node) {
  if (const Value* const value = scope_->Find(node.name)) return *value;
  if (const Value* const value = variables_.Find(node.name)) return *value;
  if (const Value* const value = FindGlobal(node.name)) return *value;
  return Value::Undefined("'" + node.name + "' is undefined");
}

Value Interpreter::Visit(const TupleDisplay& node) { return Value::Tuple(EvaluateAll(node.items)); }

Value Interpreter::Visit(const ListDisplay& node) { return Value::List(EvaluateAll(node.items)); }

Value Interpreter::Visit(const DictDisplay& node) {
  Dict dict;
  for (const auto& [key, value] : node.items) {
    Value evaluated = Evaluate(key);
    dict.Set(std::move(evaluated), Evaluate(value));
  }
  return Value::OfDict(std::move(dict));
}

Value Interpreter::Visit(const SliceOf& node) {
  const auto part = [&](const ExpressionPtr& each) { return each == nullptr ? Value::None() : Evaluate(each); };
  const Value object = Evaluate(node.object);
  const Value from = part(node.from), to = part(node.to), step = part(node.step);
  return Slice(object, from, to, step);
}

Arguments Interpreter::EvaluateArguments(const CallArguments& given) {
  Arguments arguments;
  arguments.positional = EvaluateAll(given.positional);
  if (given.list != nullptr) {
    for (const Value& item : SharedItemsOf(Evaluate(given.list))) {
      SpendBytes(sizeof(Value));
      arguments.positional.push_back(item);
    }
  }
  for (const auto& [name, value] : given.named) arguments.named.emplace_back(name, Evaluate(value));
  if (given.dict == nullptr) return arguments;
  const Value more = Evaluate(given.dict);
  RequireDefined(more);
  if (!more.Is(Kind::kDict)) throw Failure{.message = "argument after ** must be a mapping, not " + TypeName(more)};
  // What the dict has twice is there once.
  std::set<std::string_view> names;
  for (const auto& [name, value] : arguments.named) names.insert(name.bytes());
  for (const auto& [key, value] : more.dict().items) {
    if (!key.Is(Kind::kString)) throw Failure{.message = "keywords must be strings"};
    if (names.contains(key.bytes())) {
      throw Failure{.message = "got multiple values for keyword argument '" + key.bytes() + "'"};
    }
    SpendBytes(2 * sizeof(Value));
    arguments.named.emplace_back(key, value);
  }
  return arguments;
}

Value Interpreter::Visit(const CallOf& node) {
  const Value callee = Evaluate(node.callee);
  return Call(callee, EvaluateArguments(node.arguments));
}

Value Interpreter::Call(const Value& callee, Arguments arguments) {
  RequireDefined(callee);
  if (!callee.Is(Kind::kObject)) throw Failure{.message = "'" + TypeName(callee) + "' object is not callable"};
  const std::shared_ptr<Object> object = callee.shared_object();
  return object->Call(*this, std::move(arguments));
}

Value Interpreter::Visit(const FilterOf& node) {
  const Value input = node.input == nullptr ? *block_input_ : Evaluate(node.input);
  return ApplyFilter(node.name, input, EvaluateArguments(node.arguments));
}

Value Interpreter::ApplyFilter(const std::string& name, const Value& input, const Arguments& arguments) {
  const Nesting nesting;
  const Filter filter = FindFilter(name);
  if (input.Is(Kind::kString)) SpendSearch(input.text().size());
  if (filter == nullptr) throw Failure{.message = "No filter named '" + name + "'."};
  return filter(*this, input, arguments);
}

Value Interpreter::Visit(const TestOf& node) {
  const Value input = Evaluate(node.input);
  return Value::Bool(ApplyTest(node.name, input, EvaluateArguments(node.arguments)));
}

bool Interpreter::ApplyTest(const std::string& name, const Value& input, const Arguments& arguments) {
  const Nesting nesting;
  const Test test = FindTest(name);
  if (input.Is(Kind::kString)) SpendSearch(input.text().size());
  if (test == nullptr) throw Failure{.message = "No test named '" + name + "'."};
  return test(*this, input, arguments);
}

Value Interpreter::Visit(const Unary& node) {
  const Value operand = Evaluate(node.operand);
  switch (node.op) {
    case Unary::Op::kNot:
      return Value::Bool(!IsTrue(operand));
    case Unary::Op::kMinus:
      return Negate(operand);
    case Unary::Op::kPlus:
      return Plus(operand);
  }
  return Value();
}

Value Interpreter::Visit(const Binary& node) {
  const Value left = Evaluate(node.left);
  return Calculate(node.op, left, Evaluate(node.right));
}

Value Interpreter::Visit(const Logic& node) {
  Value left = Evaluate(node.left);
  return IsTrue(left) == node.is_and ? Evaluate(node.right) : left;
}

bool Interpreter::Holds(Comparison::Op op, const Value& a, const Value& b) {
  using Op = Comparison::Op;
  const auto order = [&](const char* symbol, auto&& holds) {
    const std::optional<int> sign = Compare(a, b, symbol);
    return sign && holds(*sign);
  };
  switch (op) {
    case Op::kEqual:
      return Equal(a, b);
    case Op::kNotEqual:
      return !Equal(a, b);
    case Op::kLess:
      return order("<", [](int sign) { return sign < 0; });
    case Op::kLessEqual:
      return order("<=", [](int sign) { return sign <= 0; });
    case Op::kGreater:
      return order(">", [](int sign) { return sign > 0; });
    case Op::kGreaterEqual:
      return order(">=", [](int sign) { return sign >= 0; });
    case Op::kIn:
      return Contains(b, a);
    case Op::kNotIn:
      return !Contains(b, a);
  }
  return false;
}

Value Interpreter::Visit(const Comparison& node) {
  Value left = Evaluate(node.first);
  for (const auto& [op, operand] : node.rest) {
    Value right = Evaluate(operand);
    if (!Holds(op, left, right)) return Value::Bool(false);
    left = std::move(right);
  }
  return Value::Bool(true);
}

Value Interpreter::Visit(const Concatenation& node) {
  const std::vector<Value> items = EvaluateAll(node.items);
  const bool markup =
      autoescape_ && std::any_of(items.begin(), items.end(), [](const Value& item) { return item.markup(); });
  Text text;
  for (const Value& item : items) {
    if (markup && !item.markup()) {
      text.Append(Escaped(Printed(item)));
    } else {
      AppendPrinted(item, &text);
    }
  }
  return Value::String(std::move(text), markup);
}

Value Interpreter::Visit(const Conditional& node) {
  if (IsTrue(Evaluate(node.condition))) return Evaluate(node.then);
  if (node.otherwise != nullptr) return Evaluate(node.otherwise);
  return Value::Undefined("the inline if-expression evaluated to false and no else section was defined.");
}

Value Interpreter::Attribute(const Value& object, const std::string& name) {
  RequireDefined(object);
  std::optional<Value> value;
  if (object.Is(Kind::kObject)) {
    value = object.object().Attribute(*this, name);
  } else {
    value = BuiltinAttribute(object, name);
  }
  // What Python's objects have for themselves.
  if (!value && name.size() > 4 && name.starts_with("__") && name.ends_with("__")) {
    return Value::Undefined("access to attribute '" + name + "' of '" + TypeName(object) + "' object is unsafe.");
  }
  if (!value && object.Is(Kind::kDict)) {
    if (const Value* const item = object.dict().Find(name)) value = *item;
  }
  if (value) return *value;
  return Value::Undefined("'" + TypeName(object) + " object' has no attribute '" + name + "'");
}

Value Interpreter::ItemOf(const Value& object, const Value& index) {
  RequireDefined(object);
  if (std::optional<Value> item = Item(object, index)) return *std::move(item);
  if (index.Is(Kind::kString)) {
    const std::string& name = index.bytes();
    const bool has = object.Is(Kind::kObject) ? object.object().Attribute(*this, name).has_value()
                                              : BuiltinAttribute(object, name).has_value();
    if (has) return Attribute(object, name);
    return Value::Undefined("'" + TypeName(object) + " object' has no attribute '" + name + "'");
  }
  return Value::Undefined(TypeName(object) + " object has no element " + Represented(index).bytes());
}

}  // namespace fastdecode::jinja
