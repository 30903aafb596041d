#include "engine/request/build_request.h"

#include <algorithm>
#include <limits>
#include <new>
#include <optional>
#include <string_view>

#include "absl/strings/str_format.h"
#include "numa/clock.h"

namespace fastdecode {

namespace {

absl::Status CheckTokenId(const char* field, size_t index, int32_t id, int vocab) {
  if (id >= 0 && id < vocab) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s[%d]: %d is not a token id; the vocabulary has %d", field, index, id, vocab));
}

absl::Status CheckRoom(const RequestContext& context, const char* field, size_t tokens) {
  if (tokens < static_cast<size_t>(context.max_context)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("%s: %d tokens leave no room in the context of %d (--max-context)",
                                                    field, tokens, context.max_context));
}

absl::Status CheckParts(std::span<const RequestFields::Part> parts) {
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].ids == nullptr && parts[i].id_count > 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("parts[%d].ids: it is NULL, but id_count is %d", i, parts[i].id_count));
    }
    if (parts[i].ids == nullptr && parts[i].text == nullptr && parts[i].text_bytes > 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("parts[%d].text: it is NULL, but text_bytes is %d", i, parts[i].text_bytes));
    }
  }
  return absl::OkStatus();
}

// What is given by pointer and count.
absl::Status CheckArrays(const RequestFields& given) {
  const struct {
    const char* field;
    const void* array;
    const char* count_field;
    size_t count;
  } arrays[] = {{"prompt", given.prompt, "prompt_bytes", given.prompt_bytes},
                {"prompt_ids", given.prompt_ids, "prompt_id_count", given.prompt_id_count},
                {"parts", given.parts, "part_count", given.part_count},
                {"stop_token_ids", given.stop_token_ids, "stop_token_id_count", given.stop_token_id_count},
                {"stop", given.stop, "stop_count", given.stop_count},
                {"logit_bias", given.logit_bias, "logit_bias_count", given.logit_bias_count},
                {"cache_salt", given.cache_salt, "cache_salt_bytes", given.cache_salt_bytes}};
  for (const auto& [field, array, count_field, count] : arrays) {
    if (array != nullptr || count == 0) continue;
    return absl::InvalidArgumentError(absl::StrFormat("%s: it is NULL, but %s is %d", field, count_field, count));
  }
  if (absl::Status bad = CheckParts({given.parts, given.part_count}); !bad.ok()) return bad;
  for (size_t i = 0; i < given.stop_count; ++i) {
    if (given.stop[i] == nullptr) return absl::InvalidArgumentError(absl::StrFormat("stop: string %d is NULL", i));
  }
  return absl::OkStatus();
}

absl::Status CheckTokenIds(const RequestContext& context, const char* field, std::span<const int32_t> ids) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (absl::Status bad = CheckTokenId(field, i, ids[i], context.spec->vocab); !bad.ok()) return bad;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> PromptIds(const RequestContext& context, const RequestFields& given) {
  std::vector<int32_t> ids;
  const char* field = "prompt";
  if (given.part_count == 0 && given.prompt_ids != nullptr) {
    field = "prompt_ids";
    if (absl::Status bad = CheckRoom(context, field, given.prompt_id_count); !bad.ok()) return bad;
    ids.assign(given.prompt_ids, given.prompt_ids + given.prompt_id_count);
    if (absl::Status bad = CheckTokenIds(context, field, ids); !bad.ok()) return bad;
  } else {
    const RequestFields::Part whole = {/*special=*/true, given.prompt, given.prompt_bytes};
    const bool in_parts = given.part_count > 0;
    const std::string_view text(given.prompt == nullptr ? "" : given.prompt, given.prompt_bytes);
    if (context.tokenizer != nullptr) {
      if (absl::Status bad = context.tokenizer->CheckTextBytes("prompt", text.size()); !bad.ok()) return bad;
    }
    absl::StatusOr<std::vector<int32_t>> encoded = EncodeParts(
        context, in_parts ? std::span(given.parts, given.part_count) : std::span(&whole, 1), given.add_special_tokens);
    if (!encoded.ok()) return encoded.status();
    ids = *std::move(encoded);
    if (absl::Status bad = CheckRoom(context, field, ids.size()); !bad.ok()) return bad;
  }
  if (ids.empty()) return absl::InvalidArgumentError("prompt: it has no tokens; the model needs at least one");
  return ids;
}

absl::StatusOr<StopMatcher> MakeStops(const RequestFields& given) {
  return StopMatcher::Create(std::vector<std::string>(given.stop, given.stop + given.stop_count), given.include_stop);
}

