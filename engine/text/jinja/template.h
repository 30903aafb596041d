#ifndef FASTDECODE_ENGINE_TEXT_JINJA_TEMPLATE_H_
#define FASTDECODE_ENGINE_TEXT_JINJA_TEMPLATE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/text/jinja/budget.h"
#include "engine/text/jinja/text.h"
#include "engine/text/jinja/value.h"

namespace fastdecode::jinja {

// A Jinja template, as transformers renders chat templates: with trim_blocks, lstrip_blocks, break and continue,
// {% generation %}, its tojson, raise_exception and strftime_now, in a sandbox in which nothing can be changed but
// namespaces. What a template writes, and what its variables had, stay apart in the text (Text).
//
// Semantics: Jinja 3.1 (jinja.palletsprojects.com/en/stable/templates) and, for values and their methods, Python 3.11.
// Integers have 128 bits. The filters pprint, random, urlize, wordwrap, xmlattr, filesizeformat and striptags are not
// there.
//
// Thread: immutable, shared by any number.
class Template {
 public:
  // `name` is what errors call it. InvalidArgument: "NAME:LINE:COLUMN: what is wrong".
  static absl::StatusOr<std::unique_ptr<const Template>> Parse(std::string name, std::string_view source);
  ~Template();

  // `now_s`: the time that strftime_now tells, in seconds since 1970, in the local time zone. InvalidArgument: an error
  // in the template, or what it says of its variables by raise_exception. ResourceExhausted: a limit. Both begin with
  // the place.
  absl::StatusOr<Text> Render(const Dict& variables, int64_t now_s, const Limits& limits = {}) const;
  // The same where this thread is spending already: what was read for it counts, too.
  absl::StatusOr<Text> RenderWithin(const Dict& variables, int64_t now_s) const;

  // All texts that the template's author wrote, between tags and as strings in them: what it may compose marks of.
  const std::vector<std::string>& literals() const;
  // Whether the template reads a variable, an attribute or an item of this name.
  bool Mentions(std::string_view name) const;

 private:
  struct Impl;
  explicit Template(std::unique_ptr<Impl> impl);
  const std::unique_ptr<Impl> impl_;
};

}  // namespace fastdecode::jinja

#endif  // FASTDECODE_ENGINE_TEXT_JINJA_TEMPLATE_H_
