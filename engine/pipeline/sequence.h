#ifndef FASTDECODE_ENGINE_PIPELINE_SEQUENCE_H_
#define FASTDECODE_ENGINE_PIPELINE_SEQUENCE_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory_resource>
#include <vector>

#include "engine/pipeline/prefix_keys.h"
#include "engine/pipeline/step_times.h"
#include "kernels/attention.h"
#include "kernels/sampler.h"
#include "numa/check.h"

namespace fastdecode {

// Why a sequence ended.
enum class FinishReason : uint8_t {
  kStopToken,    // a stop token was sampled (it is not part of the result)
  kLength,       // max_tokens or the context is full
  kCancelled,    // by the caller, or by a stop string that the desk found
  kNoHome,       // for PipelineOptions::recover_ns no living home could have held it
  kBadRow,       // its home could not compute its row
  kBadLogits,    // not a number came out of the model
  kNoCandidate,  // no token may be sampled: all are banned, or have a logit of -infinity
  kSPartFailed,  // the S-Part could not compute a step of it
  kLosesHomes,   // Recovery::kLossesInVainMax of its homes were lost in a row, without a token of it in between
};

// The tokens of a sequence and how likely they were. All memory is taken at creation, so that a step never allocates.
// Thread: the pipeline's writes; the desk's reads what events announced. Prompt logprobs are there from the first
// token's event on, or from a terminal one with kStopToken or kLength, and do not change any more. Before, and if the
// sequence ends otherwise, some may be missing.
struct TokenLog {
  std::vector<int32_t> tokens;             // [length_max]; the first `length` are valid
  std::vector<float> logprobs;             // [length_max - prompt_tokens], of the sampled tokens
  std::vector<TokenLogprob> top_logprobs;  // [length_max - prompt_tokens][SamplingParams::logprobs], if that is > 0
  // [prompt_tokens], of the prompt's tokens, given those before them: NaN for the first one and where missing.
  std::vector<float> prompt_logprobs;
  // [prompt_tokens][SamplingState::prompt_params.logprobs], if that is > 0: the most likely ones in place of each
  // prompt token, most likely first; token -1 and NaN for the first one, where missing, and where the vocabulary has no
  // more.
  std::vector<TokenLogprob> prompt_top_logprobs;
};

// What sampling a sequence's tokens depends on. Arrays lie in SPart::sampling_memory.
// Thread: constant while the pipeline has the sequence, but for the counts of `history`, which are the pipeline's.
struct SamplingState {
  explicit SamplingState(std::pmr::memory_resource* memory)
      : stop_tokens(memory), bias(memory), prompt_ids(memory), prompt_seen(memory), output_counts(memory) {}

  SamplingParams params;
  std::pmr::vector<int32_t> stop_tokens;  // ascending
  uint32_t min_tokens = 0;                // generated tokens before a stop token may be sampled, or a stop string begin
  std::pmr::vector<LogitBias> bias;       // ascending by token
  // Sequence::AskForPromptLogprobs makes these; prompt_params.logprobs is the number that it was asked for.
  SamplingParams prompt_params;            // of the one token that may be drawn: the prompt's next one
  std::pmr::vector<int32_t> prompt_ids;    // [prompt_tokens]; empty: not asked for
  std::pmr::vector<uint64_t> prompt_seen;  // behind `history`; both empty if there are no penalties
  std::pmr::vector<uint16_t> output_counts;
  TokenHistory history;
};

// What a sequence has at a home. Thread: the pipeline's.
struct Seat {
  int home = -1;                 // -1: nothing
  uint32_t holder = UINT32_MAX;  // HomeLedger's, of its pages there
  uint64_t number = 0;           // what the home knows it by
  bool told = false;             // the home has heard of the sequence, and must be told when it leaves
};

// A prompt that is computed at one home while its K and V are pushed to another, where the sequence lives afterwards.
// Thread: the pipeline's.
struct PendingPush {
  Seat seat;                  // there; told: the reservation has been sent, or will be
  uint64_t reservation = 0;   // its number there
  uint32_t chunks_open = 0;   // that are not all posted
  uint64_t last_segment = 0;  // posted there, of this sequence: all are stored when it is freed
};

// Where a sequence is on its way. That a caller cancels it is no state: it leaves at its next boundary, wherever it is.
enum class SequenceState : uint8_t {
  kIdle,      // the desk's: not lent to the pipeline, or given back
  kFollows,   // waits for the first token of the sequence that it follows
  kWaits,     // in the batcher's queue
  kComputes,  // a member of a micro-batch
  kGivesWay,  // a member that gives its pages back at its next step boundary, and waits again
  kFails,     // a member that ends at its next step boundary
  kRecovers,  // a member whose home was lost: it leaves at its next step boundary, and waits again
};

// What becomes of a sequence whose home was lost. It begins anew at a home, with nothing stored there, and is computed
// again from its tokens. Thread: the pipeline's.
struct Recovery {
  uint64_t lost_ns = 0;    // since when it is behind where it was; 0: it is not. Later losses belong to the first
  uint64_t joined_ns = 0;  // when it had a home again
  uint32_t computed = 0;   // tokens that were stored when its home was lost
  // A sequence whose rows make homes die must not take one after the other with it for ever.
  static constexpr uint32_t kLossesInVainMax = 16;

