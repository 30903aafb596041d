#include <string>
#include <vector>

#include "engine/text/jinja/template.h"
#include "engine/text/utf8.h"
#include "numa/check.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/jinja_seeds.h"

namespace fastdecode {

// The input: a template.
bool FuzzOne(const std::string& input) {
  const auto parsed = jinja::Template::Parse("FILE", input);
  if (!parsed.ok()) {
    FD_CHECK(parsed.status().message().substr(0, 5) == "FILE:", "an error names the file first");
    return false;
  }
  for (const std::string& literal : (*parsed)->literals()) FD_CHECK(IsValidUtf8(literal), "literals are text");
  return true;
}

std::vector<std::string> FuzzSeeds() { return JinjaSeeds(); }

}  // namespace fastdecode
