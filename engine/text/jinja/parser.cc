#include "engine/text/jinja/parser.h"

#include <algorithm>
#include <initializer_list>
#include <set>
#include <string>
#include <utility>

#include "engine/text/jinja/expression_parser.h"
#include "engine/text/jinja/late_names.h"

namespace fastdecode::jinja {

namespace {

constexpr int kBlockDepthMax = 100;   // of blocks in blocks
constexpr int kTargetDepthMax = 100;  // of parentheses around what is assigned to

class TemplateParser {
 public:
  explicit TemplateParser(std::string_view source) : tokens_(Tokenize(source)), expressions_(&tokens_) {}

  Block Run() {
    Block block = ReadBlock({});
    FindNames({}, &block);
    Harden(0);
    if (!unknown_.empty()) TokenStream::Fail(unknown_[0].what, unknown_[0].at);
    return block;
  }

 private:
  using Node = decltype(Statement::node);

  static void Add(Position at, Node node, Block* block) {
    block->statements.push_back(std::make_unique<const Statement>(Statement{at, std::move(node)}));
  }

  // Names that are unknown from there on are errors even if what uses them is never reached.
  void Harden(size_t from) {
    std::vector<ExpressionParser::Unknown>& soft = expressions_.unknown();
    unknown_.insert(unknown_.end(), soft.begin() + static_cast<ptrdiff_t>(from), soft.end());
    soft.resize(from);
  }

  // Until a tag of one of these names, which is current then; until the end of the template if there are none.
  Block ReadBlock(std::initializer_list<std::string_view> ends) {
    Block block;
    while (true) {
      const Position at = tokens_.current().at;
      switch (tokens_.current().kind) {
        case Token::Kind::kEnd:
          if (ends.size() > 0) FailEnd(ends);
          return block;
        case Token::Kind::kData:
          Add(at, Data{Text(tokens_.Take().text)}, &block);
          break;
        case Token::Kind::kVariableBegin: {
          tokens_.Take();
          ExpressionPtr value = expressions_.ReadTuple();
          tokens_.Expect(Token::Kind::kVariableEnd);
          Add(at, Output{std::move(value)}, &block);
          break;
        }
        default:
          tokens_.Expect(Token::Kind::kBlockBegin);
          if (std::any_of(ends.begin(), ends.end(), [&](std::string_view end) { return tokens_.IsName(end); }))
            return block;
          ReadStatement(&block);
          tokens_.Expect(Token::Kind::kBlockEnd);
      }
    }
  }

  [[noreturn]] void FailEnd(std::initializer_list<std::string_view> ends) {
    std::string names;
    for (const std::string_view end : ends) names += (names.empty() ? "'" : " or '") + std::string(end) + "'";
    TokenStream::Fail("the template ends where " + names + " is missing, for a tag of line " +
                          std::to_string(open_.empty() ? 0 : open_.back().line),
                      tokens_.current().at);
  }

  // What stands between a tag and the one that ends it.
  Block ReadBody(std::initializer_list<std::string_view> ends) {
    tokens_.TakeOperator(":");
    tokens_.Expect(Token::Kind::kBlockEnd);
    return ReadBlock(ends);
  }
  Block ReadWholeBody(std::string_view end) {
    Block body = ReadBody({end});
    tokens_.Take();
    return body;
  }
  // The same of a block that has names of its own; `known` are those that it begins with.
  Block ReadFrame(std::string_view end, const std::vector<std::string>& known = {}) {
    Block body = ReadWholeBody(end);
    FindNames(known, &body);
    return body;
  }
  static void AddNames(const Target& target, std::vector<std::string>* names) {
    for (const Target& each : target.targets) AddNames(each, names);
    if (!target.is_tuple) names->push_back(target.name);
  }

  void ReadStatement(Block* block) {
    if (!tokens_.Is(Token::Kind::kName)) TokenStream::Fail("tag name expected", tokens_.current().at);
    const Position at = tokens_.current().at;
    open_.push_back(at);
    if (open_.size() > kBlockDepthMax) TokenStream::Fail("blocks nest more than 100 deep", at);
    const std::string tag = tokens_.Take().text;
    const size_t unknown_before = expressions_.unknown().size();
    if (tag == "print") {
      ReadPrint(at, block);
    } else {
      Add(at, ReadTag(tag, at), block);
    }
    const bool has_block = tag == "macro" || tag == "call" || tag == "filter" || tag == "with" || tag == "generation" ||
                           tag == "block" || tag == "autoescape";
    if (has_block) Harden(unknown_before);
    open_.pop_back();
  }

