#include "tools/serve/completion.h"

#include <algorithm>
#include <new>
#include <span>

#include "tools/serve/answers.h"
#include "tools/serve/clock.h"
#include "tools/serve/engine_text.h"

namespace fastdecode::serve {

namespace {

// Log-probabilities that are written on the I/O thread, where all others wait for them.
constexpr size_t kEntriesAtOnce = 4096;
// A reader that is further behind gets several tokens in a chunk.
constexpr size_t kBehindBytes = 64 << 10;

double Seconds(uint64_t from_ns, uint64_t to_ns) {
  return to_ns > from_ns ? static_cast<double>(to_ns - from_ns) * 1e-9 : 0;
}

}  // namespace

Completion::Completion(ServingContext* context, std::shared_ptr<Exchange> exchange,
                       std::unique_ptr<CompletionForm> form)
    : context_(context), exchange_(std::move(exchange)), form_(std::move(form)) {}

Completion::~Completion() = default;

void Completion::Begin() {
  context_->live.insert(this);
  exchange_->on_gone = [self = std::weak_ptr<Completion>(Self())](Exchange::Gone why) {
    if (const std::shared_ptr<Completion> completion = self.lock()) completion->OnGone(why);
  };
  // What a slow reader has not taken keeps this alive when its sequences have ended. The answer's end drops it.
  exchange_->on_drained = [self = Self()] {
    const std::shared_ptr<Completion> completion = self;
    completion->Advance();
  };
}

void Completion::OnSubmitted() {
  settled_ = true;
  in_queue_ = true;
  if (begun_ == choices_.size()) LeaveQueue(progressed_, MonotonicNs());
  if (over_ || exchange_->gone()) {
    over_ = true;
    CancelAll();
    return CountIfEnded();
  }
  answering_ = true;
  writer_ = form_->MakeWriter({.id = request_->request_id.empty() ? exchange_->record.id : request_->request_id,
                               .created = exchange_->record.time_ns / 1'000'000'000,
                               .model = model_,
                               .logprobs = request_->generate.fields.logprobs >= 0,
                               .usage_in_chunks = request_->include_usage,
                               .continuous_usage = request_->continuous_usage,
                               .return_token_ids = request_->return_token_ids},
                              [engine = context_->engine](int32_t id) { return TokenBytes(engine, id); });
  exchange_->record.user = request_->user;
  exchange_->record.choices = choices_.size();
  if (request_->stream) {
    exchange_->headers.push_back({"Cache-Control", "no-cache"});
    exchange_->headers.push_back({"X-Accel-Buffering", "no"});
    exchange_->StartStream("text/event-stream; charset=utf-8");
  }
  Advance();
  CountIfEnded();  // its sequences may have ended before all this was known here
}

void Completion::OnRefused(const ApiError& error) {
  settled_ = refused_ = true;
  if (queued_tokens_ > 0) context_->admission->Leave(queued_tokens_, false, MonotonicNs(), choices_.size());
  queued_tokens_ = 0;
  if (!over_) {
    over_ = true;
    if (request_ != nullptr) exchange_->record.user = request_->user;
    SendError(exchange_.get(), error);
  }
  CancelAll();
  CountIfEnded();
}

void Completion::OnFault() {
  if (!over_) {
    over_ = true;
    exchange_->record.finish = "error";
    exchange_->record.error = "out_of_memory";
    exchange_->Abort();
    CancelAll();
  }
  if (settled_) CountIfEnded();
}

void Completion::OnGone(Exchange::Gone why) {
  if (why == Exchange::Gone::kClient) context_->metrics->OnClientGone();
  if (over_) return;
  over_ = true;
  exchange_->record.finish = "cancelled";
  FillRecord();
  CancelAll();
  LeaveIfOver();
}

bool Completion::CutShort(const ApiError& why) {
  if (over_) return false;
  exchange_->record.ended_by = "shutdown";
  Fail(why);
  if (!over_) {  // its answer has not begun
    over_ = true;
    SendError(exchange_.get(), why);
  }
  CancelAll();
  LeaveIfOver();
  return true;
}

void Completion::Abandon() {
  const std::shared_ptr<Completion> self = Self();
  for (Ask& ask : asks_) ask.slot.owner.reset();
}

void Completion::OnEvent(size_t index, const fd_event& event, uint64_t now_ns) {
  const std::span<Choice> choices = std::span(choices_).subspan(index * request_->n, request_->n);
  Choice& choice = choices[event.choice];
  if (event.kind == FD_EVENT_TOKEN && first_token_ns_ == 0) {
    first_token_ns_ = now_ns;
    context_->metrics->OnFirstToken(Seconds(exchange_->request.received_ns, now_ns));
  }
  progressed_ = progressed_ || event.kind == FD_EVENT_TOKEN || event.kind == FD_EVENT_PROMPT;
  if (!choice.begun) {
    choice.begun = true;
    ++begun_;
    if (settled_ && begun_ == submitted_) LeaveQueue(progressed_, now_ns);
  }
  switch (event.kind) {
    case FD_EVENT_PROMPT:
      for (Choice& of_prompt : choices) form_->AddPrompt(event, &of_prompt.piece);
      break;
    case FD_EVENT_TOKEN:
      OnToken(&choice, event, now_ns);
      break;
    case FD_EVENT_FINISHED:
      OnFinished(&asks_[index], &choice, event);
      break;
    default:  // a later library's
      break;
  }
}

void Completion::OnToken(Choice* choice, const fd_event& event, uint64_t now_ns) {
  if (choice->last_ns != 0 && event.time_ns > choice->last_ns) {
    const uint64_t gap = (event.time_ns - choice->last_ns) / event.token_count;
    context_->metrics->OnTokens(event.token_count, static_cast<double>(gap) * 1e-9);
    longest_gap_ns_ = std::max(longest_gap_ns_, gap);
  }
  choice->last_ns = event.time_ns;
  last_token_ns_ = now_ns;
  choice->generated += event.token_count;
  generated_ += event.token_count;
  if (over_) return;
  // A chunk for each token, as long as its reader keeps up.
  if (choice->has_token && answering_ && request_->stream) WriteNews(choice);
  form_->AddText(choice->piece.index, event, &choice->piece);
  if (request_->return_token_ids || event.logprobs != nullptr) choice->piece.run.Append(event);
  choice->has_news = choice->has_token = true;
}

void Completion::OnFinished(Ask* ask, Choice* choice, const fd_event& event) {
  choice->ended = true;
  ++ended_;
  if (--ask->left == 0) ask->slot.owner.reset();
  if (event.choice == 0) {  // all choices say the same
    ++looked_up_;
    cached_tokens_ += event.cached_tokens;
  }
  if (event.times != nullptr) context_->metrics->OnStepTimes(*event.times);
  if (choice == choices_.data()) {
    finish_ = event.finish;
    if (event.times != nullptr) queue_s_ = static_cast<double>(event.times->queue_ns) * 1e-9;
  }
  Piece& piece = choice->piece;
  form_->AddText(piece.index, event, &piece);
  choice->has_news = true;
  switch (event.finish) {
    case FD_FINISH_STOP: {
      piece.finish_reason = "stop";
      const GenerateRequest& asked = request_->generate;
      if (event.stop_index >= 0) piece.stop_string = asked.stop[static_cast<size_t>(event.stop_index)];
      const std::vector<int32_t>& stops = asked.stop_token_ids;
      if (std::find(stops.begin(), stops.end(), event.stop_token) != stops.end()) piece.stop_token = event.stop_token;
      break;
    }
    case FD_FINISH_DEADLINE:
      piece.deadline = true;
      [[fallthrough]];
    case FD_FINISH_LENGTH:
      piece.finish_reason = "length";
      break;
    default:
      if (over_ || failure_) break;
      failure_ = ApiError{.status = 500,
                          .message = event.finish == FD_FINISH_CANCELLED ? "the server has cancelled the request"
                                                                         : std::string(event.error),
                          .type = "server_error",
                          .code = "engine_error"};
  }
  if (settled_) CountIfEnded();
}

void Completion::Advance() {
  if (over_ || !answering_) return;
  if (failure_) return Fail(*failure_);
  if (!request_->stream) {
    if (ended_ < choices_.size()) return;
    return SendWhole();
  }
  bool all_written = ended_ == choices_.size();
  for (Choice& choice : choices_) {
    if (choice.has_news) WriteNews(&choice);
    all_written = all_written && !choice.has_news;
  }
  if (all_written) {
    if (request_->include_usage) writer_->AppendUsageChunk(SoFar(), exchange_->out());
    AnswerWriter::AppendDone(exchange_->out());
    End();
    return exchange_->End();
  }
  exchange_->Flush();
}

void Completion::SendWhole() {
  std::vector<Piece> pieces;
  size_t tokens = 0;
  for (Choice& choice : choices_) {
    tokens += choice.piece.run.tokens.size() * (1 + choice.piece.run.top_count);
    pieces.push_back(std::move(choice.piece));
  }
  if (tokens <= kEntriesAtOnce) {
    const std::string body = writer_->Body(pieces, SoFar());
    exchange_->Reply(200, "application/json", body);
    return End();
  }
  // A long answer is written by a helper, and nobody else's tokens wait for it.
  exchange_->on_drained = nullptr;
  End();
  asio::post(*context_->helpers, [self = Self(), pieces = std::move(pieces), usage = SoFar()]() mutable {
    std::function<void()> send;
    try {
      send = [self, body = self->writer_->Body(pieces, usage)] {
        self->exchange_->Reply(200, "application/json", body);
      };
    } catch (const std::exception&) {
      send = [self] { self->exchange_->Abort(); };
    }
    asio::post(*self->context_->io, std::move(send));
  });
}

// Unless its reader is too far behind: then the piece waits and grows.
void Completion::WriteNews(Choice* choice) {
  if (exchange_->unsent() + exchange_->out()->size() > kBehindBytes) return;
  writer_->AppendChunk(&choice->piece, SoFar(), exchange_->out());
  choice->piece.StartNext();
  choice->has_news = choice->has_token = false;
}

void Completion::Fail(const ApiError& error) {
  if (!answering_) return;
  if (exchange_->record.ended_by.empty()) exchange_->record.ended_by = "engine";
  exchange_->record.finish = "error";
  exchange_->record.error = ErrorName(error);
  failure_ = error;
  if (request_->stream) {
    for (Choice& choice : choices_) {
      if (choice.has_news) writer_->AppendChunk(&choice.piece, SoFar(), exchange_->out());
    }
    AnswerWriter::AppendError(error, exchange_->out());
    exchange_->Cut();
  } else {
    SendError(exchange_.get(), error);
  }
  CancelAll();
  End();
}

void Completion::End() {
  over_ = true;
  FillRecord();
  LeaveIfOver();
}

void Completion::CancelAll() {
  if (!settled_) return;
  for (const Ask& ask : asks_) {
    if (ask.slot.owner != nullptr) fd_cancel(context_->engine, ask.id);
  }
}

void Completion::LeaveQueue(bool progressed, uint64_t now_ns) {
  if (!in_queue_) return;
  in_queue_ = false;
  context_->admission->Leave(queued_tokens_, progressed, now_ns, choices_.size());
}

Usage Completion::SoFar() const {
  Usage usage = {
      .prompt_tokens = prompt_tokens_, .completion_tokens = generated_, .reasoning_tokens = form_->reasoning_tokens()};
  if (looked_up_ == asks_.size()) usage.cached_tokens = cached_tokens_;
  return usage;
}

void Completion::FillRecord() {
  AccessRecord& record = exchange_->record;
  const uint64_t received = exchange_->request.received_ns;
  if (settled_) {
    record.prompt_tokens = SoFar().prompt_tokens;
    record.cached_tokens = SoFar().cached_tokens;
    record.choices = choices_.size();
  }
  record.generated_tokens = generated_;
  record.total_ms = Seconds(received, MonotonicNs()) * 1e3;
  if (queue_s_ >= 0) record.queue_ms = queue_s_ * 1e3;
  if (first_token_ns_ != 0) record.ttft_ms = Seconds(received, first_token_ns_) * 1e3;
  if (longest_gap_ns_ != 0) record.itl_max_ms = static_cast<double>(longest_gap_ns_) * 1e-6;
  if (record.finish.empty() && answering_) {
    record.finish = finish_ == FD_FINISH_STOP       ? "stop"
                    : finish_ == FD_FINISH_LENGTH   ? "length"
                    : finish_ == FD_FINISH_DEADLINE ? "deadline"
                                                    : "cancelled";
  }
}

void Completion::LeaveIfOver() {
  if (over_ && settled_ && ended_ == submitted_) context_->live.erase(this);
}

void Completion::CountIfEnded() {
  LeaveIfOver();
  if (ended_ < submitted_ || std::exchange(counted_, true)) return;
  // A client that went away before its request was submitted has cancelled it like any other.
  if (refused_ && !exchange_->gone()) return;
  RequestOutcome outcome;
  using Finish = RequestOutcome::Finish;
  outcome.finish = failure_                        ? Finish::kError
                   : finish_ == FD_FINISH_STOP     ? Finish::kStop
                   : finish_ == FD_FINISH_LENGTH   ? Finish::kLength
                   : finish_ == FD_FINISH_DEADLINE ? Finish::kLength
                                                   : Finish::kAbort;
  if (exchange_->gone() && outcome.finish != Finish::kError) outcome.finish = Finish::kAbort;
  const uint64_t received = exchange_->request.received_ns;
  outcome.prompt_tokens = SoFar().prompt_tokens;
  outcome.generated_tokens = generated_;
  if (request_ != nullptr) {
    if (request_->length_field != nullptr) outcome.max_tokens = request_->generate.fields.max_tokens;
    outcome.choices = request_->n;
  }
  for (const Choice& choice : choices_) {
    outcome.longest_choice_tokens = std::max(outcome.longest_choice_tokens, choice.generated);
  }
  outcome.queue_s = queue_s_;
  outcome.total_s = Seconds(received, MonotonicNs());
  if (first_token_ns_ != 0) {
    const double ttft = Seconds(received, first_token_ns_);
    outcome.prefill_s = std::max(0.0, ttft - std::max(0.0, queue_s_));
    outcome.decode_s = Seconds(first_token_ns_, last_token_ns_);
    const uint64_t later = generated_ > choices_.size() ? generated_ - choices_.size() : 0;
    if (later > 0)
      outcome.per_output_token_s = outcome.decode_s * static_cast<double>(choices_.size()) / static_cast<double>(later);
  }
  context_->metrics->OnOutcome(outcome);
}

}  // namespace fastdecode::serve
