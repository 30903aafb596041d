#ifndef FASTDECODE_KERNELS_SAMPLER_H_
#define FASTDECODE_KERNELS_SAMPLER_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace fastdecode {

inline constexpr int kMaxLogprobs = 20;
inline constexpr int kVocabBits = 19;
inline constexpr int kMaxVocab = 1 << kVocabBits;
inline constexpr float kGreedyTemperature = 1e-5f;  // below it the most likely token is taken

// How a request wants its tokens drawn. Order: allowed and banned ids, logit bias, penalties, temperature, min-p,
// top-k, top-p. Equal logits rank by lowest id.
struct SamplingParams {
  float temperature = 1;         // 0..100
  int top_k = 0;                 // keep the k most likely; 0: all
  float top_p = 1;               // of what is left, keep the fewest whose probability reaches top_p; 1e-6..1
  float min_p = 0;               // keep those at least min_p times as likely as the most likely; 0..1
  float repetition_penalty = 1;  // logits > 0 are divided by it, others multiplied: of prompt and output; 0.01..100
  float presence_penalty = 0;    // subtracted once from tokens of the output; -2..2
  float frequency_penalty = 0;   // subtracted for each occurrence in the output; -2..2
  uint64_t seed = 0;
  int logprobs = -1;  // -1: none (cheapest), 0: of the chosen token, n: and of the n most likely; <= 20
};

struct LogitBias {
  int32_t token;
  float bias;
};

struct TokenLogprob {
  int32_t token;
  float logprob;
};

// What a sequence has seen, for the penalties. The arrays are the caller's and start as zeros.
struct TokenHistory {
  uint64_t* prompt_seen = nullptr;    // bit t % 64 of word t / 64: t is in the prompt; ceil(vocab / 64) words
  uint16_t* output_counts = nullptr;  // [vocab], times that t was generated, saturating

  void AddPrompt(int32_t token) { prompt_seen[token / 64] |= uint64_t{1} << (token % 64); }
  void AddOutput(int32_t token) { output_counts[token] += output_counts[token] != UINT16_MAX; }
};

// Work space for rows of up to `vocab` logits, about 21 bytes a token.
//   Thread: one at a time.
struct SampleScratch {
  struct Candidate {
    float logit;
    int32_t token;
    uint64_t weight;
  };

  explicit SampleScratch(int vocab);

  const int vocab;
  std::unique_ptr<float[]> logits;        // [vocab], the row after bias and penalties
  std::unique_ptr<int32_t[]> block_max;   // per block of tokens, as an integer in the order of the floats
  std::unique_ptr<int32_t[]> ranked_max;  // a copy, partly sorted
  std::unique_ptr<uint64_t[]> block_mass;
  std::unique_ptr<Candidate[]> candidates;  // [vocab]
};

struct SampleArgs {
  const float* logits;                    // [vocab], not changed
  int vocab;                              // <= scratch->vocab, <= kMaxVocab
  const SamplingParams* params;           // REQUIRES: ValidateSampling says nothing
  uint64_t position;                      // in its sequence, of the token to draw: with the seed, the random number
  const TokenHistory* history = nullptr;  // REQUIRED by penalties
  std::span<const LogitBias> bias = {};   // REQUIRES for the three: ValidateTokens says nothing
  std::span<const int32_t> allowed = {};  // if not empty, no others are drawn
  std::span<const int32_t> banned = {};   // never drawn, such as stop ids before min_tokens
  SampleScratch* scratch;
  TokenLogprob* top_logprobs = nullptr;  // room for params->logprobs entries, if > 0
};

enum class SampleOutcome : uint8_t {
  kToken,
  kBadLogits,    // NaN or +inf in the row
  kNoCandidate,  // every token is banned or -inf
};

struct SampleResult {
  SampleOutcome outcome;
  int32_t token = -1;
  float logprob = 0;     // of `token`, if params.logprobs >= 0
  int top_logprobs = 0;  // entries written: most likely first; min(params.logprobs, vocab)
};

// Draws one token. Depends on the arguments alone, bit for bit, and allocates nothing. Log-probabilities are those of
// the raw logits, before bias, penalties and temperature.
SampleResult Sample(const SampleArgs& args);

// Empty if the parameters are in range, else which field is not, its value and the range.
std::string ValidateSampling(const SamplingParams& params);
// Empty if all ids are in [0, vocab), biases are finite and sorted by token, each token once.
std::string ValidateTokens(int vocab, std::span<const LogitBias> bias, std::span<const int32_t> allowed,
                           std::span<const int32_t> banned);

}  // namespace fastdecode

#endif  // FASTDECODE_KERNELS_SAMPLER_H_
