#include <string>
#include <vector>

#include "engine/text/jinja/failure.h"
#include "engine/text/jinja/formatting.h"
#include "engine/text/jinja/template.h"
#include "engine/text/utf8.h"
#include "numa/check.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/jinja_seeds.h"

namespace fastdecode {

namespace {

void CheckText(const jinja::Text& text) {
  FD_CHECK(IsValidUtf8(text.bytes()), "a rendered text is UTF-8");
  size_t end = 0;
  bool first = true;
  for (const jinja::Text::Span& span : text.foreign()) {
    FD_CHECK(first ? span.begin >= end : span.begin > end, "foreign stretches are in order, and do not touch");
    FD_CHECK(span.begin < span.end && span.end <= text.size(), "foreign stretches are of the text");
    FD_CHECK((text.bytes()[span.begin] & 0xc0) != 0x80, "a foreign stretch begins with a character");
    end = span.end;
    first = false;
  }
}

}  // namespace

// The input: a template, then after a zero byte its variables as JSON.
bool FuzzOne(const std::string& input) {
  const size_t zero = input.find('\0');
  const auto parsed = jinja::Template::Parse("FILE", input.substr(0, zero));
  if (!parsed.ok()) return false;
  const std::string json = zero == std::string::npos ? JinjaSeedContext() : input.substr(zero + 1);
  jinja::Value own, foreign;
  try {
    own = jinja::LoadJson(json, false);
    foreign = jinja::LoadJson(json, true);
  } catch (const jinja::Failure& failure) {
    FD_CHECK(!failure.message.empty(), "an error has a message");
    return false;
  }
  if (!own.Is(jinja::Value::Kind::kDict)) return false;
  const jinja::Limits limits = {.steps = 20'000, .bytes = 4 << 20, .output_bytes = 1 << 20, .depth = 200};
  const absl::StatusOr<jinja::Text> by_own = (*parsed)->Render(own.dict(), 0, limits);
  const absl::StatusOr<jinja::Text> by_foreign = (*parsed)->Render(foreign.dict(), 0, limits);
  // Marks take memory, too.
  for (const absl::Status& status : {by_own.status(), by_foreign.status()}) {
    if (status.code() == absl::StatusCode::kResourceExhausted) return false;
  }
  FD_CHECK(by_own.ok() == by_foreign.ok(), "marks change nothing but themselves");
  if (!by_own.ok()) {
    FD_CHECK(!by_own.status().message().empty(), "an error has a message");
    return false;
  }
  CheckText(*by_own);
  CheckText(*by_foreign);
  FD_CHECK(by_own->bytes() == by_foreign->bytes(), "marks change no text");
  return true;
}

std::vector<std::string> FuzzSeeds() {
  std::vector<std::string> seeds;
  for (const std::string& source : JinjaSeeds()) seeds.push_back(source + std::string(1, '\0') + JinjaSeedContext());
  return seeds;
}

}  // namespace fastdecode
