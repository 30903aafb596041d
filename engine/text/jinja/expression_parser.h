#ifndef FASTDECODE_ENGINE_TEXT_JINJA_EXPRESSION_PARSER_H_
#define FASTDECODE_ENGINE_TEXT_JINJA_EXPRESSION_PARSER_H_

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/text/jinja/ast.h"
#include "engine/text/jinja/token_stream.h"

namespace fastdecode::jinja {

// Reads expressions, by the precedence that Jinja has: if-else, or, and, not, comparisons, + -, ~, * / // %, **, signs,
// postfixes, filters and tests.
class ExpressionParser {
 public:
  explicit ExpressionParser(TokenStream* tokens) : tokens_(*tokens) {}

  ExpressionPtr ReadExpression(bool with_conditional = true);
  // Several that commas separate are a tuple. `end_name`: a name that ends it, or "".
  ExpressionPtr ReadTuple(bool with_conditional = true, std::string_view end_name = "", bool in_parentheses = false);
  // A filter and those that follow it. `input` may be null.
  ExpressionPtr ReadFilters(ExpressionPtr input, bool first_has_no_bar);

  // Filters and tests that there are not, where Jinja notices it when it reads the template. What is in a condition, or
  // behind one, it notices when it gets there.
  struct Unknown {
    std::string what;
    Position at;
  };
  std::vector<Unknown>& unknown() { return unknown_; }

  // How often the names have been read that every macro has beside its parameters.
  struct SpecialNames {
    int varargs = 0, kwargs = 0, caller = 0;
  };
  const SpecialNames& special_names() const { return special_names_; }

 private:
  ExpressionPtr ReadConditional();
  ExpressionPtr ReadLogic(bool is_and);
  ExpressionPtr ReadNot();
  ExpressionPtr ReadComparison();
  ExpressionPtr ReadSum();
  ExpressionPtr ReadConcatenation();
  ExpressionPtr ReadProduct();
  ExpressionPtr ReadPower();
  ExpressionPtr ReadUnary(bool with_filters);
  ExpressionPtr ReadPrimary();
  ExpressionPtr ReadPostfixes(ExpressionPtr inner);
  ExpressionPtr ReadFiltersAndTests(ExpressionPtr inner);
  ExpressionPtr ReadFilter(ExpressionPtr input);
  ExpressionPtr ReadTest(ExpressionPtr input);
  ExpressionPtr ReadSubscript(ExpressionPtr inner);
  ExpressionPtr ReadIndex(ExpressionPtr inner);
  ExpressionPtr ReadList();
  ExpressionPtr ReadDict();
  CallArguments ReadArguments();
  bool AtTupleEnd(std::string_view end_name) const;

  TokenStream& tokens_;
  std::vector<Unknown> unknown_;
  SpecialNames special_names_;
  int depth_ = 0;

  friend class ParsingDepth;
};

}  // namespace fastdecode::jinja

#endif  // FASTDECODE_ENGINE_TEXT_JINJA_EXPRESSION_PARSER_H_
