// What a step boundary costs the pipeline thread: steps of a model of one layer whose S-Part and homes take no time.
//   boundary_bench [HOMES SEQUENCES [OUTPUT_TOKENS]]
// Prints microseconds a step of a micro-batch, its rows, and nanoseconds a row: the boundary, one hop to each home, and
// reading the events. OUTPUT_TOKENS: the mean length of an answer; each is followed by the next request.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "engine/pipeline/pipeline.h"
#include "numa/clock.h"

namespace fastdecode {
namespace {

constexpr int kMicroBatches = 2;
constexpr uint32_t kPromptTokens = 32;

// Whatever is posted is answered at the next poll.
class InstantLink final : public EngineLink {
 public:
  explicit InstantLink(const RPartShape& shape) : shape_(shape), memory_(1 << 16) {}

  std::byte* SendArea(int) override { return memory_.data(); }
  const std::byte* ReceiveArea(int) override { return memory_.data(); }
  void PostHop(const HopHeader& header) override {
    ReplyHeader& reply = replies_[waiting_++];
    reply = {};
    reply.step = header.step;
    reply.layer = header.layer;
    reply.micro_batch = header.micro_batch;
    reply.payload_bytes = static_cast<uint32_t>(header.rows * shape_.reply_row_bytes());
  }
  LinkPoll PollReply(ReplyHeader* out) override {
    if (waiting_ == 0) return LinkPoll::kEmpty;
    *out = replies_[--waiting_];
    return LinkPoll::kMessage;
  }
  bool TrySendControl(const void*, size_t bytes) override {
    control_bytes_ += bytes;
    return true;
  }
  LinkPoll PollControl(void*, size_t*) override { return LinkPoll::kEmpty; }
  std::byte* BulkArea() override { return nullptr; }
  void PostBulk(size_t) override {}
  uint64_t BulkFreed() override { return 0; }
  void RingHome() override {}
  uint64_t Progress() const override { return 0; }
  bool lost() const override { return false; }
  std::string lost_cause() const override { return ""; }
  void MarkLost(const char* cause) override {
    std::fprintf(stderr, "boundary_bench: %s\n", cause);
    std::abort();
  }
  uint64_t epoch() const override { return 1; }
  const LinkSize& size() const override { return size_; }
  std::string peer_name() const override { return "instant"; }
  std::string Describe() const override { return "instant"; }

 private:
  const RPartShape shape_;
  const LinkSize size_;
  std::vector<std::byte> memory_;
  ReplyHeader replies_[kMicroBatches];
  int waiting_ = 0;
  size_t control_bytes_ = 0;
};

class InstantSPart final : public SPart {
 public:
  void StartStage(int, int stage, StepTable& table) override {
    if (stage == 0) return;
    for (int i = 0; i < table.logit_rows; ++i) {
      if (!table.logits[i].sample) continue;
      table.logits[i].result.outcome = SampleOutcome::kToken;
      table.logits[i].result.token = 7;
    }
  }
  StageState PollStage(int) override { return StageState::kDone; }
  void Park() override {}
  std::string Describe() const override { return "instant"; }
  uint64_t weight_bytes() const override { return 0; }
};

class Bench {
 public:
  Bench(int homes, uint32_t sequences, uint32_t output_tokens) : output_tokens_(output_tokens) {
    shape_.layers = 1;
    shape_.kv_heads = shape_.group = 1;
    shape_.head_dim = 64;
    shape_.micro_batches = kMicroBatches;
    PipelineOptions options;
    options.limits = {.micro_batches = kMicroBatches,
                      .rows_max = sequences / kMicroBatches + 64,
                      .sequences_max = sequences / kMicroBatches,
                      .chunk_tokens_max = 64,
                      .ready_max = sequences};
    options.layers = 1;
    options.vocab = 32;
    options.shape = shape_;
    pipeline_ = std::make_unique<Pipeline>(options, &s_part_, &desk_word_);
    for (int h = 0; h < homes; ++h) {
      links_.push_back(std::make_unique<InstantLink>(shape_));
      PipelineCommand command;
      command.kind = PipelineCommand::Kind::kAddHome;
      command.link = links_.back().get();
      command.home = h;
      command.pages = 1 << 20;
      if (!pipeline_->TryCommand(command)) std::abort();
      pipeline_->TurnOnce();
    }
    for (uint32_t i = 0; i < sequences; ++i) {
      all_.push_back(std::make_unique<Sequence>());
      Submit(all_.back().get());
    }
  }

  // So many steps of a micro-batch; events are taken as they come.
  void Run(uint64_t steps) {
    const uint64_t until = pipeline_->statistics().steps.value() + steps;
    while (pipeline_->statistics().steps.value() < until) {
      pipeline_->TurnOnce();
      PipelineEvent event;
      while (pipeline_->TryEvent(&event)) {
        if (event.kind == PipelineEvent::Kind::kFinished) Submit(event.sequence);
      }
    }
  }
  size_t active() const { return pipeline_->batcher().active_count(); }

 private:
  void Submit(Sequence* sequence) {
    sequence->id = ++last_id_;
    sequence->prompt_tokens = sequence->length = kPromptTokens;
    sequence->length_max = kPromptTokens + output_tokens_ / 2 + static_cast<uint32_t>(last_id_ * 7919 % output_tokens_);
    sequence->fill_tokens = kPromptTokens - 1;
    sequence->log.tokens.resize(sequence->length_max);
    sequence->log.logprobs.resize(sequence->length_max - kPromptTokens);
    PipelineCommand command;
    command.sequence = sequence;
    while (!pipeline_->TryCommand(command)) pipeline_->TurnOnce();
  }

  const uint32_t output_tokens_;
  RPartShape shape_;
  InstantSPart s_part_;
  ParkWord desk_word_;
  std::unique_ptr<Pipeline> pipeline_;
  std::vector<std::unique_ptr<InstantLink>> links_;
  std::vector<std::unique_ptr<Sequence>> all_;
  uint64_t last_id_ = 0;
};

int Main(int argc, char** argv) {
  const int homes = argc > 2 ? std::atoi(argv[1]) : 16;
  const int sequences = argc > 2 ? std::atoi(argv[2]) : 4096;
  const int output_tokens = argc > 3 ? std::atoi(argv[3]) : 1000;
  if (homes < 1 || homes > kMaxHomes || sequences < kMicroBatches || output_tokens < 2) {
    std::fprintf(stderr, "usage: boundary_bench [HOMES SEQUENCES [OUTPUT_TOKENS]]\n");
    return 1;
  }
  Bench bench(homes, static_cast<uint32_t>(sequences), static_cast<uint32_t>(output_tokens));
  bench.Run(400);
  constexpr uint64_t kSteps = 2000;
  const uint64_t start_ns = NowNs();
  bench.Run(kSteps);
  const double us = static_cast<double>(NowNs() - start_ns) / 1e3 / kSteps;
  const double rows = static_cast<double>(bench.active()) / kMicroBatches;
  std::printf("%d homes, %d sequences, answers of %d tokens: %.1f us a step, %.0f rows in it, %.1f ns a row\n", homes,
              sequences, output_tokens, us, rows, us * 1e3 / rows);
  return 0;
}

}  // namespace
}  // namespace fastdecode

int main(int argc, char** argv) { return fastdecode::Main(argc, argv); }