SamplingParams SamplingOf(const RequestFields& given) {
  SamplingParams params;
  params.temperature = given.temperature;
  params.top_k = given.top_k;
  params.top_p = given.top_p;
  params.min_p = given.min_p;
  params.repetition_penalty = given.repetition_penalty;
  params.presence_penalty = given.presence_penalty;
  params.frequency_penalty = given.frequency_penalty;
  params.seed = given.seed;
  params.logprobs = given.logprobs;
  return params;
}

absl::Status SetLengths(const RequestContext& context, const RequestFields& given, Sequence& sequence) {
  const uint32_t context_max = static_cast<uint32_t>(context.max_context);
  sequence.length_max = sequence.prompt_tokens + std::min(given.max_tokens, context_max - sequence.prompt_tokens);
  sequence.sampling.min_tokens = given.min_tokens;
  if (given.fill_tokens >= sequence.prompt_tokens && given.fill_tokens > 0) {
    return absl::InvalidArgumentError(absl::StrFormat("fill_tokens: %d is not less than the prompt's %d tokens",
                                                      given.fill_tokens, sequence.prompt_tokens));
  }
  sequence.fill_tokens = given.fill_tokens;
  return absl::OkStatus();
}

absl::Status SetStops(const RequestContext& context, const RequestFields& given, RequestAnswer& answer) {
  std::pmr::vector<int32_t>& stops = answer.sequence.sampling.stop_tokens;
  for (size_t i = 0; i < given.stop_token_id_count; ++i) {
    if (absl::Status bad = CheckTokenId("stop_token_ids", i, given.stop_token_ids[i], context.spec->vocab); !bad.ok()) {
      return bad;
    }
    stops.push_back(given.stop_token_ids[i]);
  }
  if (!given.ignore_eos) {
    for (const int32_t id : ModelStopTokens(*context.spec, context.tokenizer)) stops.push_back(id);
  }
  std::sort(stops.begin(), stops.end());
  stops.erase(std::unique(stops.begin(), stops.end()), stops.end());
  if (given.stop_count == 0) return absl::OkStatus();
  if (context.tokenizer == nullptr) {
    return absl::InvalidArgumentError("stop: stop strings need a tokenizer: " + *context.tokenizer_missing_reason);
  }
  absl::StatusOr<StopMatcher> matcher = MakeStops(given);
  if (!matcher.ok()) return matcher.status();
  answer.stops.emplace(*std::move(matcher));
  return absl::OkStatus();
}

// Without a token to come, logprobs has nothing to report.
absl::Status SetSampling(const RequestContext& context, const RequestFields& given, SamplingState& sampling) {
  sampling.params = SamplingOf(given);
  if (given.max_tokens == 0) sampling.params.logprobs = -1;
  for (size_t i = 0; i < given.logit_bias_count; ++i) {
    sampling.bias.push_back(given.logit_bias[i]);
  }
  std::stable_sort(sampling.bias.begin(), sampling.bias.end(),
                   [](const LogitBias& a, const LogitBias& b) { return a.token < b.token; });
  const std::string wrong = ValidateTokens(context.spec->vocab, sampling.bias, {}, sampling.stop_tokens);
  return wrong.empty() ? absl::OkStatus() : absl::InvalidArgumentError(wrong);
}

// What is wanted of the prompt's positions.
absl::Status SetPromptOutputs(const RequestContext& context, const RequestFields& given, Sequence& sequence) {
  const char* const field = given.prompt_logits != nullptr ? "prompt_logits" : "prompt_logprobs";
  const bool wanted = given.prompt_logits != nullptr || given.prompt_logprobs >= 0;
  if (wanted && given.fill_tokens > 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: the first %d tokens would have none, as fill_tokens leaves them out", field, given.fill_tokens));
  }
  if (given.prompt_logits == nullptr) return absl::OkStatus();
  const size_t needed = sequence.prompt_tokens * static_cast<size_t>(context.spec->vocab);
  if (given.prompt_logits_floats < needed) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "prompt_logits_floats: %d is less than prompt tokens x vocabulary, %d", given.prompt_logits_floats, needed));
  }
  sequence.prompt_logits = given.prompt_logits;
  return absl::OkStatus();
}

