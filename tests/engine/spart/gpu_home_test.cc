// The books of a home that is a GPU: what its kernels are told fits together, whatever comes and goes.
#include "engine/spart/cuda/gpu_home.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "tests/engine/spart/gpu_home_rig.h"

namespace fastdecode {
namespace {

using ::testing::HasSubstr;

TEST(GpuHomeTest, TellsTheStepOfItsRows) {
  GpuHomeRig rig(20);
  const std::vector<Member> members = {{0, 9, 2}, {11, 0, 33}, {0, 9, 1}, {12, 0, 1}};
  ASSERT_TRUE(rig.SendRoster(0, members));
  rig.Take(0, members);
  const std::vector<KvEntry> entries = rig.entries();
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_EQ(entries[0].row, 2u);
  EXPECT_EQ(entries[0].home_row, 0u);
  EXPECT_EQ(entries[0].rows, 33u);
  EXPECT_EQ(entries[1].row, 36u);
  EXPECT_EQ(entries[1].home_row, 33u);
  EXPECT_EQ(rig.changes(), 3u) << "two pages for 33 tokens, one for one";
  EXPECT_NE(entries[0].slot, entries[1].slot);
  for (size_t r = 0; r < rig.rows().size(); ++r) {
    const uint32_t expected = r >= 2 && r < 35 ? entries[0].slot : r == 36 ? entries[1].slot : kNoSlot;
    EXPECT_EQ(rig.rows()[r].slot, expected) << "row " << r;
  }
  // Rows on their own go on with the same roster, and pages are told once.
  ASSERT_TRUE(rig.SendRoster(0, {{11, 33, 1}, {12, 1, 1}}));
  rig.Take(0, {{11, 33, 1}, {12, 1, 1}});
  EXPECT_EQ(rig.changes(), 0u);
  rig.Take(0, {{11, 34, 1}, {12, 2, 1}});
  EXPECT_EQ(rig.entries()[1].position, 2u);
  // A step with nothing here gets no new roster.
  EXPECT_EQ(rig.Take(0, {{0, 5, 3}}), 0u);
  EXPECT_TRUE(rig.entries().empty());
}

// A step that began while the link is lost, or before there was one, finds rows of this home that are no longer its.
TEST(GpuHomeTest, TakesNothingWithoutALink) {
  GpuHomeRig rig(20);
  const std::vector<Member> members = {{11, 0, 33}};
  ASSERT_TRUE(rig.SendRoster(0, members));
  rig.Take(0, members);
  ASSERT_EQ(rig.entries().size(), 1u);
  EXPECT_EQ(rig.TakeWith(nullptr, 0, members), 0u);
  EXPECT_TRUE(rig.entries().empty());
}

TEST(GpuHomeTest, FilledSequencesGoOn) {
  GpuHomeRig rig(20);
  ASSERT_TRUE(rig.Send(ControlKind::kFill, 5, 64));
  ASSERT_TRUE(rig.SendRoster(1, {{5, 64, 1}}));
  rig.Take(1, {{5, 64, 1}});
  EXPECT_EQ(rig.changes(), 3u);
}

// What makes no sense loses the link, with the reason; a new one finds the home empty.
TEST(GpuHomeTest, BadMessagesLoseTheLink) {
  GpuHomeRig rig(20);
  ASSERT_TRUE(rig.SendRoster(0, {{1, 0, 1}}));
  rig.Take(0, {{1, 0, 1}});
  EXPECT_FALSE(rig.Send(ControlKind::kFill, 2, kContext + 1));
  EXPECT_TRUE(rig.link().lost());
  EXPECT_THAT(rig.link().lost_cause(), HasSubstr("sequence 2 cannot have 201 tokens"));
  EXPECT_FALSE(rig.Send(ControlKind::kRelease, 1)) << "nothing is taken any more";
  ReplyHeader reply;
  EXPECT_EQ(rig.link().PollReply(&reply), LinkPoll::kLost);
  rig.Attach();
  EXPECT_FALSE(rig.link().lost());
  ASSERT_TRUE(rig.SendRoster(0, {{1, 0, 1}}));
  rig.Take(0, {{1, 0, 1}});
  EXPECT_EQ(rig.changes(), 1u);
  EXPECT_FALSE(rig.Send(ControlKind::kStats, 1));
  EXPECT_THAT(rig.link().lost_cause(), HasSubstr("kind 8"));
}

// Sequences come, grow and go in both micro-batches, as many as the pages allow: no page is two sequences', no slot is,
// and every token that was written has its page.
TEST(GpuHomeTest, PagesAndSlotsAreNobodyElses) {
  constexpr uint32_t kPages = 17;
  GpuHomeRig rig(kPages);
  struct Live {
    uint32_t micro_batch, length = 0;
  };
  std::map<uint64_t, Live> live;
  std::mt19937 random(5);
  const auto pages_of = [](uint32_t tokens) { return (tokens + kPageTokens - 1) / kPageTokens; };
  const auto pages_used = [&] {
    uint32_t used = 0;
    for (const auto& [id, sequence] : live) used += pages_of(sequence.length);
    return used;
  };
  std::map<uint64_t, uint32_t> slots;  // by sequence
  uint64_t next_id = 1;
  size_t most_used = 0;
  for (int step = 0; step < 3000; ++step) {
    const uint32_t m = random() % kMicroBatches;
    if (live.size() < kSequences && random() % 3 == 0) live[next_id++] = {m};
    std::vector<Member> members;
    uint32_t rows = 0;
    for (auto it = live.begin(); it != live.end();) {
      auto& [id, sequence] = *it;
      const uint32_t wanted = random() % 2 == 0 ? 1 : 1 + random() % 40;
      const uint32_t more = pages_of(sequence.length + wanted) - pages_of(sequence.length);
      const bool fits = pages_used() + more <= kPages && sequence.length + wanted <= kContext;
      if (sequence.micro_batch != m) {
        ++it;
      } else if (!fits || random() % 40 == 0) {
        const bool released = sequence.length == 0 || rig.Send(ControlKind::kRelease, id);
        ASSERT_TRUE(released);
        it = live.erase(it);
      } else {
        if (rows + wanted <= kRowsMax) {
          members.push_back({id, sequence.length, wanted});
          sequence.length += wanted;
          rows += wanted;
        }
        ++it;
      }
    }
    if (members.empty()) continue;
    ASSERT_TRUE(rig.SendRoster(m, members)) << rig.link().lost_cause();
    rig.Take(static_cast<int>(m), members);
    const std::vector<KvEntry> entries = rig.entries();
    ASSERT_EQ(entries.size(), members.size());
    for (size_t i = 0; i < entries.size(); ++i) slots[members[i].sequence] = entries[i].slot;
    std::set<uint32_t> pages, used_slots;
    for (const auto& [id, sequence] : live) {
      if (sequence.length == 0) continue;
      EXPECT_TRUE(used_slots.insert(slots[id]).second);
      for (uint32_t i = 0; i < pages_of(sequence.length); ++i) {
        EXPECT_TRUE(pages.insert(rig.PageAt(slots[id], i)).second) << "step " << step << " sequence " << id;
      }
    }
    EXPECT_TRUE(pages.empty() || *pages.rbegin() < kPages);
    most_used = std::max(most_used, pages.size());
  }
  EXPECT_EQ(most_used, kPages);
}

// Each with the words of a CPU home.
TEST(GpuHomeTest, MessagesThatCannotBeDoneLoseTheLink) {
  GpuHomeRig rig(20);
  const auto expect_lost = [&](bool sent, const char* cause) {
    EXPECT_FALSE(sent);
    EXPECT_EQ(rig.link().lost_cause(), cause);
    rig.Attach();
    ASSERT_TRUE(rig.Send(ControlKind::kFill, 1, 40));
  };
  ASSERT_TRUE(rig.Send(ControlKind::kFill, 1, 40));
  expect_lost(rig.Send(ControlKind::kTruncate, 2), "truncate: no sequence 2 here");
  expect_lost(rig.Send(ControlKind::kTruncate, 1, 41), "truncate: sequence 1 to 41 tokens, but only 40 are stored");
  expect_lost(rig.Fork(2, 0, 3), "fork: no sequence 2 here");
  expect_lost(rig.Fork(1, 40, 1), "fork: sequence 1 exists");
  expect_lost(rig.Fork(1, 41, 2), "fork: 41 tokens of sequence 1, but only 40 are stored");
  for (uint32_t id = 2; id <= kSequences; ++id) ASSERT_TRUE(rig.Fork(1, id, id));
  expect_lost(rig.Fork(1, 1, kSequences + 1), "fork: there are 10 sequences already");
  expect_lost(rig.Send(ControlKind::kReserve, 2, 40), "reserve: sequence 2, but the link has no bulk channel");
  EXPECT_FALSE(rig.Send(ControlKind::kFork, 1));
  EXPECT_THAT(rig.link().lost_cause(), HasSubstr("16 bytes, not 24"));
}

TEST(GpuHomeTest, AnswersHandOversAsLongAsTheyAreRead) {
  GpuHomeRig rig(20);
  ASSERT_TRUE(rig.Send(ControlKind::kFill, 1, 40));
  rig.Counts();
  HandOverMessage message;
  for (const uint64_t sequence : {1, 2}) {
    message.sequence = sequence;
    ASSERT_TRUE(rig.Send(message));
    const std::optional<HandOverAnswer> answer = rig.Receive<HandOverAnswer>();
    ASSERT_TRUE(answer.has_value());
    EXPECT_EQ(answer->kind, static_cast<uint32_t>(ControlKind::kHandOverAnswer));
    EXPECT_EQ(answer->sequence, sequence);
    EXPECT_EQ(answer->outcome, sequence == 1 ? HandOverOutcome::kNoPeer : HandOverOutcome::kNoSequence);
  }
  EXPECT_FALSE(rig.Receive<HandOverAnswer>().has_value());
  message.sequence = 77;
  for (size_t i = 0; i < HomeOutbox::kMessagesMax; ++i) ASSERT_TRUE(rig.Send(message)) << i;
  EXPECT_TRUE(rig.Send(IdleMessage())) << "page counts are dropped";
  EXPECT_FALSE(rig.Send(message));
  EXPECT_EQ(rig.link().lost_cause(), "hand-over of sequence 77: the engine does not read its answers");
  std::byte buffer[sizeof(StatsMessage)];
  size_t bytes = 0;
  EXPECT_EQ(rig.link().PollControl(buffer, &bytes), LinkPoll::kLost);
  rig.Attach();
  EXPECT_FALSE(rig.Receive<HandOverAnswer>().has_value()) << "a new link knows nothing of the answers to the old one";
}

// When it is idle at once; else when something has changed, and the last time is long enough ago.
TEST(GpuHomeTest, SaysWhatPagesThereAre) {
  GpuHomeRig rig(20);
  const StatsMessage none = rig.Counts();
  EXPECT_EQ(none.sequences, 0u);
  EXPECT_EQ(none.idle, 1u);
  EXPECT_EQ(none.pages_total, 20u);
  EXPECT_EQ(none.pages_free, 20u);
  EXPECT_EQ(none.hops + none.busy_ns + none.kv_bytes_read, 0u);
  ASSERT_TRUE(rig.Send(ControlKind::kFill, 1, 40));
  EXPECT_FALSE(rig.Receive<StatsMessage>().has_value()) << "so soon";
  gpu_home_now_ns += kStatsPeriodNs - 1;
  EXPECT_FALSE(rig.Receive<StatsMessage>().has_value());
  gpu_home_now_ns += 1;
  const std::optional<StatsMessage> filled = rig.Receive<StatsMessage>();
  ASSERT_TRUE(filled.has_value()) << "though nothing else was sent";
  EXPECT_EQ(filled->sequences, 1u);
  EXPECT_EQ(filled->idle, 0u);
  EXPECT_EQ(filled->pages_free, 18u);
  gpu_home_now_ns += kStatsPeriodNs;
  EXPECT_FALSE(rig.Receive<StatsMessage>().has_value()) << "nothing has changed";
  ASSERT_TRUE(rig.SendRoster(0, {{1, 40, 30}}));
  rig.Take(0, {{1, 40, 30}});
  ASSERT_TRUE(rig.Send(ControlKind::kTruncate, 1, 10));
  const std::optional<StatsMessage> stepped = rig.Receive<StatsMessage>();
  ASSERT_TRUE(stepped.has_value());
  EXPECT_EQ(stepped->pages_free, 17u) << "as it was when the step was taken";
  EXPECT_FALSE(rig.Receive<StatsMessage>().has_value());
  EXPECT_EQ(rig.Counts().pages_free, 19u) << "at once";
}

TEST(GpuHomeTest, SaysWhatThereIsTooLittleOf) {
  SoftDevice::Options options;
  options.memory_bytes = uint64_t{1} << 20;
  SoftDevice device(options);
  const absl::Status no_page = MakeHome(&device, PagesBytes(1) - 1).status();
  EXPECT_EQ(no_page.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(no_page.message()), HasSubstr("--gpu-kv-gib: "));
  EXPECT_THAT(std::string(no_page.message()), HasSubstr("not even one page"));
  const absl::Status too_much = MakeHome(&device, uint64_t{1} << 21).status();
  EXPECT_EQ(too_much.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(too_much.message()), HasSubstr("--gpu-kv-gib: "));
  EXPECT_THAT(std::string(too_much.message()), HasSubstr("free"));
  const auto home = MakeHome(&device, PagesBytes(3) + 100);
  ASSERT_TRUE(home.ok());
  EXPECT_EQ((*home)->Describe().pages, 3u);
  EXPECT_EQ((*home)->Describe().read_mb_per_s, 3'200'000u);
}

}  // namespace
}  // namespace fastdecode
