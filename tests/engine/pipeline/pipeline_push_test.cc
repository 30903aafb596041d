// Prompts that the S-Part computes and pushes home: what the pipeline tells homes of them.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/pipeline/pipeline.h"

namespace fastdecode {
namespace {

constexpr uint32_t kActive = 8, kPromptTokens = 100, kLengthMax = 1000;
constexpr uint64_t kTimeoutNs = 50'000'000, kTurnNs = 100'000;

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
class PushingSPart final : public SPart, private DeviceHome {
 public:
  void StartStage(int, int stage, StepTable& table) override {
    if (stage == 0) return;
    for (int i = 0; i < table.logit_rows; ++i) table.logits[i].result = {SampleOutcome::kToken, 1, 0, 0};
  }
  StageState PollStage(int) override { return StageState::kDone; }
  void Park() override {}
  DeviceHome* device_home() override { return this; }
  absl::StatusOr<Attached> Attach(int) override { return absl::UnimplementedError("links are the test's"); }
  const std::byte* PushedRows(int, int) const override { return rows_.data(); }
  std::string Describe() const override { return "pushes"; }
  uint64_t weight_bytes() const override { return 1; }

 private:
  std::vector<std::byte> rows_ = std::vector<std::byte>(1 << 20);
};

// To a home that makes progress, unless told otherwise, but takes so many control messages and no bulk; or so many
// segments, and holds them.
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
  void HoldSegments(uint64_t count) { segments_max_ = count; }
  void FreeSegments() { freed_ = segments_; }
  void StandStill() { stands_still_ = true; }
  size_t taken() const { return taken_; }

  std::byte* SendArea(int) override { return area_.data(); }
  const std::byte* ReceiveArea(int) override { return area_.data(); }
  void PostHop(const HopHeader&) override {}
  LinkPoll PollReply(ReplyHeader*) override { return LinkPoll::kEmpty; }
  bool TrySendControl(const void*, size_t) override { return taken_ < room_ && ++taken_ > 0; }
  bool AttendsInStage() const override { return in_stage_; }
  LinkPoll PollControl(void*, size_t*) override { return LinkPoll::kEmpty; }
  std::byte* BulkArea() override { return segments_ < segments_max_ ? segment_.data() : nullptr; }
  void PostBulk(size_t) override { ++segments_; }
  uint64_t BulkFreed() override { return freed_; }
  void RingHome() override {}
  uint64_t Progress() const override { return stands_still_ ? progress_ : ++progress_; }
  bool lost() const override { return lost_; }
  std::string lost_cause() const override { return cause_; }
  void MarkLost(const char* cause) override {
    lost_ = true;
    cause_ = cause;
  }
  uint64_t epoch() const override { return 1; }
  const LinkSize& size() const override { return size_; }
  std::string peer_name() const override { return "a home"; }
  std::string Describe() const override { return "short"; }

 private:
  const bool in_stage_;
  size_t room_, taken_ = 0;
  mutable uint64_t progress_ = 0;
  uint64_t segments_max_ = 0, segments_ = 0, freed_ = 0;
  bool stands_still_ = false, lost_ = false;
  std::string cause_;
  LinkSize size_;
  std::vector<std::byte> area_ = std::vector<std::byte>(1 << 16);
  std::vector<std::byte> segment_ = std::vector<std::byte>(kPushRowsOffset + (1 << 17));
};

// A GPU that is a home, and a far one to which it pushes.
class PipelinePushTest : public testing::Test {
 protected:
  void AddHomes(ShortLink* far) {
    PipelineCommand add;
    add.kind = PipelineCommand::Kind::kAddHome;
    add.home = 0;
    add.link = &gpu_;
    add.pages = 20;
    add.read_mb_per_s = 2'000'000;
    ASSERT_TRUE(pipeline_.TryCommand(add));
    add.home = 1;
    add.link = far;
    add.pages = 100'000;
    add.read_mb_per_s = 100'000;
    ASSERT_TRUE(pipeline_.TryCommand(add));
  }

  void Submit() {
    auto sequence = std::make_unique<Sequence>();
    sequence->id = sequences_.size() + 1;
    sequence->prompt_tokens = sequence->length = kPromptTokens;
    sequence->length_max = kLengthMax;
    sequence->log.tokens.assign(kLengthMax, 1);
    sequence->log.logprobs.assign(kLengthMax - kPromptTokens, 0);
    PipelineCommand command;
    command.kind = PipelineCommand::Kind::kAdd;
    command.sequence = sequence.get();
    if (pipeline_.TryCommand(command)) sequences_.push_back(std::move(sequence));
  }

