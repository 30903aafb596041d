#ifndef FASTDECODE_ENGINE_TEXT_JINJA_FORMAT_SPEC_H_
#define FASTDECODE_ENGINE_TEXT_JINJA_FORMAT_SPEC_H_

#include <cstddef>
#include <optional>

#include "engine/text/jinja/value.h"

namespace fastdecode::jinja {

// Python's format specification: [[fill]align][sign][#][0][width][grouping][.precision][type].
struct FormatSpec {
  bool foreign = false;  // some of it came from the request: so is what it adds to values
  Text fill = Text(" ");
  char align = 0;  // one of < > = ^; 0: as the type has it
  char sign = '-';
  bool alternate = false;
  bool zero = false;
  size_t width = 0;
  char grouping = 0;
  std::optional<size_t> precision;
  char type = 0;
};

FormatSpec ReadFormatSpec(const Text& text);
// format(value, spec).
Text FormatValue(const Value& value, const FormatSpec& spec);
// `text` in a field of `width` characters: align < > or ^.
Text Padded(const Text& text, size_t width, char align, const Text& fill);

}  // namespace fastdecode::jinja

#endif  // FASTDECODE_ENGINE_TEXT_JINJA_FORMAT_SPEC_H_