void TakeMemory(const RequestContext& context, const RequestFields& given, Sequence& sequence,
                std::span<const int32_t> prompt) {
  SamplingState& sampling = sequence.sampling;
  const SamplingParams& params = sampling.params;
  const size_t generated_max = sequence.length_max - sequence.prompt_tokens;
  if (params.repetition_penalty != 1 || params.presence_penalty != 0 || params.frequency_penalty != 0) {
    sampling.prompt_seen.resize((context.spec->vocab + 63) / 64);
    sampling.output_counts.resize(context.spec->vocab);
    sampling.history = {sampling.prompt_seen.data(), sampling.output_counts.data()};
    for (const int32_t id : prompt) sampling.history.AddPrompt(id);
  }
  sequence.log.tokens.resize(sequence.length_max);
  std::copy(prompt.begin(), prompt.end(), sequence.log.tokens.begin());
  sequence.length = sequence.prompt_tokens;
  sequence.log.logprobs.resize(generated_max);
  sequence.log.top_logprobs.resize(generated_max * static_cast<size_t>(std::max(params.logprobs, 0)),
                                   TokenLogprob{-1, std::numeric_limits<float>::quiet_NaN()});
  // What a home has made up is no prompt's.
  const bool cached = context.prefix_cache && given.prefix_cache && given.fill_tokens == 0;
  sequence.prefix.Prepare(prompt, sequence.length_max, cached,
                          std::string_view(given.cache_salt, given.cache_salt_bytes));
}

// Whether any of these tokens is in the text, so that what comes behind goes on from it.
bool HasText(const Tokenizer& tokenizer, std::span<const int32_t> ids, bool show_special) {
  return std::any_of(ids.begin(), ids.end(), [&](int32_t id) {
    return tokenizer.IsSpecial(id) ? show_special : !tokenizer.TokenBytes(id).empty();
  });
}

absl::Status BuildAnswer(const RequestContext& context, const RequestFields& given, std::span<const int32_t> prompt,
                         RequestAnswer& answer) {
  Sequence& sequence = answer.sequence;
  sequence.submit_ns = answer.request->submit_ns;
  sequence.prompt_tokens = static_cast<uint32_t>(prompt.size());
  if (absl::Status bad = SetLengths(context, given, sequence); !bad.ok()) return bad;
  if (absl::Status bad = SetStops(context, given, answer); !bad.ok()) return bad;
  if (absl::Status bad = SetSampling(context, given, sequence.sampling); !bad.ok()) return bad;
  sequence.sampling.params.seed += answer.index;
  if (answer.index == 0) {
    if (absl::Status bad = SetPromptOutputs(context, given, sequence); !bad.ok()) return bad;
  }
  TakeMemory(context, given, sequence, prompt);
  if (answer.index == 0 && given.prompt_logprobs >= 0) sequence.AskForPromptLogprobs(given.prompt_logprobs);
  if (context.tokenizer == nullptr) return absl::OkStatus();
  const bool continues = HasText(*context.tokenizer, prompt, given.show_special);
  answer.detokenizer.emplace(context.tokenizer, /*skip_special_tokens=*/!given.show_special, continues);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Request>> Build(const RequestContext& context, const RequestFields& given) {
  if (absl::Status bad = CheckRequest(given); !bad.ok()) return bad;
  if (given.answers > context.answers_max) {
    return absl::InvalidArgumentError(
        absl::StrFormat("n: %d is more than %d, the most answers of one request here; submit several requests",
                        given.answers, context.answers_max));
  }
  auto request = std::make_unique<Request>(context.sampling_memory, given.answers);
  request->submit_ns = NowNs();
  request->user = given.user;
  request->hides_special = given.hides_special;
  for (const auto& answer : request->answers) answer->sequence.tells_pauses = given.pause_events;
  if (given.deadline_ns != 0) request->deadline_ns = given.deadline_ns;
  const absl::StatusOr<std::vector<int32_t>> prompt = PromptIds(context, given);
  if (!prompt.ok()) return prompt.status();
  for (const auto& answer : request->answers) {
    if (absl::Status bad = BuildAnswer(context, given, *prompt, *answer); !bad.ok()) return bad;
  }
  return request;
}

// Logs once that the template puts bos before a prompt which begins with bos itself.
void WarnOfSecondBos(const RequestContext& context, std::span<const int32_t> ids) {
  if (context.log == nullptr || context.warned_of_bos == nullptr || context.warned_of_bos->load()) return;
  if (ids.size() < 2 || ids[0] != ids[1] || !context.tokenizer->IsSpecial(ids[0])) return;
  const int32_t bos = ids[0];
  const std::vector<int32_t> around = context.tokenizer->Encode("", /*add_special_tokens=*/true);
  const bool added_once = !around.empty() && around[0] == bos && (around.size() == 1 || around[1] != bos);
  if (!added_once || context.tokenizer->bos_id().value_or(bos) != bos) return;
  if (context.warned_of_bos->exchange(true)) return;
  context.log->Warning(
      absl::StrFormat("a prompt begins with bos (token id %d) twice, as it spells bos out and the tokenizer puts "
                      "another one before it; leave it out of the prompt, or give --no-special-tokens "
                      "(add_special_tokens = 0)",
                      bos));
}

}  // namespace

