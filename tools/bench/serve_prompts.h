#ifndef FASTDECODE_TOOLS_BENCH_SERVE_PROMPTS_H_
#define FASTDECODE_TOOLS_BENCH_SERVE_PROMPTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/load/arrivals.h"

namespace fastdecode::serve_bench {

// What the requests of a run ask for.
struct PromptOptions {
  // One of these, or random prompts.
  std::optional<std::string> prompt;
  std::string prompts_file;

  // How long random prompts and their answers are: as a named workload has them, as a trace, or about so long.
  std::string workload, trace;
  double scale_lengths = 1;  // of workload and trace
  int input_len = 1024, output_len = 128;
  double range_ratio = 0;  // lengths are drawn from len x (1 - ratio) to len x (1 + ratio)
  const char* len_options = "--random-input-len, --random-output-len";  // which set input_len and output_len

  bool random_text = false;  // words instead of token ids
  uint64_t seed = 0;
  uint64_t run = 0;  // random prompts of other runs have the same lengths and arrivals, and other tokens
  load::Arrivals arrivals;

  bool ignore_eos = false;
  std::optional<double> temperature;
  std::optional<int> logprobs;
  bool stream = true;

  bool is_random() const { return !prompt.has_value() && prompts_file.empty(); }
  bool has_lengths() const { return !workload.empty() || !trace.empty(); }
};

// Token ids that a random prompt may have.
struct IdRange {
  int64_t first = 0, last = 0;
};
// LOW-HIGH. Throws Error naming --vocab.
IdRange ParseIdRange(const std::string& text);

// One request, whoever is asked.
struct PreparedRequest {
  std::string text;  // the prompt, or else
  std::vector<int32_t> ids;
  int64_t prompt_tokens = 0;  // 0: only who is asked knows
  int64_t output_tokens = 0;  // at most, or exactly where lengths are forced
  double arrival = 0;         // in an open loop, at a rate of 1 a second
};

struct RequestList {
  std::vector<PreparedRequest> requests;
  bool forced = false;  // each answer has exactly its tokens: the lengths are what is measured
  double own_rate = 0;  // of a trace; 0: none
  size_t left_out = 0;  // of a trace: requests without an answer
};

// What prompts are taken from.
struct PromptSource {
  IdRange ids;                         // of random prompts
  std::vector<PreparedRequest> given;  // --prompt, or the lines of --prompts-file; empty: prompts are random
};
// To be read once, as it may be standard input. Throws Error naming option or file, line and value.
std::vector<PreparedRequest> ReadGivenPrompts(const PromptOptions& options);

// `count` requests; 0: one for each given prompt, or all of the trace, which is never more than it has. Random prompts
// differ from each other; given ones are taken in turn. Throws Error naming option or file, line and value.
RequestList MakeRequests(const PromptOptions& options, const PromptSource& source, size_t count);

// Throws Error naming the option if one of these requests would be longer than the context; 0: nobody knows it. It
// makes no prompts.
void CheckContext(const PromptOptions& options, const PromptSource& source, size_t count, int64_t max_context);

}  // namespace fastdecode::serve_bench

#endif  // FASTDECODE_TOOLS_BENCH_SERVE_PROMPTS_H_
