#ifndef FASTDECODE_ENGINE_PIPELINE_SEQUENCE_H_
#define FASTDECODE_ENGINE_PIPELINE_SEQUENCE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory_resource>
#include <vector>

#include "engine/pipeline/step_times.h"
#include "kernels/attention.h"
#include "kernels/sampler.h"

namespace fastdecode {

// Why a sequence ended.
enum class FinishReason : uint8_t {
  kStopToken,    // a stop token was sampled (it is not part of the result)
  kLength,       // max_tokens or the context is full
  kCancelled,    // by the caller, or by a stop string that the desk found
  kHomeLost,     // the link to its home broke
  kBadRow,       // its home could not compute its row
  kBadLogits,    // not a number came out of the model
  kNoCandidate,  // no token may be sampled: all are banned, or have a logit of -infinity
  kSPartFailed,  // the S-Part could not compute a step of it
};

// One sequence of tokens on its way through the pipeline.
// Owns: its tokens, the sampling state, the reported logprobs; all sized at creation, so that a step never allocates.
// Thread: made by the desk; lent to the pipeline thread from the add command to the terminal event, which gives it
//         back. Meanwhile the desk may read tokens and logprobs below what an event announced, and set `cancelled`.
struct Sequence {
  // `sampling_memory`: where what sampling reads lies (SPart::sampling_memory).
  explicit Sequence(std::pmr::memory_resource* sampling_memory = std::pmr::get_default_resource())
      : stop_tokens(sampling_memory),
        logit_bias(sampling_memory),
        prompt_ids(sampling_memory),
        prompt_seen(sampling_memory),
        output_counts(sampling_memory) {}

  // Constant while the pipeline has it.
  uint64_t id = 0;  // ascending in order of submission: a larger id is younger
  uint32_t prompt_tokens = 0;
  uint32_t length_max = 0;                // prompt + generated tokens; if these are 0, `sampling` asks for no logprobs
  uint32_t fill_tokens = 0;               // first tokens whose KV the home makes up (measuring only)
  std::pmr::vector<int32_t> stop_tokens;  // ascending
  uint32_t min_tokens = 0;                // generated tokens before a stop token may be sampled, or a stop string begin
  SamplingParams sampling;
  std::pmr::vector<LogitBias> logit_bias;  // ascending by token
  void* owner = nullptr;                   // the desk's record of it
  uint64_t submit_ns = 0;                  // NowNs
  float* prompt_logits = nullptr;          // [prompt_tokens][vocab] if every prompt position's logits are wanted
  // AskForPromptLogprobs makes these; prompt_sampling.logprobs is the number that it was asked for.
  SamplingParams prompt_sampling;        // of the one token that may be drawn: the prompt's next one
  std::pmr::vector<int32_t> prompt_ids;  // [prompt_tokens], where sampling reads them; empty: not asked for

  // Pipeline thread; the desk reads what events announced.
  std::vector<int32_t> tokens;             // [length_max]; the first `length` are valid
  std::vector<float> logprobs;             // [length_max - prompt_tokens], of the sampled tokens
  std::vector<TokenLogprob> top_logprobs;  // [length_max - prompt_tokens][sampling.logprobs], if that is > 0

  // Pipeline thread; the desk reads them from the first token's event on, or from a terminal one with kStopToken or
  // kLength, and they do not change any more. Before, and if it ends otherwise, some may be missing.
  // [prompt_tokens], of the prompt's tokens, given those before them: NaN for the first one and where missing.
  std::vector<float> prompt_logprobs;
  // [prompt_tokens][prompt_sampling.logprobs], if that is > 0: the most likely ones in place of each prompt token, most
  // likely first; token -1 and NaN for the first one, where missing, and where the vocabulary has no more.
  std::vector<TokenLogprob> prompt_top_logprobs;

  // Pipeline thread; the desk reads it after the terminal event. Up to the end of the last step that it had rows in; if
  // it ended while it waited, up to then.
  SequenceTimes times;
  // The same for those who cannot wait for that, as of the end of some step behind the last event. Any thread reads it.
  SharedTimes times_so_far;

