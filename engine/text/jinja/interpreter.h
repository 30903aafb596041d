#ifndef FASTDECODE_ENGINE_TEXT_JINJA_INTERPRETER_H_
#define FASTDECODE_ENGINE_TEXT_JINJA_INTERPRETER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/text/jinja/ast.h"
#include "engine/text/jinja/budget.h"
#include "engine/text/jinja/operations.h"
#include "engine/text/jinja/value.h"

namespace fastdecode::jinja {

// Runs `work`; an error in it that has no place yet is one at `at`.
template <class Work>
auto PlacedAt(Position at, Work&& work) {
  try {
    return work();
  } catch (Failure& failure) {
    if (failure.at.line == 0) failure.at = at;
    throw;
  }
}

// Names and their values; what is not here is looked for outside. An assignment changes the innermost scope alone.
class Scope {
 public:
  explicit Scope(std::shared_ptr<Scope> outer) : outer_(std::move(outer)) {}

  void Set(std::string_view name, Value value);
  const Value* Find(std::string_view name) const;  // null: nowhere
  // Whether it is set here or around here, or the text of a block around here has it.
  bool Knows(const std::string& name) const;
  void Begin(const Block* block) { block_ = block; }
  void Clear() { values_.clear(); }
  // Something refers to it until the rendering ends: what it and those around it have, and get, counts.
  void Keep();

 private:
  const std::shared_ptr<Scope> outer_;
  bool kept_ = false;
  const Block* block_ = nullptr;                            // whose names these are, once it runs
  std::vector<std::pair<std::string_view, Value>> values_;  // names are the template's, or the interpreter's
};

// One rendering of a template. Thread: one; Failures are thrown out of every function.
class Interpreter {
 public:
  // `now_s`: what strftime_now says, in seconds since 1970. All outlive this.
  Interpreter(const Block& program, const Dict& variables, int64_t now_s);
  ~Interpreter();
  Interpreter(const Interpreter&) = delete;
  Interpreter& operator=(const Interpreter&) = delete;

  Text Run();

  int64_t now_s() const { return now_s_; }
  // object.name and object[index], as the sandbox allows them: what there is not, is undefined.
  Value Attribute(const Value& object, const std::string& name);
  Value ItemOf(const Value& object, const Value& index);
  Value Call(const Value& callee, Arguments arguments);
  Value ApplyFilter(const std::string& name, const Value& input, const Arguments& arguments);
  bool ApplyTest(const std::string& name, const Value& input, const Arguments& arguments);
  // A new object, which lets go of what it refers to when the rendering ends.
  Value Own(std::shared_ptr<Object> object);
  // A loop's body once more, with other items: loop(...) of a recursive one.
  Value RunLoopAgain(const For& node, const Value& iterable, const std::shared_ptr<Scope>& scope, uint32_t depth);

 private:
  friend class MacroObject;
  enum class Flow { kNext, kBreak, kContinue };

  Value Evaluate(const Expression& expression);
  Value Evaluate(const ExpressionPtr& expression) { return Evaluate(*expression); }
  Value Visit(const Literal& node) { return node.value; }
  Value Visit(const Name& node);
  Value Visit(const TupleDisplay& node);
  Value Visit(const ListDisplay& node);
  Value Visit(const DictDisplay& node);
  Value Visit(const AttributeOf& node) { return Attribute(Evaluate(node.object), node.name); }
  Value Visit(const fastdecode::jinja::ItemOf& node) {
    const Value object = Evaluate(node.object);
    return ItemOf(object, Evaluate(node.index));
  }
  Value Visit(const SliceOf& node);
  Value Visit(const CallOf& node);
  Value Visit(const FilterOf& node);
  Value Visit(const TestOf& node);
  Value Visit(const Unary& node);
  Value Visit(const Binary& node);
  Value Visit(const Logic& node);
  Value Visit(const Comparison& node);
  Value Visit(const Concatenation& node);
  Value Visit(const Conditional& node);
  bool Holds(Comparison::Op op, const Value& a, const Value& b);
  std::vector<Value> EvaluateAll(const std::vector<ExpressionPtr>& expressions);
  Arguments EvaluateArguments(const CallArguments& arguments);

  Flow Execute(const Block& block);
  Flow ExecuteFrame(const Block& block);  // in a scope of its own, which is the current one
  Flow Execute(const Statement& statement);
  Flow Visit(const Data& node);
  Flow Visit(const Output& node);
  Flow Visit(const If& node);
  Flow Visit(const For& node);
  Flow Visit(const Set& node);
  Flow Visit(const SetBlock& node);
  Flow Visit(const Macro& node);
  Flow Visit(const CallBlock& node);
  Flow Visit(const FilterBlock& node);
  Flow Visit(const With& node);
  Flow Visit(const Scoped& node);
  Flow Visit(const Break&) { return Flow::kBreak; }
  Flow Visit(const Continue&) { return Flow::kContinue; }
  Flow Visit(const OtherTemplate& node);

  void RunLoop(const For& node, const Value& iterable, uint32_t depth);
  std::vector<Value> Chosen(const For& node, const SharedItems& items);
  void Assign(const Target& target, const Value& value);
  // What a block renders, as a string.
  Text Captured(const Block& block, Flow* flow);
  Value Filtered(const Expression& filter, Text input);
  Value CallMacro(const Macro& macro, const std::shared_ptr<Scope>& scope, Arguments arguments);
  Value MakeMacro(const Macro& macro);
  void Write(const Text& text) { out_->Append(text); }
  void Write(const Value& value);

  const Block& program_;
  const Dict& variables_;
  const int64_t now_s_;
  const std::shared_ptr<Scope> root_;
  std::shared_ptr<Scope> scope_;
  Text* out_ = nullptr;
  const Value* block_input_ = nullptr;  // of the filters of a block
  bool autoescape_ = false;
  std::vector<std::shared_ptr<Object>> objects_;
  std::vector<std::shared_ptr<Scope>> kept_scopes_;  // that macros refer to
};

}  // namespace fastdecode::jinja

#endif  // FASTDECODE_ENGINE_TEXT_JINJA_INTERPRETER_H_
