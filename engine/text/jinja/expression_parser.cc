#include "engine/text/jinja/expression_parser.h"

#include <algorithm>
#include <set>

#include "engine/text/jinja/builtins.h"

namespace fastdecode::jinja {

namespace {

constexpr int kExpressionDepthMax = 200;  // of expressions in expressions, by which the parser recurses
// Of the tree, by which all else recurses: a chain such as a + b + c is as high as it is long.
constexpr uint32_t kExpressionHeightMax = 1000;

ExpressionPtr Make(Position at, decltype(Expression::node) node) {
  uint32_t height = 0;
  VisitChildren(node, [&](const Expression& child) { height = std::max(height, child.height); });
  if (height >= kExpressionHeightMax) {
    TokenStream::Fail("an expression has more than 1000 parts that need one another", at);
  }
  return std::make_unique<const Expression>(Expression{at, height + 1, std::move(node)});
}

std::string DottedName(TokenStream* tokens) {
  std::string name = tokens->ExpectAnyName();
  while (tokens->TakeOperator(".")) name += "." + tokens->ExpectAnyName();
  return name;
}

}  // namespace

class ParsingDepth {
 public:
  explicit ParsingDepth(ExpressionParser* parser) : parser_(parser) {
    if (++parser_->depth_ > kExpressionDepthMax) {
      TokenStream::Fail("expressions nest more than " + std::to_string(kExpressionDepthMax) + " deep",
                        parser_->tokens_.current().at);
    }
  }
  ~ParsingDepth() { --parser_->depth_; }
  ParsingDepth(const ParsingDepth&) = delete;
  ParsingDepth& operator=(const ParsingDepth&) = delete;

