#ifndef FASTDECODE_ENGINE_START_LOAD_TEXT_H_
#define FASTDECODE_ENGINE_START_LOAD_TEXT_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "engine/model/model_spec.h"
#include "engine/start/options.h"
#include "engine/text/chat/chat_template.h"
#include "engine/text/tokenizer.h"
#include "numa/log.h"

namespace fastdecode {

// What of a model turns text into token ids. Either may be missing, for a reason.
struct TextParts {
  std::unique_ptr<Tokenizer> tokenizer;
  std::string tokenizer_missing_reason;
  std::unique_ptr<const ChatTemplate> chat_template;
  std::string chat_template_missing_reason;
};

// Reads them from the model's folder. What is wrong with one stops nobody who does without it: it is logged, unless an
// option asks for it. So is, once, what a file says against another that is followed.
absl::Status LoadTextParts(const Options& options, const ModelSpec& spec, Logger* log, TextParts* text);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_START_LOAD_TEXT_H_
