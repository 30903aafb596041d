#ifndef FASTDECODE_TESTS_ENGINE_RPART_STAGE_RIG_H_
#define FASTDECODE_TESTS_ENGINE_RPART_STAGE_RIG_H_

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "engine/rpart/home.h"
#include "engine/rpart/stage_home.h"
#include "tests/engine/rpart/test_engine.h"

namespace fastdecode {

inline constexpr uint64_t kStageRigKvBytes = uint64_t{16} << 20;

// A home to whose sequences some threads of a team attend, and the engine's end of its link. Beside it a home with a
// team of its own, for the rows of its steps and what is to come of them.
class StageRig {
 public:
  StageRig(const RPartShape& shape, int team, std::vector<int> threads)
      : shape_(shape),
        team_("stages", std::vector<int>(static_cast<size_t>(team), -1), PollMode::kYield),
        member_(static_cast<size_t>(team), -1),
        home_(MakeTestHome(static_cast<int>(threads.size()), kStageRigKvBytes, /*peers=*/1, /*sequences_max=*/64)),
        other_home_(MakeTestHome(2, kStageRigKvBytes)),
        other_(other_home_.get(), shape) {
    for (size_t i = 0; i < threads.size(); ++i) member_[static_cast<size_t>(threads[i])] = static_cast<int>(i);
    Attach(static_cast<int>(threads.size()));
  }

  void Attach(int threads) {
    absl::StatusOr<std::unique_ptr<EngineLink>> link = home_->AttachInStages(shape_, &team_, threads);
    FD_CHECK(link.ok(), "the test's home cannot be attached");
    link_ = *std::move(link);
    versions_ = {};
  }
  void Detach() {
    link_.reset();
    home_->Detach();
  }

  template <class T>
  void Send(const T& message) {
    EXPECT_TRUE(link_->TrySendControl(&message, sizeof(message)));
  }
  void SendRoster(int micro_batch, const std::vector<TestEntry>& entries, uint64_t step) {
    const std::vector<std::byte> message =
        RosterOf(micro_batch, ++versions_[static_cast<size_t>(micro_batch)], entries, step);
    EXPECT_TRUE(link_->TrySendControl(message.data(), message.size()));
  }

  // One layer, as the S-Part's stages do it.
  void Layer(int micro_batch, uint64_t step, int layer, uint32_t rows) {
    home_->stage_home()->Begin(micro_batch, step, layer, rows);
    team_.Run(
        [](void* self, int t, int /*n*/) {
          const StageRig& rig = *static_cast<StageRig*>(self);
          const int member = rig.member_[static_cast<size_t>(t)];
          if (member >= 0) rig.home_->stage_home()->RunShare(member);
        },
        this);
    home_->stage_home()->End();
  }

  // A step at both homes, whose o must be the same.
  void Step(int micro_batch, const std::vector<TestEntry>& entries) {
    SendRoster(micro_batch, entries, ++step_);
    std::vector<std::vector<std::byte>> o(entries.size());
    for (uint32_t layer = 0; layer < shape_.layers; ++layer) {
      const HopHeader hop = other_.WriteRows(micro_batch, entries, layer);
      std::memcpy(link_->SendArea(micro_batch), other_.link().SendArea(micro_batch), hop.payload_bytes);
      Layer(micro_batch, step_, static_cast<int>(layer), hop.rows);
      const std::byte* from = link_->ReceiveArea(micro_batch);
      for (size_t i = 0; i < entries.size(); ++i) {
        const size_t bytes = entries[i].tokens * shape_.reply_row_bytes();
        o[i].insert(o[i].end(), from, from + bytes);
        from += bytes;
      }
    }
    const TestStep expected = other_.Step(micro_batch, entries);
    ASSERT_FALSE(expected.lost || !expected.failing_rows.empty());
    for (size_t i = 0; i < entries.size(); ++i) EXPECT_EQ(o[i], expected.o[i]) << "entry " << i;
  }

  // The last of what the home has said.
  std::optional<StatsMessage> Stats() {
    Send(IdleMessage());
    std::vector<std::byte> buffer(kControlMessageBytesMax);
    std::optional<StatsMessage> last;
    for (size_t bytes = 0; link_->PollControl(buffer.data(), &bytes) == LinkPoll::kMessage;) {
      EXPECT_EQ(bytes, sizeof(StatsMessage));
      std::memcpy(&last.emplace(), buffer.data(), sizeof(StatsMessage));
    }
    return last;
  }

  EngineLink& link() { return *link_; }
  TestEngine& other() { return other_; }

 private:
  const RPartShape shape_;
  TicketTeam team_;
  std::vector<int> member_;  // [thread of the team], -1: it does not attend
  std::unique_ptr<Home> home_, other_home_;
  TestEngine other_;
  std::unique_ptr<EngineLink> link_;
  std::array<uint32_t, 2> versions_ = {};  // [micro-batch], of its roster
  uint64_t step_ = 0;
};

inline SequenceMessage AboutSequence(ControlKind kind, uint64_t sequence, uint32_t tokens) {
  return {static_cast<uint32_t>(kind), tokens, sequence};
}

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_ENGINE_RPART_STAGE_RIG_H_
