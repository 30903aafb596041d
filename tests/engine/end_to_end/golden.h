#ifndef FASTDECODE_TESTS_ENGINE_END_TO_END_GOLDEN_H_
#define FASTDECODE_TESTS_ENGINE_END_TO_END_GOLDEN_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace fastdecode {

inline constexpr double kExactShare = 1e-4;  // of the largest logit: how far exact mode may be off
inline constexpr double kBf16Share = 1.25;   // of transformers' own bf16 error: how far bf16 may be off

// What transformers says of one case of tests/golden/transformers (README.md there).
struct Golden {
  explicit Golden(const std::string& name);

  std::vector<int32_t> Prompt(uint32_t length) const { return {prompt.begin(), prompt.begin() + length}; }

  struct Greedy {
    uint32_t prompt_length;
    std::vector<int32_t> tokens;
  };
  std::string folder;
  size_t vocab = 0;
  std::vector<int32_t> prompt;
  std::vector<uint32_t> positions;
  std::vector<uint32_t> prompt_lengths;
  std::vector<Greedy> greedy;
  double largest_logit = 0;
  std::vector<float> logits;          // [positions][vocab]
  std::vector<float> bf16_reference;  // [positions][vocab]
  double bf16_rms_error = 0;
  double bf16_max_error = 0;
};

// All cases, sorted; of these Llama's and Mistral's, and those of other families.
std::vector<std::string> GoldenNames();
std::vector<std::string> GoldenLlamas();
std::vector<std::string> GoldenFamilies();

// How far logits are from the expected ones.
struct LogitDifference {
  double rms = 0;
  double max = 0;
};
// `logits`: [prompt tokens][vocab]; `expected` as in Golden. Over the stored positions that the prompt has.
LogitDifference Compare(const Golden& golden, const std::vector<float>& expected, const std::vector<float>& logits);

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_ENGINE_END_TO_END_GOLDEN_H_
