// Prompts that the S-Part computes and pushes home: what the pipeline tells homes of them.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "engine/pipeline/pipeline.h"

namespace fastdecode {
namespace {

constexpr uint32_t kActive = 8, kPromptTokens = 100, kLengthMax = 1000;

RPartShape OneLayer() {
  RPartShape shape;
  shape.layers = shape.kv_heads = shape.group = 1;
  shape.head_dim = 16;
  shape.element_type = static_cast<uint32_t>(ElementType::kBf16);
  shape.kv_type = static_cast<uint32_t>(KvType::kF32);
  shape.scale = 1;
  shape.micro_batches = 2;
  shape.max_rows = 512;
  shape.max_context = kLengthMax;
  return shape;
}

// Has the rows of prompts, and takes no time.
class PushingSPart final : public SPart {
 public:
  void StartStage(int, int stage, StepTable& table) override {
    if (stage == 0) return;
    for (int i = 0; i < table.logit_rows; ++i) table.logits[i].result = {SampleOutcome::kToken, 1, 0, 0};
  }
  StageState PollStage(int) override { return StageState::kDone; }
  void Park() override {}
  const std::byte* PushedRows(int, int) const override { return rows_.data(); }
  std::string Describe() const override { return "pushes"; }
  uint64_t weight_bytes() const override { return 1; }

 private:
  std::vector<std::byte> rows_ = std::vector<std::byte>(1 << 20);
};

// To a home that makes progress, but takes so many control messages and no bulk.
class ShortLink final : public EngineLink {
 public:
  ShortLink(bool in_stage, size_t room) : in_stage_(in_stage), room_(room) {
    size_.slots = 2;
    size_.hop_payload_bytes_max = size_.reply_payload_bytes_max = area_.size();
    if (in_stage) return;
    size_.bulk_segments = 16;
    size_.bulk_segment_bytes_max = kPushRowsOffset + (1 << 17);
  }
  void GiveRoom() { room_ = SIZE_MAX; }
  size_t taken() const { return taken_; }

  std::byte* SendArea(int) override { return area_.data(); }
  const std::byte* ReceiveArea(int) override { return area_.data(); }
  void PostHop(const HopHeader&) override {}
  LinkPoll PollReply(ReplyHeader*) override { return LinkPoll::kEmpty; }
  bool TrySendControl(const void*, size_t) override { return taken_ < room_ && ++taken_ > 0; }
  bool AttendsInStage() const override { return in_stage_; }
  LinkPoll PollControl(void*, size_t*) override { return LinkPoll::kEmpty; }
  std::byte* BulkArea() override { return nullptr; }
  void PostBulk(size_t) override {}
  uint64_t BulkFreed() override { return 0; }
  void RingHome() override {}
  uint64_t Progress() const override { return ++progress_; }
  bool lost() const override { return lost_; }
  std::string lost_cause() const override { return ""; }
  void MarkLost(const char*) override { lost_ = true; }
  uint64_t epoch() const override { return 1; }
  const LinkSize& size() const override { return size_; }
  std::string peer_name() const override { return "a home"; }
  std::string Describe() const override { return "short"; }

 private:
  const bool in_stage_;
  size_t room_, taken_ = 0;
  mutable uint64_t progress_ = 0;
  bool lost_ = false;
  LinkSize size_;
  std::vector<std::byte> area_ = std::vector<std::byte>(1 << 16);
};

// A home far away, busy with its other peers, that gives no room back: no step of it waits for it, since the rows of
// its sequences' prompts are the GPU's, while their clients come and give up.
TEST(PipelinePushTest, AHomeThatIsBehindWithControlMessagesHoldsNewSteps) {
  PipelineOptions options;
  options.limits.micro_batches = 2;
  options.limits.rows_max = 512;
  options.limits.sequences_max = options.limits.active_max = kActive;
  options.limits.chunk_tokens_max = 256;
  options.limits.ready_max = 1024;
  options.limits.weight_bytes = 1 << 20;
  options.limits.page_bytes = 1 << 10;
  options.layers = 1;
  options.vocab = 8;
  options.shape = OneLayer();
  PushingSPart spart;
  ParkWord scheduler;
  Pipeline pipeline(options, &spart, &scheduler);
  ShortLink gpu(/*in_stage=*/true, SIZE_MAX), far(/*in_stage=*/false, 4);
  PipelineCommand add;
  add.kind = PipelineCommand::Kind::kAddHome;
  add.home = 0;
  add.link = &gpu;
  add.pages = 20;
  add.read_mb_per_s = 2'000'000;
  ASSERT_TRUE(pipeline.TryCommand(add));
  add.home = 1;
  add.link = &far;
  add.pages = 100'000;
  add.read_mb_per_s = 100'000;
  ASSERT_TRUE(pipeline.TryCommand(add));

  std::vector<std::unique_ptr<Sequence>> sequences;
  size_t ended = 0, given_up = 0;
  const auto submit = [&] {
    auto sequence = std::make_unique<Sequence>();
    sequence->id = sequences.size() + 1;
    sequence->prompt_tokens = sequence->length = kPromptTokens;
    sequence->length_max = kLengthMax;
    sequence->tokens.assign(kLengthMax, 1);
    sequence->logprobs.assign(kLengthMax - kPromptTokens, 0);
    PipelineCommand command;
    command.kind = PipelineCommand::Kind::kAdd;
    command.sequence = sequence.get();
    if (pipeline.TryCommand(command)) sequences.push_back(std::move(sequence));
  };
  const auto turn = [&] {
    pipeline.TurnOnce();
    for (PipelineEvent event; pipeline.TryEvent(&event);) ended += event.kind == PipelineEvent::Kind::kFinished;
  };
  for (int t = 0; t < 3000; ++t) {
    if (sequences.size() - ended < 2 * kActive) submit();
    turn();
    for (const auto& sequence : sequences) {
      if (sequence->push_home < 0 || sequence->cancelled.load()) continue;
      sequence->cancelled.store(true);
      pipeline.NoteCancel();
      ++given_up;
      break;
    }
  }
  EXPECT_GE(given_up, kActive) << "or nothing was pushed";
  EXPECT_EQ(far.taken(), 4u);
  EXPECT_LT(ended, sequences.size());

  far.GiveRoom();
  for (const auto& sequence : sequences) sequence->cancelled.store(true);
  pipeline.NoteCancel();
  for (int t = 0; t < 3000 && ended < sequences.size(); ++t) turn();
  EXPECT_EQ(ended, sequences.size());
  EXPECT_FALSE(far.lost());
}

}  // namespace
}  // namespace fastdecode