  uint32_t losses = 0;          // so far
  uint32_t losses_in_vain = 0;  // of these, since its last token
  std::array<uint64_t, 3> last_losses_ns{};
};

inline constexpr size_t kFollowersMax = 127;  // of one sequence

// One sequence of tokens on its way through the pipeline.
//
// A request of several answers has a sequence for each. They have one prompt, which the first of them computes: the
// others follow it (`next_follower`) until that row of logits is there which each of them draws its first token from.
// From then on they are sequences as all others; where there is room they share the first one's pages of the prompt.
//
// Owns: its tokens, the sampling state, the reported logprobs.
// Thread: made by the desk; lent to the pipeline thread from the add command to the terminal event, which gives it
//         back. Meanwhile the desk may read what TokenLog says, and set `cancelled`.
struct Sequence {
  // `sampling_memory`: where what sampling reads lies (SPart::sampling_memory).
  explicit Sequence(std::pmr::memory_resource* sampling_memory = std::pmr::get_default_resource())
      : sampling(sampling_memory) {}

  // --- Constant while the pipeline has it.
  uint64_t id = 0;       // the engine's own, ascending in order of submission: a larger id is younger
  uint64_t request = 0;  // the number that callers know, for the record
  uint32_t prompt_tokens = 0;
  uint32_t length_max = 0;         // prompt + generated tokens; if these are 0, no logprobs are asked for
  uint32_t fill_tokens = 0;        // first tokens whose KV the home makes up (measuring only)
  bool tells_pauses = false;       // kPaused is said of it
  void* owner = nullptr;           // the desk's record of it
  uint64_t submit_ns = 0;          // NowNs
  float* prompt_logits = nullptr;  // [prompt_tokens][vocab] if every prompt position's logits are wanted
  TokenLog log;
  SamplingState sampling;
  PrefixKeys prefix;  // the pipeline adds those of generated tokens

  // --- Pipeline thread; the desk reads these after the terminal event.
  SequenceTimes times;  // up to the end of the last step that it had rows in; if it ended while it waited, up to then
  int32_t stop_token = -1;  // that ended it

  // The same times for those who cannot wait for that, as of the end of some step behind the last event. Any thread.
  SharedTimes times_so_far;

  // --- Pipeline thread only. What each step of it looks at lies in one cache line.
  alignas(64) SequenceState state = SequenceState::kIdle;
  int micro_batch = -1;
  uint32_t length = 0;                // tokens known
  uint32_t computed = 0;              // tokens whose KV is stored at the home
  uint32_t rows = 0;                  // query tokens in the current step
  uint32_t previous_rows = 0;         // and in the one before
  Seat seat;                          // where its rows are computed
  Sequence* next_follower = nullptr;  // until the first token
  PendingPush push;
  uint64_t number = 0;            // what its next home is to know it by; 0: its id
  uint64_t timed_until_ns = 0;    // what was before is in `times`
  uint64_t preempted_ns = 0;      // since when it waits again; 0: it was not preempted
  uint64_t head_since_ns = 0;     // when it became the first of those that wait; 0: it was not, since it joined
  uint64_t no_home_since_ns = 0;  // while it waits: since when no living home could hold it; 0: some could
  Recovery recovery;
  FinishReason fail_reason = FinishReason::kBadRow;  // kFails
  int fail_home = -1;

  // Ends the process if there is no such way.
  void Enter(SequenceState to);
  // Marks a member: it ends at its next step boundary. The first reason stays. One that recovers is computed again.
  void Fail(FinishReason reason, int home) {
    if (state == SequenceState::kFails || state == SequenceState::kRecovers) return;
    Enter(SequenceState::kFails);
    fail_reason = reason;
    fail_home = home;
  }
  // Marks a member whose home was lost. False: it fails, or is marked already, or has lost too many: then it fails now.
  bool Recover(int home, uint64_t now_ns) {
    if (state == SequenceState::kFails || state == SequenceState::kRecovers) return false;
    if (++recovery.losses_in_vain >= Recovery::kLossesInVainMax) {
      Fail(FinishReason::kLosesHomes, home);
      return false;
    }
    Enter(SequenceState::kRecovers);
    if (recovery.lost_ns == 0) {
      recovery.lost_ns = now_ns;
      recovery.computed = computed;
    }
    recovery.last_losses_ns[recovery.losses++ % recovery.last_losses_ns.size()] = now_ns;
    return true;
  }
  // When its home was lost the last time. REQUIRES: it was.
  uint64_t LastLossNs() const {
    return recovery.last_losses_ns[(recovery.losses - 1) % recovery.last_losses_ns.size()];
  }
  // Whether it lost its home three times within a minute, the last one included.
  bool KeepsLosingHomes() const {
    constexpr uint64_t kMinuteNs = 60'000'000'000;
    const size_t count = recovery.last_losses_ns.size();
    return recovery.losses >= count && LastLossNs() - recovery.last_losses_ns[recovery.losses % count] < kMinuteNs;
  }
  // Tokens of a step that it has rows in are not taken.
  bool fails() const { return state == SequenceState::kFails; }
  bool recovers() const { return state == SequenceState::kRecovers; }
  // Its prompt is computed elsewhere than where it will live.
  bool is_pushed() const { return push.seat.home >= 0; }