  Node ReadTag(const std::string& tag, Position at) {
    if (tag == "if") return ReadIf();
    if (tag == "for") return ReadFor();
    if (tag == "set") return ReadSet();
    if (tag == "macro") return ReadMacro();
    if (tag == "call") return ReadCall(at);
    if (tag == "with") return ReadWith();
    if (tag == "filter") {
      ExpressionPtr filter = expressions_.ReadFilters(nullptr, /*first_has_no_bar=*/true);
      return FilterBlock{std::move(filter), ReadFrame("endfilter")};
    }
    if (tag == "generation") {
      // Its body is a macro's in Jinja, which no loop outside reaches into.
      const int loops = std::exchange(loops_, 0);
      Block body = ReadFrame("endgeneration");
      loops_ = loops;
      return Scoped{std::move(body), nullptr};
    }
    if (tag == "autoescape") {
      ExpressionPtr value = expressions_.ReadExpression();
      return Scoped{ReadFrame("endautoescape"), std::move(value)};
    }
    if (tag == "block") return ReadNamedBlock(at);
    if (tag == "break" || tag == "continue") {
      if (loops_ == 0) TokenStream::Fail("'" + tag + "' outside of a loop", at);
      if (tag == "break") return Break{};
      return Continue{};
    }
    if (tag == "include" || tag == "import" || tag == "extends" || tag == "from") return ReadOtherTemplate(tag);
    TokenStream::Fail("Encountered unknown tag '" + tag + "'", at);
  }

  void ReadPrint(Position at, Block* block) {
    for (bool first = true; !tokens_.Is(Token::Kind::kBlockEnd); first = false) {
      if (!first) tokens_.ExpectOperator(",");
      Add(at, Output{expressions_.ReadExpression()}, block);
    }
  }

  Node ReadIf() {
    // What follows is only looked at if it is reached.
    const size_t unknown_before = expressions_.unknown().size();
    If node;
    while (true) {
      ExpressionPtr condition = expressions_.ReadTuple(/*with_conditional=*/false);
      Block body = ReadBody({"elif", "else", "endif"});
      node.branches.emplace_back(std::move(condition), std::move(body));
      const std::string end = tokens_.Take().text;
      if (end == "elif") continue;
      if (end == "else") node.otherwise = ReadWholeBody("endif");
      break;
    }
    expressions_.unknown().resize(unknown_before);
    return node;
  }

  Node ReadFor() {
    For node;
    ++fors_;
    node.target = ReadTarget(/*with_namespace=*/false);
    tokens_.ExpectName("in");
    node.iterable = expressions_.ReadTuple(/*with_conditional=*/false, "recursive");
    if (tokens_.TakeName("if")) node.filter = expressions_.ReadExpression();
    node.recursive = tokens_.TakeName("recursive");
    const size_t unknown_before = expressions_.unknown().size();
    ++loops_;
    node.body = ReadBody({"endfor", "else"});
    --loops_;
    std::vector<std::string> known = {"loop"};
    AddNames(node.target, &known);
    FindNames(known, &node.body);
    if (tokens_.Take().text == "else") node.otherwise = ReadFrame("endfor");
    --fors_;
    Harden(unknown_before);
    return node;
  }

  Node ReadSet() {
    Target target = ReadTarget(/*with_namespace=*/true);
    if (tokens_.TakeOperator("=")) return Set{std::move(target), expressions_.ReadTuple()};
    ExpressionPtr filter;
    if (tokens_.IsOperator("|")) filter = expressions_.ReadFilters(nullptr, /*first_has_no_bar=*/false);
    return SetBlock{std::move(target), std::move(filter), ReadFrame("endset")};
  }

  Node ReadWith() {
    With node;
    while (!tokens_.Is(Token::Kind::kBlockEnd)) {
      if (!node.values.empty()) tokens_.ExpectOperator(",");
      Target target = ReadTarget(/*with_namespace=*/false);
      tokens_.ExpectOperator("=");
      node.values.emplace_back(std::move(target), expressions_.ReadExpression());
    }
    std::vector<std::string> known;
    for (const auto& [target, value] : node.values) AddNames(target, &known);
    node.body = ReadFrame("endwith", known);
    return node;
  }

  Node ReadNamedBlock(Position at) {
    const std::string name = tokens_.ExpectAnyName();
    if (!blocks_.insert(name).second) TokenStream::Fail("block '" + name + "' defined twice", at);
    const bool scoped = tokens_.TakeName("scoped");
    if (tokens_.TakeName("required")) TokenStream::Fail("a required block needs a template that extends this one", at);
    Scoped node{ReadFrame("endblock"), nullptr, !scoped};
    tokens_.TakeName(name);
    return node;
  }

  Node ReadOtherTemplate(const std::string& tag) {
    expressions_.ReadExpression();
    if (tag == "import") tokens_.ExpectName("as");
    if (tag == "from") tokens_.ExpectName("import");
    if (tag == "import" || tag == "from") tokens_.ExpectAnyName();
    while (!tokens_.Is(Token::Kind::kBlockEnd) && !tokens_.Is(Token::Kind::kEnd)) tokens_.Take();
    return OtherTemplate{tag};
  }