  // Pipeline thread only.
  uint64_t timed_until_ns = 0;             // what was before is in `times`
  std::pmr::vector<uint64_t> prompt_seen;  // behind `history`; both empty if there are no penalties
  std::pmr::vector<uint16_t> output_counts;
  TokenHistory history;
  uint32_t length = 0;         // tokens known
  uint32_t computed = 0;       // tokens whose KV is stored at the home
  uint32_t rows = 0;           // query tokens in the current step
  uint32_t previous_rows = 0;  // and in the one before
  int home = -1;
  uint32_t seat = UINT32_MAX;       // the HomeLedger's holder of its pages there
  int push_home = -1;               // that its prompt's KV is pushed to, while `home` computes it; -1: none
  uint32_t push_seat = UINT32_MAX;  // the holder of its pages there
  bool reserved = false;            // there: it must be told when the sequence leaves
  uint64_t reservation = 0;         // its number there
  uint32_t pushes_open = 0;         // chunks that are not all posted
  uint64_t last_segment = 0;        // posted there, of this sequence: all are stored when it is freed
  int micro_batch = -1;
  bool at_home = false;        // the home has heard of it: it must be told when the sequence leaves
  bool preempt = false;        // gives its pages back at the next step boundary
  uint64_t preempted_ns = 0;   // since when it waits again; 0: it was not preempted
  uint64_t head_since_ns = 0;  // when it became the first of those that wait; 0: it was not, since it joined
  bool failed = false;         // ends at the next step boundary, with fail_reason
  FinishReason fail_reason = FinishReason::kBadRow;
  int fail_home = -1;
  int32_t stop_token = -1;  // that ended it; the desk reads it after the terminal event

  // The log-probabilities of the prompt's tokens are wanted, and of the n most likely ones at each position. Takes all
  // memory for them. REQUIRES: `tokens` begins with the prompt, whose length is known; 0 <= n <= kMaxLogprobs.
  void AskForPromptLogprobs(int n) {
    constexpr float kMissing = std::numeric_limits<float>::quiet_NaN();
    prompt_sampling.temperature = 0;
    prompt_sampling.logprobs = n;
    prompt_ids.assign(tokens.begin(), tokens.begin() + prompt_tokens);
    prompt_logprobs.assign(prompt_tokens, kMissing);
    prompt_top_logprobs.assign(prompt_tokens * static_cast<size_t>(n), TokenLogprob{-1, kMissing});
  }

  // Any thread.
  std::atomic<bool> cancelled{false};  // leaves at its micro-batch's next boundary. Release, acquire: `stopped` is seen
  std::atomic<bool> stopped{false};    // stored before `cancelled`: a stop string ends it, and not its caller
};

// Pipeline -> desk.
struct PipelineEvent {
  enum class Kind : uint8_t { kToken, kFinished, kHomeLost };
  Kind kind = Kind::kToken;
  FinishReason reason = FinishReason::kStopToken;  // kFinished
  int16_t home = -1;                               // kFinished with kHomeLost/kBadRow; kHomeLost
  uint32_t token_index = 0;                        // kToken: into Sequence::tokens
  Sequence* sequence = nullptr;                    // kFinished: the desk's again
  uint64_t time_ns = 0;                            // NowNs() when the step ended
};

class EngineLink;

// RequestDesk and control thread -> pipeline.
struct PipelineCommand {
  enum class Kind : uint8_t { kAdd, kAddHome, kRemoveHome };
  Kind kind = Kind::kAdd;
  Sequence* sequence = nullptr;  // kAdd
  EngineLink* link = nullptr;    // kAddHome; stays the caller's, who keeps it until the home is reported lost
  int home = -1;                 // kAddHome: a free index
  uint32_t pages = 0;            // kAddHome: granted to this engine
  uint32_t read_mb_per_s = 0;    // kAddHome: as its description says
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_PIPELINE_SEQUENCE_H_
