#ifndef FASTDECODE_TOOLS_SERVE_COMPLETION_H_
#define FASTDECODE_TOOLS_SERVE_COMPLETION_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "tools/serve/completion_form.h"
#include "tools/serve/engine_events.h"
#include "tools/serve/http/exchange.h"
#include "tools/serve/serving_context.h"

namespace fastdecode::serve {

// A request for generated text: for each of its prompts one request of the engine's with n choices, and their answer,
// streamed or whole. Its form says what its endpoint makes of bodies, prompts and answers. A helper thread reads,
// tokenises and submits it (Work); everything else happens on the I/O thread. It lives until the last of its choices
// has ended, and cancels those that run when its client goes away.
class Completion : public EventOwner {
 public:
  // The exchange's record has the request's id, unless its body gives another one.
  Completion(ServingContext* context, std::shared_ptr<Exchange> exchange, std::unique_ptr<CompletionForm> form);
  ~Completion() override;

  // Takes part in the context's `live`, and learns of a client that goes away. Before Work.
  void Begin();
  // Thread: a helper.
  void Work();
  // The server ends: what has come so far is followed by an error. False: it was over already.
  bool CutShort(const ApiError& why);
  // No events will come any more: it lets go of itself.
  void Abandon();

  void OnEvent(size_t index, const fd_event& event, uint64_t now_ns) override;
  void OnBatchEnd() override { Advance(); }
  void OnFault() override;

 private:
  // One prompt, as the engine has it.
  struct Ask {
    EventSlot slot;
    uint64_t id = 0;
    uint32_t left = 0;  // choices that have not ended
  };
  // One choice of one prompt.
  struct Choice {
    Piece piece;
    bool has_news = false;   // the piece waits to be written
    bool has_token = false;  // ...and has a token
    bool begun = false;      // an event has come
    bool ended = false;
    uint64_t generated = 0;  // tokens
    uint64_t last_ns = 0;    // when its last token's step ended
  };

  std::shared_ptr<Completion> Self() { return std::static_pointer_cast<Completion>(shared_from_this()); }
  void ReadRequest();
  void CheckIds() const;
  void Submit();
  void OnSubmitted();
  void OnRefused(const ApiError& error);
  void OnGone(Exchange::Gone why);
  void SendWhole();
  void Advance();
  void WriteNews(Choice* choice);
  void OnToken(Choice* choice, const fd_event& event, uint64_t now_ns);
  void OnFinished(Ask* ask, Choice* choice, const fd_event& event);
  void LeaveQueue(bool progressed, uint64_t now_ns);
  void CancelAll();
  void Fail(const ApiError& error);
  void End();  // the answer is complete, or will not be
  void FillRecord();
  void CountIfEnded();  // no choice runs any more...
  void LeaveIfOver();   // ...and the answer is over, too
  Usage SoFar() const;

  ServingContext* const context_;
  const std::shared_ptr<Exchange> exchange_;
  const std::unique_ptr<CompletionForm> form_;

  // Written by the helper before OnSubmitted or OnRefused.
  AnswerRequest* request_ = nullptr;  // the form's; null: it has not been read
  std::string model_;
  std::vector<std::vector<int32_t>> prompts_;
  std::vector<Ask> asks_;        // [prompt]; never moved once submitted...
  std::vector<Choice> choices_;  // [prompt][n]; ...nor are these
  size_t submitted_ = 0;         // choices
  uint64_t prompt_tokens_ = 0;
  uint64_t queued_tokens_ = 0;  // that admission counts for it

  // I/O thread.
  std::unique_ptr<AnswerWriter> writer_;
  bool settled_ = false;    // OnSubmitted or OnRefused has been called...
  bool refused_ = false;    // ...which was the latter
  bool answering_ = false;  // ...which was the former, and the client was there
  bool over_ = false;       // nothing more is written
  bool in_queue_ = false;
  bool counted_ = false;          // in the metrics
  bool progressed_ = false;       // a token has come, or the prompt's log-probabilities
  size_t begun_ = 0, ended_ = 0;  // choices
  uint64_t generated_ = 0;
  size_t looked_up_ = 0;        // prompts of which it is known...
  uint64_t cached_tokens_ = 0;  // ...how many tokens others had computed: so many in all
  std::optional<ApiError> failure_;
  // For metrics and the log.
  uint64_t first_token_ns_ = 0, last_token_ns_ = 0, longest_gap_ns_ = 0;
  int32_t finish_ = 0;  // fd_finish of the first choice
  double queue_s_ = -1;
};

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_COMPLETION_H_
