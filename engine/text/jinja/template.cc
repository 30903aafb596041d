#include "engine/text/jinja/template.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/text/jinja/failure.h"
#include "engine/text/jinja/interpreter.h"
#include "engine/text/jinja/lexer.h"
#include "engine/text/jinja/parser.h"
#include "engine/text/utf8.h"

namespace fastdecode::jinja {

namespace {

constexpr size_t kSourceBytesMax = 4 << 20;

absl::Status ToStatus(const std::string& name, const Failure& failure) {
  std::string message = failure.message;
  if (failure.at.line != 0) {
    message = absl::StrCat(name, ":", failure.at.line, ":", failure.at.column, ": ", failure.message);
  }
  if (failure.kind == Failure::Kind::kLimit) return absl::ResourceExhaustedError(message);
  return absl::InvalidArgumentError(message);
}

}  // namespace

struct Template::Impl {
  std::string name;
  Block program;
  std::vector<std::string> literals;
  std::vector<std::string> names;
};

Template::Template(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Template::~Template() = default;

absl::StatusOr<std::unique_ptr<const Template>> Template::Parse(std::string name, std::string_view source) {
  if (source.size() > kSourceBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": a template of ", source.size(), " bytes is more than ", kSourceBytesMax));
  }
  if (!IsValidUtf8(source)) return absl::InvalidArgumentError(absl::StrCat(name, ": the template is not UTF-8"));
  auto impl = std::make_unique<Impl>();
  impl->name = std::move(name);
  try {
    impl->program = jinja::Parse(source);
    for (const Token& token : Tokenize(source)) {
      if (token.kind == Token::Kind::kData || token.kind == Token::Kind::kString) impl->literals.push_back(token.text);
      if (token.kind == Token::Kind::kName || token.kind == Token::Kind::kString) impl->names.push_back(token.text);
    }
  } catch (const Failure& failure) {
    return ToStatus(impl->name, failure);
  }
  return std::unique_ptr<const Template>(new Template(std::move(impl)));
}

absl::StatusOr<Text> Template::Render(const Dict& variables, int64_t now_s, const Limits& limits) const {
  Budget budget(limits);
  const Spending spending(&budget);
  return RenderWithin(variables, now_s);
}

absl::StatusOr<Text> Template::RenderWithin(const Dict& variables, int64_t now_s) const {
  try {
    return Interpreter(impl_->program, variables, now_s).Run();
  } catch (const Failure& failure) {
    return ToStatus(impl_->name, failure);
  }
}

const std::vector<std::string>& Template::literals() const { return impl_->literals; }

bool Template::Mentions(std::string_view name) const {
  return std::find(impl_->names.begin(), impl_->names.end(), name) != impl_->names.end();
}

}  // namespace fastdecode::jinja