 private:
  ExpressionParser* const parser_;
};

ExpressionPtr ExpressionParser::ReadExpression(bool with_conditional) {
  const ParsingDepth depth(this);
  return with_conditional ? ReadConditional() : ReadLogic(false);
}

ExpressionPtr ExpressionParser::ReadConditional() {
  const Position at = tokens_.current().at;
  const size_t unknown_before = unknown_.size();
  ExpressionPtr then = ReadLogic(false);
  while (tokens_.TakeName("if")) {
    ExpressionPtr condition = ReadLogic(false);
    ExpressionPtr otherwise;
    if (tokens_.TakeName("else")) {
      const ParsingDepth depth(this);
      otherwise = ReadConditional();
    }
    then = Make(at, Conditional{std::move(condition), std::move(then), std::move(otherwise)});
    unknown_.resize(unknown_before);
  }
  return then;
}

ExpressionPtr ExpressionParser::ReadLogic(bool is_and) {
  const Position at = tokens_.current().at;
  const auto read = [&] { return is_and ? ReadNot() : ReadLogic(true); };
  ExpressionPtr left = read();
  while (tokens_.TakeName(is_and ? "and" : "or")) {
    ExpressionPtr right = read();
    left = Make(at, Logic{is_and, std::move(left), std::move(right)});
  }
  return left;
}

ExpressionPtr ExpressionParser::ReadNot() {
  const Position at = tokens_.current().at;
  if (!tokens_.TakeName("not")) return ReadComparison();
  const ParsingDepth depth(this);
  return Make(at, Unary{Unary::Op::kNot, ReadNot()});
}

ExpressionPtr ExpressionParser::ReadComparison() {
  using Op = Comparison::Op;
  static constexpr std::pair<const char*, Op> kOperators[] = {
      {"==", Op::kEqual},     {"!=", Op::kNotEqual}, {"<", Op::kLess},
      {"<=", Op::kLessEqual}, {">", Op::kGreater},   {">=", Op::kGreaterEqual},
  };
  const Position at = tokens_.current().at;
  ExpressionPtr first = ReadSum();
  std::vector<std::pair<Op, ExpressionPtr>> rest;
  const auto take = [&]() -> std::optional<Op> {
    for (const auto& [text, op] : kOperators) {
      if (tokens_.TakeOperator(text)) return op;
    }
    if (tokens_.TakeName("in")) return Op::kIn;
    if (tokens_.IsName("not") && tokens_.next().kind == Token::Kind::kName && tokens_.next().text == "in") {
      tokens_.Take();
      tokens_.Take();
      return Op::kNotIn;
    }
    return std::nullopt;
  };
  while (const std::optional<Op> op = take()) rest.emplace_back(*op, ReadSum());
  return rest.empty() ? std::move(first) : Make(at, Comparison{std::move(first), std::move(rest)});
}

ExpressionPtr ExpressionParser::ReadSum() {
  const Position at = tokens_.current().at;
  ExpressionPtr left = ReadConcatenation();
  while (tokens_.IsOperator("+") || tokens_.IsOperator("-")) {
    const Arithmetic op = tokens_.Take().text == "+" ? Arithmetic::kAdd : Arithmetic::kSubtract;
    ExpressionPtr right = ReadConcatenation();
    left = Make(at, Binary{op, std::move(left), std::move(right)});
  }
  return left;
}

ExpressionPtr ExpressionParser::ReadConcatenation() {
  const Position at = tokens_.current().at;
  std::vector<ExpressionPtr> items;
  items.push_back(ReadProduct());
  while (tokens_.TakeOperator("~")) items.push_back(ReadProduct());
  return items.size() == 1 ? std::move(items[0]) : Make(at, Concatenation{std::move(items)});
}

ExpressionPtr ExpressionParser::ReadProduct() {
  static constexpr std::pair<const char*, Arithmetic> kOperators[] = {{"*", Arithmetic::kMultiply},
                                                                      {"/", Arithmetic::kDivide},
                                                                      {"//", Arithmetic::kFloorDivide},
                                                                      {"%", Arithmetic::kModulo}};
  const Position at = tokens_.current().at;
  ExpressionPtr left = ReadPower();
  const auto take = [&]() -> std::optional<Arithmetic> {
    for (const auto& [text, op] : kOperators) {
      if (tokens_.TakeOperator(text)) return op;
    }
    return std::nullopt;
  };
  while (const std::optional<Arithmetic> op = take()) {
    ExpressionPtr right = ReadPower();
    left = Make(at, Binary{*op, std::move(left), std::move(right)});
  }
  return left;
}

ExpressionPtr ExpressionParser::ReadPower() {
  const Position at = tokens_.current().at;
  ExpressionPtr left = ReadUnary(true);
  while (tokens_.TakeOperator("**")) {
    ExpressionPtr right = ReadUnary(true);
    left = Make(at, Binary{Arithmetic::kPower, std::move(left), std::move(right)});
  }
  return left;
}

ExpressionPtr ExpressionParser::ReadUnary(bool with_filters) {
  const ParsingDepth depth(this);
  const Position at = tokens_.current().at;
  ExpressionPtr inner;
  if (tokens_.IsOperator("-") || tokens_.IsOperator("+")) {
    const Unary::Op op = tokens_.Take().text == "-" ? Unary::Op::kMinus : Unary::Op::kPlus;
    inner = Make(at, Unary{op, ReadUnary(false)});
  } else {
    inner = ReadPrimary();
  }
  inner = ReadPostfixes(std::move(inner));
  return with_filters ? ReadFiltersAndTests(std::move(inner)) : std::move(inner);
}

ExpressionPtr ExpressionParser::ReadPrimary() {
  const Token& token = tokens_.current();
  const Position at = token.at;
  switch (token.kind) {
    case Token::Kind::kName: {
      const std::string name = tokens_.Take().text;
      if (name == "true" || name == "True") return Make(at, Literal{Value::Bool(true)});
      if (name == "false" || name == "False") return Make(at, Literal{Value::Bool(false)});
      if (name == "none" || name == "None") return Make(at, Literal{Value::None()});
      special_names_.varargs += name == "varargs";
      special_names_.kwargs += name == "kwargs";
      special_names_.caller += name == "caller";
      return Make(at, Name{name});
    }
    case Token::Kind::kString: {
      std::string text;
      while (tokens_.Is(Token::Kind::kString)) text += tokens_.Take().text;
      return Make(at, Literal{Value::String(std::move(text))});
    }
    case Token::Kind::kNumber:
      return Make(at, Literal{tokens_.Take().number});
    default:
      break;
  }
  if (tokens_.TakeOperator("(")) {
    ExpressionPtr inner = ReadTuple(true, "", /*in_parentheses=*/true);
    tokens_.ExpectOperator(")");
    return inner;
  }
  if (tokens_.IsOperator("[")) return ReadList();
  if (tokens_.IsOperator("{")) return ReadDict();
  TokenStream::Fail("unexpected " + TokenStream::Describe(token), at);
}

bool ExpressionParser::AtTupleEnd(std::string_view end_name) const {
  return tokens_.Is(Token::Kind::kVariableEnd) || tokens_.Is(Token::Kind::kBlockEnd) || tokens_.IsOperator(")") ||
         (!end_name.empty() && tokens_.IsName(end_name));
}

ExpressionPtr ExpressionParser::ReadTuple(bool with_conditional, std::string_view end_name, bool in_parentheses) {
  const Position at = tokens_.current().at;
  std::vector<ExpressionPtr> items;
  bool is_tuple = false;
  while (true) {
    if (!items.empty()) tokens_.ExpectOperator(",");
    if (AtTupleEnd(end_name)) break;
    items.push_back(ReadExpression(with_conditional));
    if (!tokens_.IsOperator(",")) break;
    is_tuple = true;
  }
  if (!is_tuple && !items.empty()) return std::move(items[0]);
  if (!is_tuple && !in_parentheses) tokens_.FailExpected("an expression");
  return Make(at, TupleDisplay{std::move(items)});
}

ExpressionPtr ExpressionParser::ReadList() {
  const Position at = tokens_.Take().at;
  std::vector<ExpressionPtr> items;
  while (!tokens_.IsOperator("]")) {
    if (!items.empty()) tokens_.ExpectOperator(",");
    if (tokens_.IsOperator("]")) break;
    items.push_back(ReadExpression());
  }
  tokens_.ExpectOperator("]");
  return Make(at, ListDisplay{std::move(items)});
}

ExpressionPtr ExpressionParser::ReadDict() {
  const Position at = tokens_.Take().at;
  std::vector<std::pair<ExpressionPtr, ExpressionPtr>> items;
  while (!tokens_.IsOperator("}")) {
    if (!items.empty()) tokens_.ExpectOperator(",");
    if (tokens_.IsOperator("}")) break;
    ExpressionPtr key = ReadExpression();
    tokens_.ExpectOperator(":");
    items.emplace_back(std::move(key), ReadExpression());
  }
  tokens_.ExpectOperator("}");
  return Make(at, DictDisplay{std::move(items)});
}

ExpressionPtr ExpressionParser::ReadPostfixes(ExpressionPtr inner) {
  while (true) {
    const Position at = tokens_.current().at;
    if (tokens_.IsOperator(".") || tokens_.IsOperator("[")) {
      inner = ReadSubscript(std::move(inner));
    } else if (tokens_.IsOperator("(")) {
      CallArguments arguments = ReadArguments();
      inner = Make(at, CallOf{std::move(inner), std::move(arguments)});
    } else {
      return inner;
    }
  }
}

ExpressionPtr ExpressionParser::ReadFiltersAndTests(ExpressionPtr inner) {
  while (true) {
    const Position at = tokens_.current().at;
    if (tokens_.TakeOperator("|")) {
      inner = ReadFilter(std::move(inner));
    } else if (tokens_.TakeName("is")) {
      inner = ReadTest(std::move(inner));
    } else if (tokens_.IsOperator("(")) {
      CallArguments arguments = ReadArguments();
      inner = Make(at, CallOf{std::move(inner), std::move(arguments)});
    } else {
      return inner;
    }
  }
}

ExpressionPtr ExpressionParser::ReadFilters(ExpressionPtr input, bool first_has_no_bar) {
  while (first_has_no_bar || tokens_.TakeOperator("|")) {
    first_has_no_bar = false;
    input = ReadFilter(std::move(input));
  }
  return input;
}

ExpressionPtr ExpressionParser::ReadFilter(ExpressionPtr input) {
  const Position at = tokens_.current().at;
  std::string name = DottedName(&tokens_);
  if (FindFilter(name) == nullptr) unknown_.push_back({"No filter named '" + name + "'.", at});
  CallArguments arguments;
  if (tokens_.IsOperator("(")) arguments = ReadArguments();
  return Make(at, FilterOf{std::move(input), std::move(name), std::move(arguments)});
}

ExpressionPtr ExpressionParser::ReadTest(ExpressionPtr input) {
  const bool negated = tokens_.TakeName("not");
  const Position at = tokens_.current().at;
  std::string name = DottedName(&tokens_);
  if (FindTest(name) == nullptr) unknown_.push_back({"No test named '" + name + "'.", at});
  CallArguments arguments;
  const bool ends = tokens_.IsName("else") || tokens_.IsName("or") || tokens_.IsName("and");
  const bool begins_primary = tokens_.Is(Token::Kind::kName) || tokens_.Is(Token::Kind::kString) ||
                              tokens_.Is(Token::Kind::kNumber) || tokens_.IsOperator("[") || tokens_.IsOperator("{");
  if (tokens_.IsOperator("(")) {
    arguments = ReadArguments();
  } else if (begins_primary && !ends) {
    if (tokens_.IsName("is")) TokenStream::Fail("You cannot chain multiple tests with is", tokens_.current().at);
    arguments.positional.push_back(ReadPostfixes(ReadPrimary()));
  }
  ExpressionPtr test = Make(at, TestOf{std::move(input), std::move(name), std::move(arguments)});
  return negated ? Make(at, Unary{Unary::Op::kNot, std::move(test)}) : std::move(test);
}

ExpressionPtr ExpressionParser::ReadSubscript(ExpressionPtr inner) {
  const Token& token = tokens_.Take();
  const Position at = token.at;
  if (token.text == "[") return ReadIndex(std::move(inner));
  if (tokens_.Is(Token::Kind::kName)) return Make(at, AttributeOf{std::move(inner), tokens_.Take().text});
  if (!tokens_.Is(Token::Kind::kNumber) || !tokens_.current().number.is_integer()) {
    TokenStream::Fail("expected name or number", tokens_.current().at);
  }
  ExpressionPtr index = Make(at, Literal{tokens_.Take().number});
  return Make(at, ItemOf{std::move(inner), std::move(index)});
}

// Behind the bracket.
ExpressionPtr ExpressionParser::ReadIndex(ExpressionPtr inner) {
  const Position at = tokens_.current().at;
  const auto is_end = [&] { return tokens_.IsOperator("]") || tokens_.IsOperator(","); };
  std::vector<ExpressionPtr> indexes;
  while (!tokens_.IsOperator("]")) {
    if (!indexes.empty()) tokens_.ExpectOperator(",");
    ExpressionPtr from;
    if (!tokens_.IsOperator(":")) from = ReadExpression();
    if (!tokens_.TakeOperator(":")) {
      indexes.push_back(std::move(from));
      continue;
    }
    ExpressionPtr to, step;
    if (!tokens_.IsOperator(":") && !is_end()) to = ReadExpression();
    if (tokens_.TakeOperator(":") && !is_end()) step = ReadExpression();
    if (!indexes.empty() || !tokens_.IsOperator("]")) {
      TokenStream::Fail("a slice among several indexes is not supported", at);
    }
    tokens_.Take();
    return Make(at, SliceOf{std::move(inner), std::move(from), std::move(to), std::move(step)});
  }
  tokens_.ExpectOperator("]");
  ExpressionPtr index = indexes.size() == 1 ? std::move(indexes[0]) : Make(at, TupleDisplay{std::move(indexes)});
  return Make(at, ItemOf{std::move(inner), std::move(index)});
}

CallArguments ExpressionParser::ReadArguments() {
  const Position at = tokens_.current().at;
  tokens_.ExpectOperator("(");
  CallArguments arguments;
  std::set<std::string> names;
  const auto require = [&](bool ok) {
    if (!ok) TokenStream::Fail("invalid syntax for function call expression", at);
  };
  bool first = true;
  while (!tokens_.IsOperator(")")) {
    if (!std::exchange(first, false)) {
      tokens_.ExpectOperator(",");
      if (tokens_.IsOperator(")")) break;
    }
    if (tokens_.TakeOperator("*")) {
      require(arguments.list == nullptr && arguments.dict == nullptr);
      arguments.list = ReadExpression();
    } else if (tokens_.TakeOperator("**")) {
      require(arguments.dict == nullptr);
      arguments.dict = ReadExpression();
    } else if (tokens_.Is(Token::Kind::kName) && tokens_.next().kind == Token::Kind::kOperator &&
               tokens_.next().text == "=") {
      require(arguments.dict == nullptr);
      std::string name = tokens_.Take().text;
      tokens_.Take();
      if (!names.insert(name).second) TokenStream::Fail("keyword argument repeated: " + name, at);
      arguments.named.emplace_back(Value::String(std::move(name)), ReadExpression());
    } else {
      require(arguments.list == nullptr && arguments.dict == nullptr && arguments.named.empty());
      arguments.positional.push_back(ReadExpression());
    }
  }
  tokens_.ExpectOperator(")");
  return arguments;
}

}  // namespace fastdecode::jinja
