#ifndef FASTDECODE_ENGINE_TEXT_JINJA_SEQUENCE_FILTERS_H_
#define FASTDECODE_ENGINE_TEXT_JINJA_SEQUENCE_FILTERS_H_

#include <string_view>

#include "engine/text/jinja/builtins.h"

namespace fastdecode::jinja {

// The filters that take lists and dicts. Null: there is none of this name.
Filter FindSequenceFilter(std::string_view name);

}  // namespace fastdecode::jinja

#endif  // FASTDECODE_ENGINE_TEXT_JINJA_SEQUENCE_FILTERS_H_
