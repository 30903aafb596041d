#include "tests/tools/serve/stub_script.h"

#include <algorithm>
#include <charconv>
#include <optional>

#include "tests/tools/serve/stub_tokenizer.h"

namespace fastdecode::stub {

namespace {

using Kind = ScriptStep::Kind;

// What a damaged prompt may ask for at most.
constexpr uint64_t kNsMax = 60'000'000'000;
constexpr uint64_t kBigMax = 4 << 20;
constexpr size_t kDirectiveBytesMax = 1024;
constexpr uint64_t kForever = ~uint64_t{0};

std::optional<uint64_t> Number(std::string_view text) {
  uint64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return number;
}

std::optional<std::string> FromHex(std::string_view hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    int byte = 0;
    const auto [end, error] = std::from_chars(hex.data() + i, hex.data() + i + 2, byte, 16);
    if (error != std::errc() || end != hex.data() + i + 2) return std::nullopt;
    bytes.push_back(static_cast<char>(byte));
  }
  if (bytes.empty() || hex.size() % 2 != 0) return std::nullopt;
  return bytes;
}

// Durations. False: it is none of these.
bool ReadDuration(std::string_view name, std::string_view value, Script* script) {
  const std::optional<uint64_t> number = Number(value);
  if (!number) return false;
  const uint64_t ns = std::min(*number, uint64_t{1} << 32) * (name == "every-us" ? 1'000 : 1'000'000);
  const uint64_t bounded_ns = std::min(ns, kNsMax);
  if (name == "queue") {
    script->queue_ns = bounded_ns;
  } else if (name == "prefill") {
    script->prefill_ns = bounded_ns;
  } else if (name == "deaf") {
    script->deaf_ns = bounded_ns;
  } else if (name == "ms") {
    script->steps.push_back({Kind::kPause, "", bounded_ns});
  } else if (name == "every" || name == "every-us") {
    script->steps.push_back({Kind::kEvery, "", bounded_ns});
  } else if (name == "hang") {
    script->steps.push_back({Kind::kHang, "", bounded_ns});
  } else {
    return false;
  }
  return true;
}

// Tokens with a value. False: it is none of these.
bool ReadTokens(std::string_view name, std::string_view value, Script* script) {
  if (name == "repeat") {
    const size_t colon = value.find(':');
    const std::optional<uint64_t> count = Number(value.substr(0, colon));
    if (!count || colon == std::string_view::npos || colon + 1 == value.size()) return false;
    script->steps.push_back({Kind::kToken, std::string(value.substr(colon + 1)), *count});
  } else if (name == "big") {
    const std::optional<uint64_t> bytes = Number(value);
    if (!bytes || *bytes == 0) return false;
    script->steps.push_back({Kind::kToken, std::string(std::min(*bytes, kBigMax), 'x'), 1});
  } else if (name == "bytes") {
    const std::optional<std::string> bytes = FromHex(value);
    if (!bytes) return false;
    script->steps.push_back({Kind::kToken, *bytes, 1});
  } else if (name == "id") {
    const std::optional<uint64_t> id = Number(value);
    if (!id || *id >= uint64_t{kVocab}) return false;
    script->steps.push_back({Kind::kId, "", *id});
  } else {
    return false;
  }
  return true;
}

bool ReadDirective(std::string_view directive, Script* script) {
  const size_t colon = directive.find(':');
  const std::string_view name = directive.substr(0, colon);
  const bool has_value = colon != std::string_view::npos;
  const std::string_view value = has_value ? directive.substr(colon + 1) : "";
  const struct {
    std::string_view name;
    Kind kind;
    bool has_value;
  } plain[] = {{"seed", Kind::kSeed, false}, {"stop", Kind::kStop, false}, {"length", Kind::kLength, false},
               {"wait", Kind::kWait, false}, {"hang", Kind::kHang, false}, {"error", Kind::kError, true},
               {"field", Kind::kField, true}};
  for (const auto& known : plain) {
    if (known.name != name || known.has_value != has_value) continue;
    script->steps.push_back({known.kind, std::string(value), kForever});
    return true;
  }
  if (const std::optional<uint64_t> number = Number(value); name == "cached" && number) {
    script->cached = *number;
    return true;
  }
  return has_value && (ReadDuration(name, value, script) || ReadTokens(name, value, script));
}

void AppendWords(std::string_view text, Script* script) {
  while (!text.empty()) {
    const std::string_view word = FirstWord(text);
    script->steps.push_back({Kind::kToken, std::string(word), 1});
    text.remove_prefix(word.size());
  }
}

std::string_view WithoutWhiteEnd(std::string_view text) {
  const size_t last = text.find_last_not_of(" \n\t\r");
  return text.substr(0, last == std::string_view::npos ? 0 : last + 1);
}

}  // namespace

Script ReadScript(std::string_view prompt) {
  constexpr std::string_view kPlay = "{play}";
  if (const size_t play = prompt.rfind(kPlay); play != std::string_view::npos) {
    prompt.remove_prefix(play + kPlay.size());
    prompt = prompt.substr(0, prompt.find("{end}"));
  }
  Script script;
  size_t begin = 0;  // of the text that is not in the script yet
  for (size_t open = prompt.find('{'); open != std::string_view::npos; open = prompt.find('{', open + 1)) {
    const size_t length = prompt.substr(open, kDirectiveBytesMax).find('}');
    if (length == std::string_view::npos) continue;
    const size_t close = open + length;
    Script directive;
    if (!ReadDirective(prompt.substr(open + 1, close - open - 1), &directive)) continue;
    AppendWords(WithoutWhiteEnd(prompt.substr(begin, open - begin)), &script);
    for (ScriptStep& step : directive.steps) script.steps.push_back(std::move(step));
    script.queue_ns = std::max(script.queue_ns, directive.queue_ns);
    script.prefill_ns = std::max(script.prefill_ns, directive.prefill_ns);
    script.deaf_ns = std::max(script.deaf_ns, directive.deaf_ns);
    script.cached = std::max(script.cached, directive.cached);
    begin = close + 1;
    open = close;
  }
  AppendWords(prompt.substr(begin), &script);
  return script;
}

}  // namespace fastdecode::stub
