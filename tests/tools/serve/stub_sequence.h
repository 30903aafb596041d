#ifndef FASTDECODE_TESTS_TOOLS_SERVE_STUB_SEQUENCE_H_
#define FASTDECODE_TESTS_TOOLS_SERVE_STUB_SEQUENCE_H_

#include <fastdecode/fastdecode.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <set>
#include <string>
#include <vector>

#include "tests/tools/serve/stub_script.h"
#include "tests/tools/serve/stub_tokenizer.h"

namespace fastdecode::stub {

// An fd_event, and what it points to.
struct StubEvent {
  fd_event event = {};  // its pointers are set by View
  std::vector<int32_t> tokens;
  std::vector<float> logprobs;
  std::vector<fd_token_logprob> top;
  std::string text, error;
  std::vector<fd_text_range> special;  // of text; where stop strings are looked for, nobody knows
  fd_request_times times = {};

  fd_event View() const;
};

// One choice of a request as the stub plays it. Thread: one at a time; the engine's lock guards it.
class StubSequence {
 public:
  enum class State { kWaiting, kRunning, kEnded };

  // `request` is copied; `prompt` are its ids. `length_max`: generated tokens at most.
  StubSequence(StubTokenizer* tokenizer, const fd_request& request, std::vector<int32_t> prompt, uint32_t length_max,
               uint64_t default_pause_ns, uint64_t now_ns);

  // It leaves the queue.
  void Start(uint64_t now_ns);
  // Plays the token that is due. REQUIRES: kRunning, due_ns() <= now_ns.
  void Advance(uint64_t now_ns);
  // Ends it, with `error` for FD_FINISH_ERROR.
  void Finish(fd_finish finish, uint64_t now_ns, std::string error = "");
  // The oldest event; how many are left is in events().
  StubEvent TakeEvent();
  void DropEvents() { events_.clear(); }

  State state() const { return state_; }
  bool started() const { return start_ns_ != 0; }
  bool hangs(uint64_t now_ns) const { return state_ == State::kRunning && now_ns < hang_until_ns_; }
  uint64_t due_ns() const { return due_ns_; }  // when Advance has something to do; ~0: never
  uint64_t ready_ns() const { return submit_ns_ + script_.queue_ns; }
  uint64_t deaf_ns() const { return script_.deaf_ns; }
  size_t events() const { return events_.size(); }
  int finish() const { return finish_; }
  uint32_t length() const { return static_cast<uint32_t>(prompt_.size()) + generated_; }
  uint32_t prompt_tokens() const { return static_cast<uint32_t>(prompt_.size()); }
  uint32_t generated_tokens() const { return generated_; }
  uint64_t deadline_ns() const { return fields_.deadline_ns; }
  // How many of the prompt's tokens were looked up, and how many were found.
  uint32_t prefix_tokens() const { return fields_.no_prefix_cache ? 0 : prompt_tokens(); }
  uint32_t cached_tokens() const { return static_cast<uint32_t>(std::min<uint64_t>(script_.cached, prefix_tokens())); }

  uint64_t request = 0;                  // its id
  uint32_t choice = 0;                   // of the request; the first one says what is to be said of the prompt
  uint64_t cancel_at_ns = ~uint64_t{0};  // when a cancel takes effect
  bool forgotten = false;                // nobody takes its events

 private:
  // The next token of the script; what ends the request is done. False: there is none now.
  bool NextToken(uint64_t now_ns, int32_t* token);
  bool AtEndOfScript(uint64_t now_ns, int32_t* token);
  std::string Field(const std::string& name) const;
  void Announce(int32_t token, uint64_t now_ns);
  void AnnouncePrompt(uint64_t now_ns);
  // Whole characters, with those of stop strings held back. True: a stop string has come.
  bool ReleaseText(bool at_end, std::string* text);
  float Logprob(int32_t token, uint64_t position) const;
  void AppendLogprobs(int32_t token, uint64_t position, int32_t count, StubEvent* event) const;
  StubEvent NewEvent(fd_event_kind kind, uint64_t now_ns) const;

  StubTokenizer* const tokenizer_;
  fd_request fields_;  // without its pointers but `user`
  const std::string cache_salt_;
  std::vector<std::string> stops_;
  std::set<int32_t> stop_tokens_;
  const std::vector<int32_t> prompt_;
  const uint32_t length_max_;
  const uint64_t submit_ns_;
  const Script script_;

  State state_ = State::kWaiting;
  int finish_ = 0;
  size_t step_ = 0;               // of the script
  uint64_t played_ = 0;           // of a step that repeats
  std::vector<int32_t> spelled_;  // ids of the current word that are still to come, the last one first
  uint64_t every_ns_;
  bool paused_ = false;  // the current pause is over when due
  uint64_t due_ns_ = 0, hang_until_ns_ = 0, start_ns_ = 0, first_token_ns_ = 0, last_token_ns_ = 0;
  uint32_t generated_ = 0;
  std::string bytes_;  // not yet text: the beginning of a character
  std::string held_;   // text that may be the beginning of a stop string
  int32_t stop_index_ = -1, stop_token_ = -1;
  std::deque<StubEvent> events_;
};

}  // namespace fastdecode::stub

#endif  // FASTDECODE_TESTS_TOOLS_SERVE_STUB_SEQUENCE_H_
