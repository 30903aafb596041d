#ifndef FASTDECODE_TESTS_ABI_FUZZ_CALL_H_
#define FASTDECODE_TESTS_ABI_FUZZ_CALL_H_

#include <fastdecode/fastdecode_bench.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/abi/fuzz_oracle.h"

namespace fastdecode {

// What a choice goes on with if nobody stops it.
struct RightEnd {
  bool known = false;  // whether the tokens are: without, some field that shapes them was cut off
  uint32_t tokens = 0;
  int32_t finish = FD_FINISH_LENGTH;
  int32_t stop_token = -1, stop_index = -1;
  std::string text;
};

// One request of a random program: what it asks for, and what has come of it.
// Thread: what is drawn is constant; the rest as it says.
class FuzzCall {
 public:
  // Draws one that is valid, for an engine with so long a context and so many choices a request.
  FuzzCall(Dice* dice, const FuzzModel& model, int max_context, uint32_t max_choices);

  // Submits it in memory that is gone when this returns. On success, id() is known from then on.
  fd_status* Submit(fd_engine* engine);
  // The same of one with a mistake, whose name must be in the refusal; never accepted.
  void SubmitWrong(Dice* dice, fd_engine* engine);

  uint64_t id() const { return id_.load(); }
  uint32_t prompt_tokens() const { return static_cast<uint32_t>(prompt_->ids.size()); }
  void* user() const { return fields_.user; }
  size_t choices() const { return choices_.size(); }
  // Whether its last event was taken. REQUIRES: `mutex` is held.
  bool ended() const { return finished == choices_.size(); }

  // Takes an event of `bytes` bytes, of which `event` has the first ones, and zeros else. REQUIRES: `mutex` is held,
  // and the request not forgotten.
  void Take(const fd_event& event, size_t bytes);
  // Nobody writes there any more. REQUIRES: `mutex` is held.
  void FreeLogits() { std::vector<float>().swap(logits_); }

  // Guards what follows, and what events point to: who forgets the request sets `forgotten` first.
  std::mutex mutex;
  bool forgotten = false;
  size_t finished = 0;               // FINISHED events, one a choice
  uint64_t taken_tokens = 0;         // of events that were large enough to tell
  bool counts = true;                // all of them were
  int32_t finish = FD_FINISH_ERROR;  // of the choice that ended last
  bool finish_known = false;

  std::atomic<bool> cancel_asked{false};
  std::atomic<uint64_t> forgotten_at{0};  // the program's clock, once fd_forget has returned; 0: it has not

 private:
  struct Memory;  // what the struct points to
  // One answer, and what its events have said so far.
  struct Choice {
    const RightAnswer* answer = nullptr;
    RightEnd right;
    std::vector<int32_t> tokens;
    std::string text;
    bool whole_text = true;
    bool finished = false;
  };

  void DrawPrompt(Dice* dice);
  void DrawStops(Dice* dice);
  void DrawSize(Dice* dice);
  RightEnd FindEnd(const RightAnswer& answer) const;
  RightEnd FindStopString(const RightAnswer& answer, uint32_t most) const;
  void TakeTokens(const fd_event& event, size_t bytes, Choice* choice);
  void TakeEnd(const fd_event& event, size_t bytes, Choice* choice);
  void CheckEnd(const fd_event& event, const Choice& choice);

  // Drawn.
  const FuzzModel& model_;
  const FuzzPrompt* prompt_ = nullptr;
  int way_ = 0;
  int max_context_ = 0;
  fd_request fields_;                  // that pointers are set in when it is submitted
  size_t bytes_ = sizeof(fd_request);  // of the caller's struct
  enum class Form { kIds, kText, kParts } form_ = Form::kIds;
  size_t part_bytes_ = sizeof(fd_prompt_part);
  std::vector<int32_t> stop_tokens_;
  std::vector<std::string> stops_;
  std::vector<fd_logit_bias> biases_;
  std::string salt_;
  bool bench_ = false;
  std::vector<float> logits_;
  fd_request effective_;  // as the library reads it: fields that were cut off have their defaults

  std::atomic<uint64_t> id_{0};
  std::vector<Choice> choices_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_ABI_FUZZ_CALL_H_
