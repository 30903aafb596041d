#ifndef FASTDECODE_TESTS_ENGINE_REQUEST_SERVING_H_
#define FASTDECODE_TESTS_ENGINE_REQUEST_SERVING_H_

#include <fastdecode/fastdecode.h>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/record/recorder.h"
#include "engine/request/build_request.h"
#include "engine/request/request_desk.h"
#include "engine/text/tokenizer.h"
#include "tests/engine/pipeline/fake_model.h"
#include "tests/engine/pipeline/fake_spart.h"
#include "tests/engine/pipeline/home_thread.h"

namespace fastdecode {

// Tokens 0 to 93 of the golden base tokenizer are the printable ASCII characters from '!' on.
inline constexpr int kServingVocab = 94;

inline bool IsServingSpecial(int32_t token) { return token % 3 == 0; }

struct ServingOptions {
  BatchLimits limits = {
      .micro_batches = 2, .rows_max = 64, .sequences_max = 16, .chunk_tokens_max = 32, .ready_max = 1000};
  int vocab = kServingVocab;  // more: bytes that are no text by themselves, too
  bool has_special = false;   // each third token is special: those that IsServingSpecial says
  int homes = 1;
  uint32_t pages = 100;  // of each
  size_t queue_max = 1000;
  size_t control_ring_bytes = 1 << 20;
  size_t event_capacity = 1 << 16;
  uint64_t park_after_ns = 300'000;
  Recorder* recorder = nullptr;  // lent; null: nothing is recorded
};

// What a request asks for beside its prompt.
struct ServingAsk {
  uint32_t max_tokens = 16;
  uint32_t fill_tokens = 0;
  std::vector<int32_t> stop_token_ids = {};
  std::vector<std::string> stops = {};
  bool include_stop = false;
  uint32_t min_tokens = 0;
  std::vector<float>* prompt_logits = nullptr;
  uint64_t deadline_ns = 0;
  int32_t prompt_logprobs = -1;
  bool show_special = false;
  uint64_t seed = 0;
  uint32_t answers = 1;
  bool pause_events = false;
};

// One event as its caller sees it.
struct ServingEvent {
  uint32_t answer = 0;
  bool finished = false;
  std::vector<int32_t> tokens;
  uint32_t token_index = 0;
  std::string text;
  std::vector<TextRange> special;
  RequestEnd end;  // if it is finished
  RequestEvent::Kind kind{};
  uint64_t time_ns = 0;
  int home = -1;
};

// All that a caller was told.
struct ServingOutcome {
  std::vector<int32_t> tokens;
  std::string text;
  std::vector<TextRange> special;  // of the text
  RequestFinish finish = RequestFinish::kError;
  std::string error;
  uint32_t generated_tokens = 0;
  RequestEnd end;
  size_t events = 0;
  std::vector<int> pauses;  // which homes were lost

  void Add(const ServingEvent& event);
};

// RequestDesk and pipeline with all their threads, a fake S-Part, and homes behind real links of this process.
// Thread: Submit, Collect and the desk's own functions any; the rest one.
class Serving : public HomeKeeper {
 public:
  explicit Serving(const ServingOptions& options);
  ~Serving() override;

  void AddHome(int index);
  void LoseHome(int index);
  // So many links of this index were let go of.
  int let_go(int index) const;
  // How often the home has said that it drains.
  int draining(int index) const;
  HomeThread& home(int index) { return *homes_[index]; }
  // Until the home sleeps once more than `sleeps` times: it was told that all is quiet, and had nothing left.
  void AwaitSleep(int index, uint64_t sleeps) const;

  absl::StatusOr<std::unique_ptr<Request>> Build(const std::vector<int32_t>& prompt, const ServingAsk& ask) const;
  absl::StatusOr<uint64_t> Submit(const std::vector<int32_t>& prompt, const ServingAsk& ask);
  // Its id; a failure is a gtest failure.
  uint64_t MustSubmit(const std::vector<int32_t>& prompt, const ServingAsk& ask);
  // RequestDesk::Next, and a copy of what it gives.
  RequestDesk::NextResult Next(uint64_t id, ServingEvent* out, int64_t timeout_ns);
  // RequestDesk::Poll: what it gives, added to the outcomes of whom it is for. Returns how many events.
  size_t Poll(size_t capacity, int64_t timeout_ns, std::map<uint64_t, ServingOutcome>* outcomes);
  // Takes events until the last one.
  ServingOutcome Collect(uint64_t id);

  FakeOracle::Result Expect(const std::vector<int32_t>& prompt, const ServingAsk& ask) const;
  // The outcome is the oracle's whole answer.
  void CheckWhole(const ServingOutcome& outcome, const std::vector<int32_t>& prompt, const ServingAsk& ask) const;
  // Its tokens are the first of the oracle's.
  void CheckPrefix(const ServingOutcome& outcome, const std::vector<int32_t>& prompt, const ServingAsk& ask) const;
  static std::string TextOf(const std::vector<int32_t>& tokens);
  static std::vector<int32_t> Prompt(uint32_t tokens, uint64_t seed);

  RequestDesk& desk() { return *desk_; }
  Pipeline& pipeline() { return *pipeline_; }
  FakeSPart& spart() { return spart_; }

  void OnHomeDraining(int home) override;
  void OnHomeLost(int home, uint64_t hops_posted, uint32_t paused) override;
  std::string Name(int home) override { return "home " + std::to_string(home); }
  std::string DescribeNoRoom(uint32_t tokens) override { return "no room for " + std::to_string(tokens); }

 private:
  const ServingOptions options_;
  const RPartShape shape_;
  ModelSpec spec_;
  std::unique_ptr<Tokenizer> tokenizer_;
  FakeSPart spart_;
  ParkWord desk_word_;
  std::vector<std::unique_ptr<EngineLink>> links_;  // all there ever were
  std::vector<EngineLink*> current_;                // [home]
  std::vector<std::unique_ptr<HomeThread>> homes_;  // [home]
  std::vector<std::unique_ptr<HomeThread>> old_homes_;
  std::unique_ptr<Pipeline> pipeline_;
  std::unique_ptr<RequestDesk> desk_;

  mutable std::mutex mutex_;
  std::vector<int> let_go_;    // [home], under the mutex
  std::vector<int> draining_;  // the same
};

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_ENGINE_REQUEST_SERVING_H_