  // The log-probabilities of the prompt's tokens are wanted, and of the n most likely ones at each position. Takes all
  // memory for them. REQUIRES: `log.tokens` begins with the prompt, whose length is known; 0 <= n <= kMaxLogprobs.
  void AskForPromptLogprobs(int n) {
    constexpr float kMissing = std::numeric_limits<float>::quiet_NaN();
    sampling.prompt_params.temperature = 0;
    sampling.prompt_params.logprobs = n;
    sampling.prompt_ids.assign(log.tokens.begin(), log.tokens.begin() + prompt_tokens);
    log.prompt_logprobs.assign(prompt_tokens, kMissing);
    log.prompt_top_logprobs.assign(prompt_tokens * static_cast<size_t>(n), TokenLogprob{-1, kMissing});
  }

  // --- Any thread.
  std::atomic<bool> cancelled{false};  // leaves at its micro-batch's next boundary. Release, acquire: `stopped` is seen
  std::atomic<bool> stopped{false};    // stored before `cancelled`: a stop string ends it, and not its caller
};

inline uint32_t CountFollowers(const Sequence& sequence) {
  uint32_t count = 0;
  for (const Sequence* f = sequence.next_follower; f != nullptr; f = f->next_follower) ++count;
  return count;
}

inline void Sequence::Enter(SequenceState to) {
  using enum SequenceState;
  constexpr auto bit = [](SequenceState s) { return 1u << static_cast<unsigned>(s); };
  // [from]: where to.
  constexpr uint32_t kMemberEnds = bit(kWaits) | bit(kIdle);
  constexpr uint32_t kWays[] = {
      bit(kWaits) | bit(kFollows),                                  // kIdle
      bit(kWaits) | bit(kComputes) | bit(kIdle),                    // kFollows
      bit(kComputes) | bit(kIdle),                                  // kWaits
      bit(kGivesWay) | bit(kFails) | bit(kRecovers) | kMemberEnds,  // kComputes
      bit(kFails) | bit(kRecovers) | kMemberEnds,                   // kGivesWay
      bit(kIdle),                                                   // kFails
      kMemberEnds,                                                  // kRecovers
  };
  FD_CHECK((kWays[static_cast<size_t>(state)] & bit(to)) != 0,
           "a sequence changes its state in a way that there is not");
  state = to;
}

// Pipeline -> desk.
struct PipelineEvent {
  enum class Kind : uint8_t {
    kToken,
    kFinished,
    kPaused,      // its home was lost: it waits again, and its next event says that it goes on
    kHomeDrains,  // the home has said so
    kHomeLost,    // nothing refers to the home's link any more
  };
  Kind kind = Kind::kToken;
  FinishReason reason = FinishReason::kStopToken;  // kFinished
  int16_t home = -1;             // kFinished with kBadRow or kLosesHomes; kPaused, kHomeDrains, kHomeLost: which
  uint32_t token_index = 0;      // kToken: into Sequence::log.tokens
  uint32_t sequences = 0;        // kHomeLost: that are computed again
  Sequence* sequence = nullptr;  // kFinished: the desk's again
  uint64_t time_ns = 0;          // NowNs() when the step ended; kPaused: of the loss
};

class EngineLink;

// RequestDesk and control thread -> pipeline.
struct PipelineCommand {
  enum class Kind : uint8_t {
    kAdd,
    kAddHome,
    kRemoveHome,
    kExpectHome,  // it has not come yet, and may: it counts as one that was lost
    kForgetHome,  // it does not come any more
  };
  Kind kind = Kind::kAdd;
  Sequence* sequence = nullptr;  // kAdd; those that follow it are lent with it
  EngineLink* link = nullptr;    // kAddHome; stays the caller's, who keeps it until the home is reported lost
  int home = -1;                 // kAddHome: a free index
  uint32_t pages = 0;            // kAddHome: granted to this engine
  uint32_t read_mb_per_s = 0;    // kAddHome: as its description says
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_PIPELINE_SEQUENCE_H_
