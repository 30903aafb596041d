#include "engine/text/decoder.h"

#include <algorithm>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/text/byte_alphabet.h"

namespace fastdecode {
namespace {

constexpr size_t kGrowthMax = 16;

constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

// Cuts up to `limit` copies of `character` from the start of *text and returns how many those were.
int CutLeft(std::string_view character, int limit, std::string_view* text) {
  int cut = 0;
  for (; cut < limit && text->starts_with(character); ++cut) text->remove_prefix(character.size());
  return cut;
}

int CutRight(std::string_view character, int limit, std::string_view* text) {
  int cut = 0;
  for (; cut < limit && text->ends_with(character); ++cut) text->remove_suffix(character.size());
  return cut;
}

// Whether the step does to a text what it does to the parts of any cut of it.
bool WorksInPieces(const DecoderStep& step) {
  switch (step.kind) {
    case DecoderStep::Kind::kFuse:
    case DecoderStep::Kind::kStrip:
    case DecoderStep::Kind::kMetaspace:
      return true;
    case DecoderStep::Kind::kReplace:
      return step.pattern.is_literal && !step.pattern.pattern.empty() &&
             NextUtf8(step.pattern.pattern).bytes == step.pattern.pattern.size();
    case DecoderStep::Kind::kByteLevel:
    case DecoderStep::Kind::kByteFallback:
      return false;
  }
  return false;
}

}  // namespace

absl::StatusOr<Decoder> Decoder::Create(const std::vector<DecoderStep>& steps, bool spaced) {
  std::vector<Step> compiled;
  bool fused = false;
  bool one_at_a_time = true;  // so far, no step has looked at more than one token
  size_t prepared = 0;
  bool has_fallback = false, has_metaspace = false, has_fused_strip = false;
  size_t growth = 1;  // how many times as long as it is spelt a token's text may be
  for (const DecoderStep& step : steps) {
    Step next = {step, std::nullopt, fused};
    if (fused && !WorksInPieces(step)) {
      return absl::UnimplementedError(absl::StrCat(step.field, " comes after the tokens were joined: not built"));
    }
    if (step.kind == DecoderStep::Kind::kReplace) {
      absl::StatusOr<TextReplacer> replacer = TextReplacer::Create(step.pattern, step.content);
      if (!replacer.ok()) return replacer.status();
      next.replacer = *std::move(replacer);
      growth *= next.replacer->growth();
      if (growth > kGrowthMax) {
        return absl::UnimplementedError(absl::StrCat(step.field, " may make a token too long: not built"));
      }
    }
    // A stream has one state of each kind.
    const bool repeated = (step.kind == DecoderStep::Kind::kByteFallback && std::exchange(has_fallback, true)) ||
                          (step.kind == DecoderStep::Kind::kMetaspace && std::exchange(has_metaspace, true)) ||
                          (step.kind == DecoderStep::Kind::kStrip && fused && std::exchange(has_fused_strip, true));
    if (repeated) {
      return absl::UnimplementedError(absl::StrCat(step.field, " is the second of its kind: not built"));
    }
    one_at_a_time &= step.kind == DecoderStep::Kind::kReplace || step.kind == DecoderStep::Kind::kStrip;
    prepared += one_at_a_time;
    fused |= step.kind == DecoderStep::Kind::kFuse || step.kind == DecoderStep::Kind::kByteLevel;
    compiled.push_back(std::move(next));
  }
  Decoder decoder(std::move(compiled));
  decoder.prepared_steps_ = prepared;
  decoder.byte_level_ = prepared < steps.size() && steps[prepared].kind == DecoderStep::Kind::kByteLevel;
  decoder.spaced_ = spaced && steps.empty();
  return decoder;
}

std::string Decoder::ApplyToToken(const Step& step, std::string_view token) {
  if (step.spec.kind == DecoderStep::Kind::kReplace) return step.replacer->Run(token);
  CutLeft(step.spec.content, step.spec.start, &token);
  CutRight(step.spec.content, step.spec.stop, &token);
  return std::string(token);
}

std::string Decoder::Prepare(std::string_view token) const {
  std::string prepared(token);
  for (size_t i = 0; i < prepared_steps_; ++i) prepared = ApplyToToken(steps_[i], prepared);
  // The ByteLevel decoder takes a token with a character outside of its alphabet as plain text.
  if (byte_level_) prepared = ByteLevelBytes(prepared).value_or(prepared);
  return prepared;
}

Decoder::State Decoder::Start(bool continues) const {
  State state;
  state.first = !continues;
  for (const Step& step : steps_) {
    if (step.spec.kind == DecoderStep::Kind::kStrip && step.fused && !continues) state.strip_left = step.spec.start;
  }
  return state;
}

void Decoder::Push(std::string_view prepared, State* state, std::string* out) const {
  if (byte_level_ && prepared_steps_ + 1 == steps_.size()) return state->utf8.Append(prepared, out);
  Feed(prepared_steps_, prepared, state, out);
}

void Decoder::Feed(size_t i, std::string_view text, State* state, std::string* out) const {
  if (i == steps_.size()) {
    if (spaced_ && !state->first) out->push_back(' ');
    if (spaced_) state->first = false;
    out->append(text);
    return;
  }
  const Step& step = steps_[i];
  switch (step.spec.kind) {
    case DecoderStep::Kind::kByteLevel: {
      std::string decoded;
      if (i == prepared_steps_) {
        state->utf8.Append(text, &decoded);
      } else {
        state->utf8.Append(ByteLevelBytes(text).value_or(std::string(text)), &decoded);
      }
      if (!decoded.empty()) Feed(i + 1, decoded, state, out);
      return;
    }
    case DecoderStep::Kind::kByteFallback:
      if (const std::optional<uint8_t> byte = ByteOfFallbackToken(text)) {
        state->byte_run.push_back(static_cast<char>(*byte));
        return;
      }
      EndByteRun(i, state, out);
      return Feed(i + 1, text, state, out);
    case DecoderStep::Kind::kFuse:
      return Feed(i + 1, text, state, out);
    case DecoderStep::Kind::kReplace:
      return Feed(i + 1, ApplyToToken(step, text), state, out);
    case DecoderStep::Kind::kStrip:
      if (step.fused) return FeedFusedStrip(i, text, state, out);
      return Feed(i + 1, ApplyToToken(step, text), state, out);
    case DecoderStep::Kind::kMetaspace: {
      const bool dropped = state->first && step.spec.prepend_scheme != PrependScheme::kNever;
      if (!step.fused) state->first = false;
      std::string replaced;
      while (!text.empty()) {
        const size_t end = std::min(text.find(step.spec.content), text.size());
        replaced.append(text.substr(0, end));
        text.remove_prefix(end);
        if (text.empty()) break;
        text.remove_prefix(step.spec.content.size());
        if (!dropped) replaced.push_back(' ');
      }
      return Feed(i + 1, replaced, state, out);
    }
  }
}

void Decoder::FeedFusedStrip(size_t i, std::string_view text, State* state, std::string* out) const {
  const DecoderStep& strip = steps_[i].spec;
  state->strip_left -= CutLeft(strip.content, state->strip_left, &text);
  if (text.empty()) return;
  state->strip_left = 0;
  std::string all;
  for (; state->held_back > 0; --state->held_back) all.append(strip.content);
  all.append(text);
  std::string_view rest = all;
  state->held_back = CutRight(strip.content, strip.stop, &rest);
  if (!rest.empty()) Feed(i + 1, rest, state, out);
}

void Decoder::EndByteRun(size_t i, State* state, std::string* out) const {
  if (state->byte_run.empty()) return;
  const std::string run = std::exchange(state->byte_run, std::string());
  if (IsValidUtf8(run)) return Feed(i + 1, run, state, out);
  for (size_t byte = 0; byte < run.size(); ++byte) Feed(i + 1, kReplacementCharacter, state, out);
}

void Decoder::Finish(State* state, std::string* out) const {
  for (size_t i = prepared_steps_; i < steps_.size(); ++i) {
    if (steps_[i].spec.kind == DecoderStep::Kind::kByteFallback) EndByteRun(i, state, out);
    if (steps_[i].spec.kind != DecoderStep::Kind::kByteLevel) continue;
    std::string end;
    state->utf8.Finish(&end);
    if (!end.empty()) Feed(i + 1, end, state, out);
  }
}

std::string Decoder::TokenBytes(std::string_view prepared) const {
  if (byte_level_) return std::string(prepared);
  const bool fallback = std::any_of(steps_.begin(), steps_.end(), [](const Step& step) {
    return step.spec.kind == DecoderStep::Kind::kByteFallback;
  });
  if (const std::optional<uint8_t> byte = ByteOfFallbackToken(prepared); fallback && byte.has_value()) {
    return std::string(1, static_cast<char>(*byte));
  }
  std::string out;
  State state = Start(/*continues=*/!spaced_);
  Push(prepared, &state, &out);
  return out;
}

}  // namespace fastdecode