absl::Status CheckRequest(const RequestFields& given) {
  if (absl::Status bad = CheckArrays(given); !bad.ok()) return bad;
  if (given.prompt_logprobs < -1 || given.prompt_logprobs > kMaxLogprobs) {
    return absl::InvalidArgumentError(
        absl::StrFormat("prompt_logprobs: %d is not in [-1, %d]", given.prompt_logprobs, kMaxLogprobs));
  }
  if (given.answers == 0) return absl::InvalidArgumentError("n: 0 is not at least 1");
  if (given.cache_salt_bytes > kCacheSaltBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("cache_salt: it has %d bytes, more than %d", given.cache_salt_bytes, kCacheSaltBytesMax));
  }
  // A request that generates nothing must want something of its prompt.
  if (given.max_tokens == 0 && given.prompt_logprobs < 0) {
    return absl::InvalidArgumentError("max_tokens: 0 is not at least 1, as it may be with prompt_logprobs alone");
  }
  if (given.min_tokens > given.max_tokens) {
    return absl::InvalidArgumentError(
        absl::StrFormat("min_tokens: %d is more than max_tokens, %d", given.min_tokens, given.max_tokens));
  }
  if (const std::string wrong = ValidateSampling(SamplingOf(given)); !wrong.empty()) {
    return absl::InvalidArgumentError(wrong);
  }
  return given.stop_count == 0 ? absl::OkStatus() : MakeStops(given).status();
}

std::vector<int32_t> ModelStopTokens(const ModelSpec& spec, const Tokenizer* tokenizer) {
  std::vector<int32_t> stops(spec.eos_token_ids.begin(), spec.eos_token_ids.end());
  // A tokenizer may know of more tokens than the model does, which never come.
  const std::optional<int> eos = tokenizer != nullptr ? tokenizer->eos_id() : std::nullopt;
  if (eos && *eos < spec.vocab) stops.push_back(*eos);
  std::sort(stops.begin(), stops.end());
  stops.erase(std::unique(stops.begin(), stops.end()), stops.end());
  return stops;
}

absl::StatusOr<std::vector<int32_t>> EncodeParts(const RequestContext& context,
                                                 std::span<const RequestFields::Part> given, bool add_special_tokens) {
  if (absl::Status bad = CheckParts(given); !bad.ok()) return bad;
  std::vector<Tokenizer::Part> parts;
  bool text = false;
  size_t joined = 0;  // the first part of the text that is being joined, which has so many bytes
  size_t joined_bytes = 0;
  for (size_t i = 0; i < given.size(); ++i) {
    if (given[i].ids != nullptr) {
      const std::span<const int32_t> ids(given[i].ids, given[i].id_count);
      if (absl::Status bad = CheckTokenIds(context, absl::StrFormat("parts[%d].ids", i).c_str(), ids); !bad.ok()) {
        return bad;
      }
      parts.push_back({"", true, ids});
      joined = i + 1;
      joined_bytes = 0;
      continue;
    }
    const std::string_view piece(given[i].text == nullptr ? "" : given[i].text, given[i].text_bytes);
    if (!given[i].joins) {
      joined = i;
      joined_bytes = 0;
    }
    joined_bytes += piece.size();
    if (context.tokenizer != nullptr) {
      const std::string field = joined < i ? absl::StrFormat("parts[%d].text to parts[%d].text, which join", joined, i)
                                           : absl::StrFormat("parts[%d].text", i);
      if (absl::Status bad = context.tokenizer->CheckTextBytes(field.c_str(), joined_bytes); !bad.ok()) return bad;
    }
    parts.push_back({piece, given[i].special, {}, given[i].joins});
    text = true;
  }
  if (context.tokenizer == nullptr && text) {
    return absl::InvalidArgumentError("prompt: text needs a tokenizer: " + *context.tokenizer_missing_reason);
  }
  std::vector<int32_t> ids;
  if (context.tokenizer != nullptr) {
    ids = context.tokenizer->EncodeParts(parts, add_special_tokens);
  } else {
    for (const Tokenizer::Part& part : parts) ids.insert(ids.end(), part.ids.begin(), part.ids.end());
  }
  for (const int32_t id : ids) {
    if (id < context.spec->vocab) continue;
    return absl::InvalidArgumentError(absl::StrFormat("%s: token id %d is outside the model's vocabulary of %d",
                                                      context.tokenizer->file(), id, context.spec->vocab));
  }
  if (context.tokenizer != nullptr && add_special_tokens) WarnOfSecondBos(context, ids);
  return ids;
}

absl::StatusOr<std::unique_ptr<Request>> BuildRequest(const RequestContext& context, const RequestFields& given) {
  try {
    return Build(context, given);
  } catch (const std::bad_alloc&) {
    return absl::ResourceExhaustedError("no memory left for this request");
  }
}

}  // namespace fastdecode
