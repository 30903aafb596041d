#ifndef FASTDECODE_ENGINE_TEXT_JINJA_AST_H_
#define FASTDECODE_ENGINE_TEXT_JINJA_AST_H_

#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "engine/text/jinja/failure.h"
#include "engine/text/jinja/operations.h"
#include "engine/text/jinja/value.h"

// What the parser makes of a template. Immutable once made, and shared by all renderings.
namespace fastdecode::jinja {

struct Expression;
struct Statement;
using ExpressionPtr = std::unique_ptr<const Expression>;

// Statements one after another.
struct Block {
  std::vector<std::unique_ptr<const Statement>> statements;
  // Of a block with names of its own (FindNames): all that it reads and sets, sorted; and those that it sets without
  // having read them, so that blocks in it may run before.
  std::vector<std::string> names, late_names;
};

// What a call has between its parentheses.
struct CallArguments {
  std::vector<ExpressionPtr> positional;
  std::vector<std::pair<Value, ExpressionPtr>> named;  // names are strings
  ExpressionPtr list;                                  // of *list; null: none
  ExpressionPtr dict;                                  // of **dict; null: none
};

struct Literal {
  Value value;
};
struct Name {
  std::string name;
};
struct TupleDisplay {
  std::vector<ExpressionPtr> items;
};
struct ListDisplay {
  std::vector<ExpressionPtr> items;
};
struct DictDisplay {
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> items;
};
struct AttributeOf {
  ExpressionPtr object;
  std::string name;
};
struct ItemOf {
  ExpressionPtr object, index;
};
struct SliceOf {
  ExpressionPtr object, from, to, step;  // but for the object, each may be null
};
struct CallOf {
  ExpressionPtr callee;
  CallArguments arguments;
};
struct FilterOf {
  ExpressionPtr input;  // null: what a block has rendered
  std::string name;
  CallArguments arguments;
};
struct TestOf {
  ExpressionPtr input;
  std::string name;
  CallArguments arguments;
};
struct Unary {
  enum class Op { kNot, kMinus, kPlus } op;
  ExpressionPtr operand;
};
struct Binary {
  Arithmetic op;
  ExpressionPtr left, right;
};
struct Logic {
  bool is_and;
  ExpressionPtr left, right;
};
struct Comparison {
  enum class Op { kEqual, kNotEqual, kLess, kLessEqual, kGreater, kGreaterEqual, kIn, kNotIn };
  ExpressionPtr first;
  std::vector<std::pair<Op, ExpressionPtr>> rest;  // a < b < c is a < b and b < c
};
struct Concatenation {
  std::vector<ExpressionPtr> items;
};
struct Conditional {
  ExpressionPtr condition, then, otherwise;  // the last may be null
};

struct Expression {
  Position at;
  uint32_t height;  // 1, and what the highest expression in it has
  std::variant<Literal, Name, TupleDisplay, ListDisplay, DictDisplay, AttributeOf, ItemOf, SliceOf, CallOf, FilterOf,
               TestOf, Unary, Binary, Logic, Comparison, Concatenation, Conditional>
      node;
};

// Calls `visit` with each expression that stands directly in this one.
template <class Visit>
void VisitChildren(const CallArguments& arguments, Visit&& visit) {
  for (const ExpressionPtr& each : arguments.positional) visit(*each);
  for (const auto& [name, value] : arguments.named) visit(*value);
  for (const ExpressionPtr* each : {&arguments.list, &arguments.dict}) {
    if (*each != nullptr) visit(**each);
  }
}
template <class Visit>
void VisitChildren(const decltype(Expression::node)& node, Visit&& visit) {
  const auto all = [&](const auto&... children) { ((children == nullptr ? void() : visit(*children)), ...); };
  std::visit(
      [&](const auto& one) {
        using Node = std::decay_t<decltype(one)>;
        if constexpr (std::is_same_v<Node, TupleDisplay> || std::is_same_v<Node, ListDisplay> ||
                      std::is_same_v<Node, Concatenation>) {
          for (const ExpressionPtr& each : one.items) all(each);
        } else if constexpr (std::is_same_v<Node, DictDisplay>) {
          for (const auto& [key, value] : one.items) all(key, value);
        } else if constexpr (std::is_same_v<Node, AttributeOf>) {
          all(one.object);
        } else if constexpr (std::is_same_v<Node, ItemOf>) {
          all(one.object, one.index);
        } else if constexpr (std::is_same_v<Node, SliceOf>) {
          all(one.object, one.from, one.to, one.step);
        } else if constexpr (std::is_same_v<Node, CallOf>) {
          all(one.callee);
          VisitChildren(one.arguments, visit);
        } else if constexpr (std::is_same_v<Node, FilterOf> || std::is_same_v<Node, TestOf>) {
          all(one.input);
          VisitChildren(one.arguments, visit);
        } else if constexpr (std::is_same_v<Node, Unary>) {
          all(one.operand);
        } else if constexpr (std::is_same_v<Node, Binary> || std::is_same_v<Node, Logic>) {
          all(one.left, one.right);
        } else if constexpr (std::is_same_v<Node, Comparison>) {
          all(one.first);
          for (const auto& [op, operand] : one.rest) all(operand);
        } else if constexpr (std::is_same_v<Node, Conditional>) {
          all(one.condition, one.then, one.otherwise);
        } else {
          static_assert(std::is_same_v<Node, Literal> || std::is_same_v<Node, Name>);
        }
      },
      node);
}

// What a value is assigned to: a name, an attribute of a namespace, or several of these.
struct Target {
  Position at;
  std::string name;
  std::string attribute;        // empty: the name itself
  std::vector<Target> targets;  // not empty: a tuple is taken apart
  bool is_tuple = false;
};

struct Parameter {
  std::string name;
  ExpressionPtr fallback;  // null: none
};

// Template text between tags.
struct Data {
  Text text;
};
struct Output {
  ExpressionPtr value;
};
struct If {
  std::vector<std::pair<ExpressionPtr, Block>> branches;
  Block otherwise;
};
struct For {
  Target target;
  ExpressionPtr iterable;
  ExpressionPtr filter;  // null: none
  bool recursive = false;
  Block body, otherwise;
};
struct Set {
  Target target;
  ExpressionPtr value;
};
struct SetBlock {
  Target target;
  ExpressionPtr filter;  // a chain that begins with a FilterOf without input; null: none
  Block body;
};
struct Macro {
  std::string name;
  std::vector<Parameter> parameters;
  Block body;
  bool uses_varargs = false, uses_kwargs = false, uses_caller = false;
};
struct CallBlock {
  ExpressionPtr call;  // a CallOf
  Macro caller;
};
struct FilterBlock {
  ExpressionPtr filter;
  Block body;
};
struct With {
  std::vector<std::pair<Target, ExpressionPtr>> values;
  Block body;
};
// A block whose names are its own: {% generation %}, {% block %}, and {% autoescape %} with what it sets.
struct Scoped {
  Block body;
  ExpressionPtr autoescape;      // null: as outside
  bool sees_root_alone = false;  // of the names outside of it, only those of the template's top level
};
struct Break {};
struct Continue {};
// A tag that would read another template: an error where it is reached, since there is none.
struct OtherTemplate {
  std::string tag;
};

struct Statement {
  Position at;
  std::variant<Data, Output, If, For, Set, SetBlock, Macro, CallBlock, FilterBlock, With, Scoped, Break, Continue,
               OtherTemplate>
      node;
};

}  // namespace fastdecode::jinja

#endif  // FASTDECODE_ENGINE_TEXT_JINJA_AST_H_
