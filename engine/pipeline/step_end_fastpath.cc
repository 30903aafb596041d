// FAST PATH (docs/FAST_PATH.md)
// The end of a step: its sampled tokens become tokens of sequences, which may end with them, and others may begin.
// Never waits for the desk.
#include <limits>

#include "engine/pipeline/pipeline.h"

namespace fastdecode {

void Pipeline::FinishStep(int m) {
  MicroBatch& batch = batches_[m];
  batch.state = State::kBoundary;
  const uint64_t now_ns = Now();
  const uint64_t sampled_before = statistics_.sampled_tokens.value();
  batch.timer.Finish(now_ns);
  for (Sequence* sequence : batcher_.Members(m)) {
    if (sequence->rows == 0) continue;
    AddTimes(batch, sequence, now_ns);
    sequence->computed += sequence->rows;
    if (!batch.s_part_failed && sequence->state == SequenceState::kComputes) batcher_.NoteStored(sequence);
    if (sequence->recovery.lost_ns == 0 || sequence->recovers()) continue;
    if (sequence->computed >= sequence->recovery.computed) NoteRecovered(sequence, now_ns);
  }
  for (int i = 0; i < batch.table.logit_rows; ++i) {
    Sequence* sequence = batch.sampled[i];
    // What the rows of a lost home have come to means nothing; they are computed again. Followers of who fails or
    // recovers wait.
    if (sequence == nullptr || sequence->fails() || sequence->recovers()) continue;
    if (sequence->state == SequenceState::kFollows) continue;
    const LogitRow& logit = batch.table.logits[i];
    if (logit.args.position < sequence->prompt_tokens) {
      TakePromptLogprob(sequence, logit);
      continue;
    }
    // The rows of those that follow are the next ones, in the same order. They come before the sequence's own token,
    // which may be its last.
    while (sequence->next_follower != nullptr) StartFollower(sequence, batch.table.logits[++i], now_ns);
    AcceptToken(sequence, logit, now_ns);
  }
  if (batch.whole && !batch.s_part_failed) NoteCosts(m, now_ns);
  batch.finished_ns = now_ns;
  statistics_.steps.Add(1);
  statistics_.last_step_ns.store(now_ns, std::memory_order_relaxed);
  statistics_.step_ns.Add(now_ns - batch.step_start_ns);
  quiet_since_ns_ = Now();
  batch.timer.EndJudging(quiet_since_ns_);
  batch.no_rows = batch.s_part_failed = false;
  --in_steps_;
  if (!record_.on()) return;
  const uint64_t tokens = statistics_.sampled_tokens.value() - sampled_before;
  record_.Finish({m, batch.step}, batch.stage_end_ns, quiet_since_ns_, static_cast<uint32_t>(tokens));
}

// What the step took, beside what it was to take.
void Pipeline::NoteCosts(int m, uint64_t now_ns) {
  MicroBatch& batch = batches_[m];
  constexpr double kUs = 1e-3;
  MeasuredStep took;
  for (int h = 0; h < home_limit_; ++h) {
    took.home_us[h] = static_cast<double>(batch.home_work_ns[h]) * kUs / options_.layers;
  }
  if (options_.layers > 1) took.stage_us = static_cast<double>(batch.stages_busy_ns) * kUs / (options_.layers - 1);
  took.near_us = static_cast<double>(batch.attend_ns) * kUs / options_.layers;
  took.hop_us = static_cast<double>(batch.hop_overhead_ns) * kUs;
  took.hop_bound_us = static_cast<double>(batch.hop_bound_ns) * kUs;
  took.has_chunks = batch.has_chunks;
  if (batch.finished_ns != 0) took.round_us = static_cast<double>(now_ns - batch.finished_ns) * kUs;
  const StepForecast forecast = batcher_.costs().Note(m, batch.load, took);
  if (batcher_.costs().calibrated()) {
    statistics_.s_cost_factor.store(static_cast<float>(batcher_.costs().s_factor()), std::memory_order_relaxed);
    for (int h = 0; h < home_limit_; ++h) {
      const auto factor = static_cast<float>(batcher_.costs().home_factor(h));
      statistics_.home_cost_factor[h].store(factor, std::memory_order_relaxed);
    }
  }
  if (forecast.round_us <= 0) return;
  statistics_.rounds.Add(1);
  statistics_.rounds_foretold_ns.Add(static_cast<uint64_t>(forecast.round_us / kUs));
  statistics_.rounds_ns.Add(now_ns - batch.finished_ns);
}

// Gives the sequence the times of a step that it had rows in. Called before these rows count as computed.
void Pipeline::AddTimes(const MicroBatch& batch, Sequence* sequence, uint64_t now_ns) {
  const bool in_prompt = sequence->computed < sequence->prompt_tokens;
  const bool prefill = in_prompt || sequence->length - sequence->computed > 1;
  batch.timer.AddTo(prefill ? &sequence->times.prefill : &sequence->times.decode, sequence->timed_until_ns);
  sequence->timed_until_ns = now_ns;
  sequence->times_so_far.Store(sequence->times);
}

// The prompt's token at args.position was the only one that could be drawn. A logit of -infinity kept it from that.
void Pipeline::TakePromptLogprob(Sequence* sequence, const LogitRow& logit) {
  if (logit.result.outcome == SampleOutcome::kBadLogits) {
    sequence->Fail(FinishReason::kBadLogits, -1);
    return;
  }
  const bool drawn = logit.result.outcome == SampleOutcome::kToken;
  sequence->log.prompt_logprobs[logit.args.position] =
      drawn ? logit.result.logprob : -std::numeric_limits<float>::infinity();
}

void Pipeline::AcceptToken(Sequence* sequence, const LogitRow& logit, uint64_t now_ns) {
  const StepRecorder::Where where = {sequence->micro_batch, batches_[sequence->micro_batch].step};
  const std::optional<FinishReason> ends = TakeToken(where, sequence, logit, now_ns);
  if (!ends.has_value()) return;
  if (*ends == FinishReason::kBadLogits || *ends == FinishReason::kNoCandidate) return sequence->Fail(*ends, -1);
  if (record_.on()) record_.Leave(where, *sequence, sequence->seat.home, kLeaveFinished, now_ns);
  batcher_.Remove(sequence, &changes_);
  TellOfPages(where.micro_batch);
  EndSequence(sequence, *ends, -1);
}

// The sampled token becomes one of the sequence's, of which the desk is told. Why the sequence ends now, if it does.
std::optional<FinishReason> Pipeline::TakeToken(StepRecorder::Where where, Sequence* sequence, const LogitRow& logit,
                                                uint64_t now_ns) {
  if (sequence->length == sequence->length_max) return FinishReason::kLength;  // it wants its prompt alone
  if (logit.result.outcome != SampleOutcome::kToken) {
    const bool none = logit.result.outcome == SampleOutcome::kNoCandidate;
    return none ? FinishReason::kNoCandidate : FinishReason::kBadLogits;
  }
  const int32_t token = logit.result.token;
  statistics_.sampled_tokens.Add(1);
  for (const int32_t stop : sequence->sampling.stop_tokens) {
    if (token != stop) continue;
    sequence->stop_token = token;
    return FinishReason::kStopToken;
  }
  const uint32_t index = sequence->length++;
  sequence->log.tokens[index] = token;
  sequence->recovery.losses_in_vain = 0;
  sequence->log.logprobs[index - sequence->prompt_tokens] = logit.result.logprob;
  if (sequence->sampling.history.output_counts != nullptr) sequence->sampling.history.AddOutput(token);
  PipelineEvent event;
  event.kind = PipelineEvent::Kind::kToken;
  event.token_index = index;
  event.sequence = sequence;
  event.time_ns = now_ns;
  Say(event);
  if (record_.on()) record_.Token(where, *sequence, index - sequence->prompt_tokens, now_ns);
  if (sequence->length == sequence->length_max) return FinishReason::kLength;
  return std::nullopt;
}

// The next follower has its first token. Until now it has been where its leader was.
void Pipeline::StartFollower(Sequence* leader, const LogitRow& logit, uint64_t now_ns) {
  const StepRecorder::Where where = {leader->micro_batch, batches_[leader->micro_batch].step};
  Sequence* const follower = batcher_.TakeFollower(leader);
  follower->times = leader->times;
  follower->timed_until_ns = now_ns;
  follower->times_so_far.Store(follower->times);
  const std::optional<FinishReason> ends = TakeToken(where, follower, logit, now_ns);
  if (ends.has_value()) {
    follower->Enter(SequenceState::kIdle);
    SayFinished(follower, *ends, -1);
  } else if (batcher_.SeatFollower(follower, *leader, &changes_)) {
    TellOfPages(where.micro_batch);
    TellFork(leader->seat.number, follower->seat, follower->computed);
    if (record_.on()) record_.Join(where, *follower, now_ns);
  } else {
    ready_unchecked_ |= batcher_.HomesMissing();
  }
}

// REQUIRES: the sequence is in no micro-batch and not in the ready queue. It is the desk's again, and so are those that
// follow it, which end as it does.
void Pipeline::EndSequence(Sequence* sequence, FinishReason reason, int home) {
  // One that ends at the boundary of its first loss has not begun to recover.
  const bool recovering = sequence->recovery.lost_ns != 0 && sequence->times.recoveries > 0;
  if (recovering) sequence->times.recovery_ns += Now() - sequence->recovery.lost_ns;
  while (Sequence* const follower = batcher_.TakeFollower(sequence)) {
    follower->Enter(SequenceState::kIdle);
    follower->times = sequence->times;
    follower->timed_until_ns = sequence->timed_until_ns;
    SayFinished(follower, reason, home);
  }
  SayFinished(sequence, reason, home);
}

void Pipeline::SayFinished(Sequence* sequence, FinishReason reason, int home) {
  PipelineEvent event;
  event.kind = PipelineEvent::Kind::kFinished;
  event.reason = reason;
  event.home = static_cast<int16_t>(home);
  event.sequence = sequence;
  event.time_ns = options_.now_ns();
  Say(event);
}

}  // namespace fastdecode
