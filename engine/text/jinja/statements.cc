// What the interpreter does with statements, loops and macros.
#include <algorithm>

#include "engine/text/jinja/formatting.h"
#include "engine/text/jinja/interpreter.h"
#include "engine/text/jinja/objects.h"
#include "engine/text/jinja/operations.h"

namespace fastdecode::jinja {

void Interpreter::Write(const Value& value) {
  if (autoescape_ && !value.markup()) {
    out_->Append(Escaped(Printed(value)));
  } else {
    AppendPrinted(value, out_);
  }
}

Interpreter::Flow Interpreter::Execute(const Block& block) {
  for (const auto& statement : block.statements) {
    const Flow flow = Execute(*statement);
    if (flow != Flow::kNext) return flow;
  }
  return Flow::kNext;
}

Interpreter::Flow Interpreter::ExecuteFrame(const Block& block) {
  for (const std::string& name : block.late_names) {
    if (!scope_->Knows(name)) scope_->Set(name, Value::Undefined("'" + name + "' is undefined"));
  }
  scope_->Begin(&block);
  return Execute(block);
}

Interpreter::Flow Interpreter::Execute(const Statement& statement) {
  const Nesting nesting;
  return PlacedAt(statement.at,
                  [&] { return std::visit([&](const auto& node) { return Visit(node); }, statement.node); });
}

Interpreter::Flow Interpreter::Visit(const Data& node) {
  Write(node.text);
  return Flow::kNext;
}

Interpreter::Flow Interpreter::Visit(const Output& node) {
  Write(Evaluate(node.value));
  return Flow::kNext;
}

Interpreter::Flow Interpreter::Visit(const If& node) {
  for (const auto& [condition, body] : node.branches) {
    if (IsTrue(Evaluate(condition))) return Execute(body);
  }
  return Execute(node.otherwise);
}

Interpreter::Flow Interpreter::Visit(const For& node) {
  if (!node.recursive) {
    RunLoop(node, Evaluate(node.iterable), 0);
    return Flow::kNext;
  }
  Text text;
  Text* const outer = std::exchange(out_, &text);
  RunLoop(node, Evaluate(node.iterable), 0);
  out_ = outer;
  Write(text);
  return Flow::kNext;
}

std::vector<Value> Interpreter::Chosen(const For& node, const SharedItems& items) {
  const std::shared_ptr<Scope> outer = scope_;
  std::vector<Value> chosen;
  for (const Value& item : items) {
    scope_ = std::make_shared<Scope>(outer);
    Assign(node.target, item);
    if (!IsTrue(Evaluate(node.filter))) continue;
    SpendBytes(sizeof(Value));
    chosen.push_back(item);
  }
  scope_ = outer;
  return chosen;
}

void Interpreter::RunLoop(const For& node, const Value& iterable, uint32_t depth) {
  SharedItems items = SharedItemsOf(iterable);
  if (node.filter != nullptr) items = SharedItems(Chosen(node, items));
  const std::shared_ptr<Scope> outer = scope_;
  outer->Keep();
  const auto loop = std::make_shared<LoopObject>(std::move(items), &node, outer, depth);
  const Value loop_value = Own(loop);
  // As in Jinja, the else branch runs unless some iteration has come to the end of the body.
  bool completed = false;
  while (loop->Next()) {
    Spend(1);
    scope_ = std::make_shared<Scope>(outer);
    scope_->Set("loop", loop_value);
    Assign(node.target, loop->Current());
    const Flow flow = ExecuteFrame(node.body);
    completed = completed || flow == Flow::kNext;
    if (flow == Flow::kBreak) break;
  }
  if (!completed) {
    scope_ = std::make_shared<Scope>(outer);
    ExecuteFrame(node.otherwise);
  }
  scope_ = outer;
}

Value Interpreter::RunLoopAgain(const For& node, const Value& iterable, const std::shared_ptr<Scope>& scope,
                                uint32_t depth) {
  const Nesting nesting;
  Text text;
  Text* const outer_out = std::exchange(out_, &text);
  const std::shared_ptr<Scope> outer = std::exchange(scope_, scope);
  RunLoop(node, iterable, depth);
  scope_ = outer;
  out_ = outer_out;
  return Value::String(std::move(text), autoescape_);
}

void Interpreter::Assign(const Target& target, const Value& value) {
  if (target.is_tuple) {
    const std::optional<SharedItems> items = SharedItemsIfAny(value);
    if (!items) throw Failure{.message = "cannot unpack non-iterable " + TypeName(value) + " object", .at = target.at};
    if (items->size() != target.targets.size()) {
      const bool more = items->size() > target.targets.size();
      throw Failure{
          .message = (more ? "too many values to unpack (expected " : "not enough values to unpack (expected ") +
                     std::to_string(target.targets.size()) + ")",
          .at = target.at};
    }
    for (size_t i = 0; i < items->size(); ++i) Assign(target.targets[i], (*items)[i]);
    return;
  }
  if (target.attribute.empty()) return scope_->Set(target.name, value);
  const Value object = Visit(Name{target.name});
  auto* const space = object.Is(Value::Kind::kObject) ? dynamic_cast<NamespaceObject*>(&object.object()) : nullptr;
  if (space == nullptr) throw Failure{.message = "cannot assign attribute on non-namespace object", .at = target.at};
  space->Set(Value::String(target.attribute), value);
}

Interpreter::Flow Interpreter::Visit(const Set& node) {
  Assign(node.target, Evaluate(node.value));
  return Flow::kNext;
}

Text Interpreter::Captured(const Block& block, Flow* flow) {
  Text text;
  Text* const outer_out = std::exchange(out_, &text);
  const std::shared_ptr<Scope> outer = scope_;
  scope_ = std::make_shared<Scope>(outer);
  *flow = ExecuteFrame(block);
  scope_ = outer;
  out_ = outer_out;
  return text;
}

Value Interpreter::Filtered(const Expression& filter, Text input) {
  const Value value = Value::String(std::move(input), autoescape_);
  const Value* const outer = std::exchange(block_input_, &value);
  Value filtered = Evaluate(filter);
  block_input_ = outer;
  return filtered;
}

Interpreter::Flow Interpreter::Visit(const SetBlock& node) {
  Flow flow = Flow::kNext;
  Text text = Captured(node.body, &flow);
  if (flow != Flow::kNext) return flow;
  Assign(node.target, node.filter == nullptr ? Value::String(std::move(text), autoescape_)
                                             : Filtered(*node.filter, std::move(text)));
  return flow;
}

Interpreter::Flow Interpreter::Visit(const FilterBlock& node) {
  Flow flow = Flow::kNext;
  Text text = Captured(node.body, &flow);
  if (flow != Flow::kNext) return flow;
  const Value filtered = Filtered(*node.filter, std::move(text));
  if (!filtered.Is(Value::Kind::kString)) {
    throw Failure{.message = "a filter block must make a string, not " + TypeName(filtered)};
  }
  Write(filtered.text());
  return flow;
}

Interpreter::Flow Interpreter::Visit(const With& node) {
  const std::shared_ptr<Scope> outer = scope_;
  const auto inner = std::make_shared<Scope>(outer);
  std::vector<Value> values;
  for (const auto& [target, value] : node.values) values.push_back(Evaluate(value));
  scope_ = inner;
  for (size_t i = 0; i < values.size(); ++i) Assign(node.values[i].first, values[i]);
  const Flow flow = ExecuteFrame(node.body);
  scope_ = outer;
  return flow;
}

Interpreter::Flow Interpreter::Visit(const Scoped& node) {
  const std::shared_ptr<Scope> outer = scope_;
  const bool escaped = autoescape_;
  if (node.autoescape != nullptr) autoescape_ = IsTrue(Evaluate(node.autoescape));
  scope_ = std::make_shared<Scope>(node.sees_root_alone ? root_ : outer);
  const Flow flow = ExecuteFrame(node.body);
  scope_ = outer;
  autoescape_ = escaped;
  return flow;
}

Interpreter::Flow Interpreter::Visit(const OtherTemplate& node) {
  throw Failure{.message = "'" + node.tag + "' needs another template, and there is none"};
}

// --- Macros

Value Interpreter::MakeMacro(const Macro& macro) {
  scope_->Keep();
  kept_scopes_.push_back(scope_);
  return Own(std::make_shared<MacroObject>(&macro, scope_));
}

Interpreter::Flow Interpreter::Visit(const Macro& node) {
  scope_->Set(node.name, MakeMacro(node));
  return Flow::kNext;
}

Interpreter::Flow Interpreter::Visit(const CallBlock& node) {
  const auto& call = std::get<CallOf>(node.call->node);
  const Value callee = Evaluate(call.callee);
  Arguments arguments = EvaluateArguments(call.arguments);
  arguments.named.emplace_back(Value::String("caller"), MakeMacro(node.caller));
  Write(Call(callee, std::move(arguments)));
  return Flow::kNext;
}

Value Interpreter::CallMacro(const Macro& macro, const std::shared_ptr<Scope>& scope, Arguments arguments) {
  const Nesting nesting;
  const auto inner = std::make_shared<Scope>(scope);
  const auto take_named = [&](std::string_view name) -> std::optional<Value> {
    Spend(arguments.named.size());
    for (auto each = arguments.named.begin(); each != arguments.named.end(); ++each) {
      if (each->first.bytes() != name) continue;
      Value value = std::move(each->second);
      arguments.named.erase(each);
      return value;
    }
    return std::nullopt;
  };
  const std::shared_ptr<Scope> outer = std::exchange(scope_, inner);
  bool has_caller = false;
  std::vector<const Parameter*> missing;
  for (size_t i = 0; i < macro.parameters.size(); ++i) {
    const Parameter& parameter = macro.parameters[i];
    has_caller = has_caller || parameter.name == "caller";
    std::optional<Value> value;
    if (i < arguments.positional.size()) {
      value = arguments.positional[i];
    } else {
      value = take_named(parameter.name);
    }
    if (value) {
      inner->Set(parameter.name, *std::move(value));
    } else {
      inner->Set(parameter.name, Value::Undefined("parameter '" + parameter.name + "' was not provided"));
      if (parameter.fallback != nullptr) missing.push_back(&parameter);
    }
  }
  if (macro.uses_caller && !has_caller) {
    inner->Set("caller", take_named("caller").value_or(Value::Undefined("No caller defined")));
  }
  if (macro.uses_kwargs) {
    Dict dict;
    for (auto& [name, value] : arguments.named) dict.Set(name, std::move(value));
    inner->Set("kwargs", Value::OfDict(std::move(dict)));
  } else if (!arguments.named.empty()) {
    throw Failure{.message = "macro '" + macro.name + "' takes no keyword argument '" +
                             arguments.named[0].first.bytes() + "'"};
  }
  const size_t taken = std::min(macro.parameters.size(), arguments.positional.size());
  if (macro.uses_varargs) {
    inner->Set("varargs", Value::Tuple({arguments.positional.begin() + static_cast<ptrdiff_t>(taken),
                                        arguments.positional.end()}));
  } else if (arguments.positional.size() > macro.parameters.size()) {
    throw Failure{.message = "macro '" + macro.name + "' takes not more than " +
                             std::to_string(macro.parameters.size()) + " argument(s)"};
  }
  for (const Parameter* const parameter : missing) inner->Set(parameter->name, Evaluate(parameter->fallback));
  Flow flow = Flow::kNext;
  Text text = Captured(macro.body, &flow);
  scope_ = outer;
  return Value::String(std::move(text), autoescape_);
}

}  // namespace fastdecode::jinja
