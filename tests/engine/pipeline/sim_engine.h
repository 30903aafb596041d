#ifndef FASTDECODE_TESTS_ENGINE_PIPELINE_SIM_ENGINE_H_
#define FASTDECODE_TESTS_ENGINE_PIPELINE_SIM_ENGINE_H_

#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "engine/pipeline/pipeline.h"
#include "tests/engine/pipeline/fake_model.h"
#include "tests/engine/pipeline/fake_spart.h"
#include "tests/engine/pipeline/sim_link.h"

namespace fastdecode {

struct SimOptions {
  BatchLimits limits;
  uint32_t layers = 2;
  int vocab = 50;
  uint32_t context_max = 512;
  int stage_polls_max = 0;  // > 0: an asynchronous S-Part
  uint64_t hop_timeout_ns = 50'000'000;
  uint64_t recover_ns = 50'000'000;
  uint64_t turn_ns_max = 100'000;  // what a turn takes; 0: nothing
  uint64_t look_ns = 50;           // what a look at the clock takes
  size_t event_capacity = 1 << 12;
  EventWriter record;
  SimLinkOptions link;
  uint64_t seed = 1;
};

// A sequence and what was said about it.
struct SimRequest {
  Sequence sequence;
  FakeOracle::Result expected;
  bool finished = false;
  FinishReason reason = FinishReason::kLength;
  int fail_home = -1;
  uint32_t announced = 0;  // tokens
  bool follows = false;
  uint32_t pauses = 0;  // that were said
  std::vector<float> prompt_logits;

  std::vector<int32_t> generated() const;
};

// What to ask of a request beside its prompt.
struct SimAsk {
  uint32_t max_tokens = 8;
  std::vector<int32_t> stop_tokens = {};
  uint32_t min_tokens = 0;
  uint32_t fill_tokens = 0;
  bool prompt_logits = false;
  int prompt_logprobs = -1;
  uint64_t seed = 0;
  bool prefix_cache = true;
  std::string cache_salt = "";
};

// A pipeline without its thread, a fake S-Part, simulated homes, and injected time: everything happens one turn at a
// time. Reports every broken rule as a gtest failure. Owns: all of it. Thread: one.
class SimEngine {
 public:
  explicit SimEngine(const SimOptions& options);

  // A home at a free index. The link lives as long as the engine; a lost one is only replaced.
  // near: it attends within stages. read_mb_per_s: as it says itself.
  SimLink* AddHome(int index, uint32_t pages, uint32_t read_mb_per_s = 0, bool near = false);
  SimLink* link(int index) { return homes_.count(index) == 0 ? nullptr : homes_[index]; }
  // The pipeline has let go of the index' last link.
  bool let_go(int index) const { return let_go_.count(index) != 0; }
  uint64_t losses(int index) const;
  // Sequences that homes had when they were lost, as their last events say.
  uint64_t paused() const { return paused_; }

  SimRequest* Submit(const std::vector<int32_t>& prompt, const SimAsk& ask);
  // Several answers to one prompt; what is asked of the prompt itself is the first one's.
  std::vector<SimRequest*> SubmitGroup(const std::vector<int32_t>& prompt, const std::vector<SimAsk>& asks);
  void Cancel(SimRequest* request);

  // One turn of the pipeline and of every home, and the events taken.
  void Turn();
  uint64_t now_ns() const;
  // Nothing happens for so long, as in a process that is stopped.
  void StandStill(uint64_t ns);
  // The pipeline's thread runs until it has parked. At most once.
  void Park();
  // Until all have finished; false: not within so many turns.
  bool RunAll(int turns_max);
  // Plays a slow desk: events are left where they are.
  void HoldEvents(bool hold) { hold_events_ = hold; }
  void TakeEvents();

  Pipeline& pipeline() { return *pipeline_; }
  FakeSPart& spart() { return spart_; }
  ParkWord* desk_word() { return &desk_word_; }
  const std::vector<std::unique_ptr<SimRequest>>& requests() const { return requests_; }
  size_t unfinished() const;

  // That the request's tokens are the oracle's: all of them if it ended by itself, else the first ones; and so is what
  // it was told of its prompt.
  void CheckTokens(const SimRequest& request) const;
  // With all requests finished: that no page is taken anywhere.
  void CheckNothingLeft();
  // At any time: that no home has more pages in use than the batcher counts, or takes a prompt for another.
  void CheckPages();

  static std::vector<int32_t> Prompt(uint32_t tokens, uint64_t seed, int vocab);

 private:
  SimRequest* Make(const std::vector<int32_t>& prompt, const SimAsk& ask);
  void OnEvent(const PipelineEvent& event);
  void CheckTimes(const Sequence& sequence) const;
  void CheckPauses(const SimRequest& request) const;
  void CheckNoHome(const SimRequest& request) const;
  void CheckPromptLogprobs(const SimRequest& request) const;
  void AttendNear(int micro_batch, uint32_t layer, const StepTable& table);

  const SimOptions options_;
  const RPartShape shape_;
  std::mt19937_64 random_;
  FakeSPart spart_;
  ParkWord desk_word_;
  std::unique_ptr<Pipeline> pipeline_;
  std::vector<std::unique_ptr<SimLink>> links_;
  std::map<int, SimLink*> homes_;
  std::map<int, uint64_t> let_go_;
  std::map<int, uint64_t> losses_;
  uint64_t paused_ = 0;
  std::vector<std::unique_ptr<SimRequest>> requests_;
  bool hold_events_ = false;
  bool events_are_old_ = false;  // some were held
};

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_ENGINE_PIPELINE_SIM_ENGINE_H_
