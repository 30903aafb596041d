#ifndef FASTDECODE_TOOLS_BENCH_SERVE_PROMPTS_H_
#define FASTDECODE_TOOLS_BENCH_SERVE_PROMPTS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "tools/bench/serve_client.h"

namespace fastdecode::serve_bench {

// What the requests of a run ask for.
struct PromptOptions {
  // One of these, or random prompts.
  std::optional<std::string> prompt;
  std::string prompts_file;

  int input_len = 1024, output_len = 128;
  double range_ratio = 0;    // lengths are drawn from len x (1 - ratio) to len x (1 + ratio)
  bool random_text = false;  // words instead of token ids
  uint64_t seed = 0;

  bool ignore_eos = false;
  std::optional<double> temperature;
  std::optional<int> logprobs;
  bool stream = true;

  bool is_random() const { return !prompt.has_value() && prompts_file.empty(); }
};

// Token ids that a random prompt may have.
struct IdRange {
  int64_t first = 0, last = 0;
};
// LOW-HIGH. Throws Error naming --vocab.
IdRange ParseIdRange(const std::string& text);

// The bodies of `count` requests; 0: one for each line of the file. Random ones differ from each other; those of a file
// are taken in turn. `ids`: needed for random ids. Throws Error naming option or file, line and value.
std::vector<LoadRequest> MakeRequests(const PromptOptions& options, const std::string& model, const IdRange& ids,
                                      size_t count);

}  // namespace fastdecode::serve_bench

#endif  // FASTDECODE_TOOLS_BENCH_SERVE_PROMPTS_H_