  std::vector<Parameter> ReadParameters() {
    std::vector<Parameter> parameters;
    tokens_.ExpectOperator("(");
    while (!tokens_.IsOperator(")")) {
      if (!parameters.empty()) tokens_.ExpectOperator(",");
      const Position at = tokens_.current().at;
      Parameter parameter{TargetName(), nullptr};
      for (const Parameter& other : parameters) {
        if (other.name == parameter.name) TokenStream::Fail("duplicate argument '" + parameter.name + "'", at);
      }
      if (tokens_.TakeOperator("=")) {
        parameter.fallback = expressions_.ReadExpression();
      } else if (!parameters.empty() && parameters.back().fallback != nullptr) {
        TokenStream::Fail("non-default argument follows default argument", at);
      }
      parameters.push_back(std::move(parameter));
    }
    tokens_.Take();
    return parameters;
  }

  void ReadMacroBody(std::string_view end, Macro* macro) {
    const int loops = std::exchange(loops_, 0);
    const ExpressionParser::SpecialNames before = expressions_.special_names();
    std::vector<std::string> known = {"varargs", "kwargs", "caller"};
    for (const Parameter& parameter : macro->parameters) known.push_back(parameter.name);
    macro->body = ReadFrame(end, known);
    loops_ = loops;
    const ExpressionParser::SpecialNames& after = expressions_.special_names();
    macro->uses_varargs = after.varargs != before.varargs;
    macro->uses_kwargs = after.kwargs != before.kwargs;
    macro->uses_caller = after.caller != before.caller;
  }

  Node ReadMacro() {
    Macro macro;
    macro.name = TargetName();
    const Position at = tokens_.current().at;
    macro.parameters = ReadParameters();
    for (const Parameter& parameter : macro.parameters) {
      if (parameter.name != "caller" || parameter.fallback != nullptr) continue;
      TokenStream::Fail("a macro's parameter 'caller' needs a default, such as none", at);
    }
    ReadMacroBody("endmacro", &macro);
    return macro;
  }

  Node ReadCall(Position at) {
    CallBlock node;
    if (tokens_.IsOperator("(")) node.caller.parameters = ReadParameters();
    node.call = expressions_.ReadExpression();
    if (!std::holds_alternative<CallOf>(node.call->node)) TokenStream::Fail("expected call", at);
    ReadMacroBody("endcall", &node.caller);
    return node;
  }

  std::string TargetName() {
    const Position at = tokens_.current().at;
    std::string name = tokens_.ExpectAnyName();
    CheckAssignable(name, at);
    return name;
  }

  void CheckAssignable(const std::string& name, Position at) const {
    if (name == "loop" && fors_ > 0) TokenStream::Fail("can't assign to 'loop' in a loop", at);
    static constexpr std::string_view kConstants[] = {"true", "false", "none", "True", "False", "None"};
    if (std::find(std::begin(kConstants), std::end(kConstants), name) != std::end(kConstants)) {
      TokenStream::Fail("can't assign to '" + name + "'", at);
    }
  }

  Target ReadOneTarget(bool with_namespace) {
    Target target;
    target.at = tokens_.current().at;
    if (tokens_.TakeOperator("(")) {
      if (++target_depth_ > kTargetDepthMax) {
        TokenStream::Fail("parentheses nest more than " + std::to_string(kTargetDepthMax) + " deep", target.at);
      }
      target = ReadTarget(with_namespace);
      --target_depth_;
      tokens_.ExpectOperator(")");
      return target;
    }
    if (!tokens_.Is(Token::Kind::kName)) {
      TokenStream::Fail("can't assign to " + TokenStream::Describe(tokens_.current()), target.at);
    }
    target.name = TargetName();
    if (with_namespace && tokens_.TakeOperator(".")) target.attribute = tokens_.ExpectAnyName();
    return target;
  }

  Target ReadTarget(bool with_namespace) {
    const Position at = tokens_.current().at;
    std::vector<Target> targets;
    bool is_tuple = false;
    while (true) {
      if (!targets.empty()) tokens_.ExpectOperator(",");
      const bool ends = tokens_.Is(Token::Kind::kBlockEnd) || tokens_.IsOperator(")");
      if (ends && !targets.empty()) break;
      targets.push_back(ReadOneTarget(with_namespace));
      if (!tokens_.IsOperator(",")) break;
      is_tuple = true;
    }
    if (!is_tuple) return std::move(targets[0]);
    Target tuple;
    tuple.at = at;
    tuple.targets = std::move(targets);
    tuple.is_tuple = true;
    return tuple;
  }

  TokenStream tokens_;
  ExpressionParser expressions_;
  std::vector<Position> open_;  // tags that wait for their end
  std::set<std::string> blocks_;
  std::vector<ExpressionParser::Unknown> unknown_;
  int loops_ = 0;  // around here, that break and continue reach
  int fors_ = 0;   // around here
  int target_depth_ = 0;
};

}  // namespace

Block Parse(std::string_view source) { return TemplateParser(source).Run(); }

}  // namespace fastdecode::jinja
