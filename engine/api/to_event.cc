#include "engine/api/to_event.h"

#include <cstddef>

namespace fastdecode {

namespace {

fd_finish ToFinish(RequestFinish finish) {
  switch (finish) {
    case RequestFinish::kStop:
      return FD_FINISH_STOP;
    case RequestFinish::kLength:
      return FD_FINISH_LENGTH;
    case RequestFinish::kCancelled:
      return FD_FINISH_CANCELLED;
    case RequestFinish::kError:
      return FD_FINISH_ERROR;
    case RequestFinish::kDeadline:
      return FD_FINISH_DEADLINE;
  }
  return FD_FINISH_ERROR;
}

static_assert(sizeof(fd_token_logprob) == sizeof(TokenLogprob) &&
              offsetof(fd_token_logprob, token) == offsetof(TokenLogprob, token) &&
              offsetof(fd_token_logprob, logprob) == offsetof(TokenLogprob, logprob));
static_assert(sizeof(fd_text_range) == sizeof(TextRange) &&
              offsetof(fd_text_range, begin) == offsetof(TextRange, begin) &&
              offsetof(fd_text_range, end) == offsetof(TextRange, end));
static_assert(FD_UNDELIVERED_MAX == Request::kUndeliveredMax);

void FillTokens(const Sequence& sequence, const RequestEvent& event, fd_event* out) {
  const size_t first = event.token_index;
  out->token_index = event.token_index;
  out->token_count = event.token_count;
  out->tokens = sequence.log.tokens.data() + sequence.prompt_tokens + first;
  if (sequence.sampling.params.logprobs < 0) return;
  out->logprobs = sequence.log.logprobs.data() + first;
  out->top_logprob_count = static_cast<uint32_t>(sequence.sampling.params.logprobs);
  if (out->top_logprob_count == 0) return;
  out->top_logprobs =
      reinterpret_cast<const fd_token_logprob*>(sequence.log.top_logprobs.data() + first * out->top_logprob_count);
}

void FillPrompt(const Sequence& sequence, fd_event* out) {
  out->tokens = sequence.log.tokens.data();
  out->token_count = sequence.prompt_tokens;
  out->logprobs = sequence.log.prompt_logprobs.data();
  out->top_logprob_count = static_cast<uint32_t>(sequence.sampling.prompt_params.logprobs);
  if (out->top_logprob_count == 0) return;
  out->top_logprobs = reinterpret_cast<const fd_token_logprob*>(sequence.log.prompt_top_logprobs.data());
}

}  // namespace

fd_event ToEvent(const TakenEvent& taken) {
  const Request& request = *taken.request;
  const RequestEvent& event = *taken.event;
  const RequestAnswer& answer = *request.answers[event.answer];
  fd_event out = {};
  out.id = request.id;
  out.user = request.user;
  out.choice = event.answer;
  out.text = event.text.text.c_str();
  out.text_bytes = event.text.text.size();
  out.special = reinterpret_cast<const fd_text_range*>(event.text.special.data());
  out.special_count = static_cast<uint32_t>(event.text.special.size());
  out.hides_special = request.hides_special ? 1 : 0;
  out.error = "";
  out.stop_index = out.stop_token = out.home = -1;
  out.submit_ns = request.submit_ns;
  out.time_ns = event.time_ns;
  switch (event.kind) {
    case RequestEvent::Kind::kToken:
      out.kind = FD_EVENT_TOKEN;
      FillTokens(answer.sequence, event, &out);
      break;
    case RequestEvent::Kind::kPrompt:
      out.kind = FD_EVENT_PROMPT;
      FillPrompt(request.first(), &out);
      break;
    case RequestEvent::Kind::kPaused:
      out.kind = FD_EVENT_PAUSED;
      out.home = event.home;
      break;
    case RequestEvent::Kind::kFinished:
      out.kind = FD_EVENT_FINISHED;
      out.finish = ToFinish(answer.end.finish);
      out.error = answer.end.error.c_str();
      out.stop_index = answer.end.stop_index;
      out.stop_token = answer.end.stop_token;
      out.prompt_tokens = answer.sequence.prompt_tokens;
      out.generated_tokens = answer.end.generated_tokens;
      out.cached_tokens = answer.end.cached_tokens;
      out.times = reinterpret_cast<const fd_request_times*>(&answer.end.times);
      break;
  }
  return out;
}

}  // namespace fastdecode