  void Turn() {
    now_ns_ += kTurnNs;
    pipeline_.TurnOnce();
    for (PipelineEvent event; pipeline_.TryEvent(&event);) ended_ += event.kind == PipelineEvent::Kind::kFinished;
  }

  void CancelAll() {
    for (const auto& sequence : sequences_) sequence->cancelled.store(true);
    pipeline_.NoteCancel();
    for (int t = 0; t < 3000 && ended_ < sequences_.size(); ++t) Turn();
    EXPECT_EQ(ended_, sequences_.size());
  }

  // The first whose prompt is to be pushed; null: none is.
  Sequence* SubmitUntilOneIsPushed() {
    for (int t = 0; t < 3000; ++t) {
      for (const auto& sequence : sequences_) {
        if (sequence->push.seat.home >= 0) return sequence.get();
      }
      if (sequences_.size() < 2 * kActive) Submit();
      Turn();
    }
    return nullptr;
  }

  // Of a home that stands still, once a prompt is to be pushed to it.
  void ExpectLossAfterTheTimeout(ShortLink* far) {
    far->StandStill();
    AddHomes(far);
    ASSERT_NE(SubmitUntilOneIsPushed(), nullptr);
    const uint64_t pushed_ns = now_ns_;
    while (!far->lost() && now_ns_ < pushed_ns + 2 * kTimeoutNs) Turn();
    EXPECT_TRUE(far->lost());
    EXPECT_GE(now_ns_, pushed_ns + kTimeoutNs);
    EXPECT_EQ(far->lost_cause(), "no progress within the hop timeout");
    CancelAll();
  }

  static PipelineOptions Options() {
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
    options.hop_timeout_ns = kTimeoutNs;
    options.now_ns = [] { return now_ns_; };
    return options;
  }

  static inline uint64_t now_ns_ = 1'000'000'000;
  PushingSPart spart_;
  ParkWord desk_;
  ShortLink gpu_{/*in_stage=*/true, SIZE_MAX};
  Pipeline pipeline_{Options(), &spart_, &desk_};
  std::vector<std::unique_ptr<Sequence>> sequences_;
  size_t ended_ = 0;
};

// A home far away, busy with its other peers, that gives no room back: no step of it waits for it, since the rows of
// its sequences' prompts are the GPU's, while their clients come and give up.
TEST_F(PipelinePushTest, AHomeThatIsBehindWithControlMessagesHoldsNewSteps) {
  ShortLink far(/*in_stage=*/false, 4);
  AddHomes(&far);
  size_t given_up = 0;
  for (int t = 0; t < 3000; ++t) {
    if (sequences_.size() - ended_ < 2 * kActive) Submit();
    Turn();
    for (const auto& sequence : sequences_) {
      if (sequence->push.seat.home < 0 || sequence->cancelled.load()) continue;
      sequence->cancelled.store(true);
      pipeline_.NoteCancel();
      ++given_up;
      break;
    }
  }
  EXPECT_GE(given_up, kActive) << "or nothing was pushed";
  EXPECT_EQ(far.taken(), 4u);
  EXPECT_LT(ended_, sequences_.size());

  far.GiveRoom();
  CancelAll();
  EXPECT_FALSE(far.lost());
}

TEST_F(PipelinePushTest, APromptLivesAtItsHomeOnceAllOfItIsStored) {
  ShortLink far(/*in_stage=*/false, SIZE_MAX);
  far.HoldSegments(16);
  AddHomes(&far);
  Sequence* const pushed = SubmitUntilOneIsPushed();
  ASSERT_NE(pushed, nullptr);
  for (int t = 0; t < 1000; ++t) Turn();
  EXPECT_EQ(pushed->push.chunks_open, 0u) << "all is posted";
  EXPECT_EQ(pushed->seat.home, 0);
  EXPECT_EQ(pushed->push.seat.home, 1);
  far.FreeSegments();
  for (int t = 0; t < 1000; ++t) Turn();
  EXPECT_EQ(pushed->seat.home, 1);
  EXPECT_EQ(pushed->push.seat.home, -1);
  far.MarkLost("nobody replies to its hops");
  CancelAll();
}

// No hop goes to it meanwhile, which would be missed.
TEST_F(PipelinePushTest, AHomeThatTakesNoControlMessageIsLostAfterTheTimeout) {
  ShortLink far(/*in_stage=*/false, 0);
  ExpectLossAfterTheTimeout(&far);
  EXPECT_EQ(far.taken(), 0u);
}

TEST_F(PipelinePushTest, AHomeThatStoresNothingOfWhatIsPushedIsLostAfterTheTimeout) {
  ShortLink far(/*in_stage=*/false, SIZE_MAX);
  far.HoldSegments(16);
  ExpectLossAfterTheTimeout(&far);
}

}  // namespace
}  // namespace fastdecode
