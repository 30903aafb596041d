#include "engine/text/jinja/late_names.h"

#include <algorithm>
#include <set>

namespace fastdecode::jinja {

namespace {

// Follows a block's statements in their order, but not into blocks that have names of their own.
class NameFinder {
 public:
  explicit NameFinder(const std::vector<std::string>& known) : seen_(known.begin(), known.end()) {}

  void Follow(const std::vector<std::unique_ptr<const Statement>>& statements) {
    for (const auto& statement : statements) {
      std::visit([&](const auto& node) { Visit(node); }, statement->node);
    }
  }
  const std::vector<std::string>& late() const { return late_; }
  const std::set<std::string>& seen() const { return seen_; }

 private:
  void Read(const std::string& name) { seen_.insert(name); }
  void Write(const std::string& name) {
    if (seen_.insert(name).second && branches_ == 0) late_.push_back(name);
  }
  void Write(const Target& target) {
    for (const Target& each : target.targets) Write(each);
    if (target.is_tuple) return;
    if (target.attribute.empty()) {
      Write(target.name);
    } else {
      Read(target.name);
    }
  }

  void Read(const Expression& expression) {
    if (const auto* const name = std::get_if<Name>(&expression.node)) Read(name->name);
    VisitChildren(expression.node, [&](const Expression& child) { Read(child); });
  }
  void Read(const ExpressionPtr& expression) { Read(*expression); }

  void Visit(const Data&) {}
  void Visit(const Output& node) { Read(node.value); }
  void Visit(const If& node) {
    for (const auto& [condition, body] : node.branches) {
      Read(condition);
      ++branches_;
      Follow(body.statements);
      --branches_;
    }
    ++branches_;
    Follow(node.otherwise.statements);
    --branches_;
  }
  void Visit(const For& node) { Read(node.iterable); }
  void Visit(const Set& node) {
    Read(node.value);
    Write(node.target);
  }
  void Visit(const SetBlock& node) { Write(node.target); }
  void Visit(const Macro& node) { Write(node.name); }
  void Visit(const CallBlock& node) { Read(node.call); }
  void Visit(const FilterBlock& node) { Read(node.filter); }
  void Visit(const With& node) {
    for (const auto& [target, value] : node.values) Read(value);
  }
  void Visit(const Scoped&) {}
  void Visit(const Break&) {}
  void Visit(const Continue&) {}
  void Visit(const OtherTemplate&) {}

  std::set<std::string> seen_;
  std::vector<std::string> late_;
  int branches_ = 0;  // of {% if %} that are open
};

}  // namespace

void FindNames(const std::vector<std::string>& known, Block* block) {
  NameFinder finder(known);
  finder.Follow(block->statements);
  block->late_names = finder.late();
  block->names.assign(finder.seen().begin(), finder.seen().end());
}

}  // namespace fastdecode::jinja
