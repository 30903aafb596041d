#include "engine/start/load_text.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "engine/model/json_fields.h"
#include "engine/request/build_request.h"
#include "engine/text/chat/chat_files.h"

namespace fastdecode {
namespace {

absl::Status LoadTokenizer(const Options& options, const ModelSpec& spec, Logger* log, TextParts* text) {
  absl::StatusOr<std::unique_ptr<Tokenizer>> tokenizer = Tokenizer::Load(options.model);
  if (!tokenizer.ok()) {
    const std::string reason(tokenizer.status().message());
    if (options.need_text) {
      return absl::Status(tokenizer.status().code(),
                          reason + "; to run on token ids alone, leave need-text out (generate: --prompt-ids)");
    }
    const LogLevel level = absl::IsNotFound(tokenizer.status()) ? LogLevel::kInfo : LogLevel::kWarning;
    log->Log(level, "no text for this model, token ids only: " + reason);
    text->tokenizer_missing_reason = reason;
    return absl::OkStatus();
  }
  text->tokenizer = *std::move(tokenizer);
  for (const std::string& warning : text->tokenizer->warnings()) log->Warning(warning);
  if (text->tokenizer->vocab_size() > spec.vocab) {
    log->Warning(
        absl::StrFormat("%s: it has token ids up to %d, and the model's vocabulary has %d rows: prompts with ids from "
                        "%d on are refused",
                        text->tokenizer->file(), text->tokenizer->vocab_size() - 1, spec.vocab, spec.vocab));
  }
  const int64_t length = text->tokenizer->model_max_length();
  if (length > 0 && length < spec.max_context) {
    log->Info(absl::StrFormat(
        "%s/tokenizer_config.json: model_max_length is %d, and config.json's context of %d tokens counts "
        "(--max-context)",
        options.model, length, spec.max_context));
  }
  return absl::OkStatus();
}

// Fine-tuned models that end their turns with a token of their own, but name the base model's eos, do not stop.
void WarnOfTurnEnd(const std::string& file, const TextParts& text, const ModelSpec& spec, Logger* log) {
  const std::optional<int32_t> end = text.chat_template->TurnEnd(*text.tokenizer);
  const std::vector<int32_t> stops = ModelStopTokens(spec, text.tokenizer.get());
  // A token beyond the model's vocabulary never comes, of which there is a warning of its own.
  if (!end.has_value() || *end >= spec.vocab || std::find(stops.begin(), stops.end(), *end) != stops.end()) return;
  log->Warning(
      absl::StrFormat("%s: it ends an answer with %s (token id %d), which neither config.json, generation_config.json "
                      "nor tokenizer_config.json names as eos: answers in chats may not stop there; add the id to "
                      "eos_token_id in generation_config.json, or to a request's stop_token_ids",
                      file, ShowText(text.tokenizer->TokenBytes(*end)), *end));
}

absl::Status LoadChatTemplate(const Options& options, const ModelSpec& spec, Logger* log, TextParts* text) {
  if (text->tokenizer == nullptr) {
    if (!options.chat_template.empty()) {
      return absl::InvalidArgumentError("--chat-template: this model has no tokenizer: " +
                                        text->tokenizer_missing_reason);
    }
    text->chat_template_missing_reason = "this model has no tokenizer: " + text->tokenizer_missing_reason;
    return absl::OkStatus();
  }
  const absl::StatusOr<ChatFiles> files = ReadChatFiles(options.model, options.chat_template);
  absl::StatusOr<std::unique_ptr<const ChatTemplate>> made =
      files.ok() ? ChatTemplate::Create(*files, *text->tokenizer) : files.status();
  if (!made.ok()) {
    if (!options.chat_template.empty()) {
      return absl::Status(made.status().code(), absl::StrCat("--chat-template: ", made.status().message()));
    }
    text->chat_template_missing_reason = std::string(made.status().message());
    const LogLevel level = absl::IsNotFound(made.status()) ? LogLevel::kInfo : LogLevel::kWarning;
    log->Log(level, "no chats for this model: " + text->chat_template_missing_reason);
    return absl::OkStatus();
  }
  text->chat_template = *std::move(made);
  for (const std::string& warning : files->warnings) log->Warning(warning);
  for (const std::string& warning : text->chat_template->warnings()) log->Warning(warning);
  WarnOfTurnEnd(files->templates.front().file, *text, spec, log);
  const std::string guarded = absl::StrJoin(text->chat_template->GuardedTexts(), "\n");
  if (absl::Status bad = text->tokenizer->CheckTextBytes("chat template", guarded.size()); !bad.ok()) return bad;
  text->tokenizer->GuardTokensIn(guarded);
  return absl::OkStatus();
}

}  // namespace

absl::Status LoadTextParts(const Options& options, const ModelSpec& spec, Logger* log, TextParts* text) {
  if (absl::Status bad = LoadTokenizer(options, spec, log, text); !bad.ok()) return bad;
  return LoadChatTemplate(options, spec, log, text);
}

}  // namespace fastdecode
