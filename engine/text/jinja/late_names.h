#ifndef FASTDECODE_ENGINE_TEXT_JINJA_LATE_NAMES_H_
#define FASTDECODE_ENGINE_TEXT_JINJA_LATE_NAMES_H_

#include <string>
#include <vector>

#include "engine/text/jinja/ast.h"

namespace fastdecode::jinja {

// Fills in the names of a block with names of its own. As Jinja compiles templates, a name that it sets without having
// read it before, and that no block around it reads or sets, is the block's from its beginning: loops, macros and other
// blocks in it that run before the name is set see it undefined, even if the template's variables have one of this
// name. A name that is set in an {% if %} alone is none of these. `known`: parameters and loop targets, which have
// values from the beginning.
void FindNames(const std::vector<std::string>& known, Block* block);

}  // namespace fastdecode::jinja

#endif  // FASTDECODE_ENGINE_TEXT_JINJA_LATE_NAMES_H_
