#ifndef FASTDECODE_TOOLS_PROMPTS_H_
#define FASTDECODE_TOOLS_PROMPTS_H_

#include <cstdint>
#include <fastdecode/fastdecode.hpp>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"

namespace fastdecode {

// The prompts of a `generate` command, from wherever they come.
struct PromptFlags {
  std::vector<std::string> prompts;  // --prompt
  std::vector<std::string> files;    // --file: the whole file, - is stdin
  std::string lines_file;            // --prompts-file: one a line, - is stdin
  std::vector<std::string> ids;      // --prompt-ids
  bool plain = false;                // special tokens' names in texts are text like any other
};
void AddPromptFlags(CLI::App* command, PromptFlags& flags);
// In the order of the members above; a plain one is a part, and `prompt` what it says. Throws Error naming file or
// value.
std::vector<GenerateRequest> ReadPrompts(const PromptFlags& flags);

// How to sample and when to stop: the same for all prompts of a command.
struct RequestFlags {
  RequestFlags() { fd_request_init(&fields, sizeof(fields)); }
  fd_request fields;
  CLI::Option *temperature = nullptr, *top_k = nullptr, *top_p = nullptr, *min_p = nullptr;
  CLI::Option *repetition_penalty = nullptr, *seed = nullptr;
  std::vector<std::string> stop;
  std::vector<int32_t> stop_token_ids;
  std::vector<std::string> logit_bias;  // ID:BIAS
};
void AddRequestFlags(CLI::App* command, RequestFlags& flags);
// The same for a chat: its answers may go on to the end of the context, and what it has no use for is not there.
void AddChatRequestFlags(CLI::App* command, RequestFlags& flags);
// What is wrong with them whatever the model is. Throws Error naming option and value.
void CheckRequestFlags(const RequestFlags& flags);
// What --logit-bias says. Throws Error naming the value.
std::vector<fd_logit_bias> ParseLogitBias(const RequestFlags& flags);
// Copies the flags into a request, whose prompt stays. Throws Error naming the value.
void ApplyRequestFlags(const RequestFlags& flags, GenerateRequest& request);
// Samples as the model's makers recommend where no flag says how.
void ApplyDefaultSampling(const InferenceEngine& engine, const RequestFlags& flags, GenerateRequest& request);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_PROMPTS_H_
