// Sequences that share pages of a home that is a GPU: forks, truncations, releases and steps in any order, on a device
// that does a step's work at any time until it is over. Pages are counted by the engine's own ledger.
#include <gtest/gtest.h>

#include <array>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "engine/pipeline/home_ledger.h"
#include "tests/engine/spart/gpu_home_rig.h"

namespace fastdecode {
namespace {

constexpr uint32_t kPages = 23;

// A sequence as it is meant to be: what its tokens are is a number that no other token has.
struct Live {
  uint32_t micro_batch = 0;
  HomeLedger::Holder seat = HomeLedger::kNobody;
  std::vector<uint64_t> tokens = {};
  std::optional<uint32_t> slot = {};  // since its first step
  bool steps = false;                 // a step of it is not over...
  uint32_t before = 0;                // ...in which tokens from there on are stored
};

// A step that was taken, and what the device has yet to do for it.
struct TakenStep {
  std::vector<uint64_t> members;
  std::vector<KvEntry> entries;
  std::vector<KvTableChange> changes;
  std::vector<StepRow> rows;
  std::vector<uint64_t> tokens;  // [row]
  bool is_done = false;
};

class GpuHomeForksTest : public testing::Test {
 protected:
  GpuHomeForksTest() { ledger_.AddHome(0, kPages); }

  uint32_t UpTo(uint32_t most) { return std::uniform_int_distribution<uint32_t>(0, most)(random_); }

  void Open(uint32_t m) { live_[++last_id_] = {.micro_batch = m, .seat = ledger_.Open(0)}; }

  // Whoever is chosen has no step that is not over; null: everybody has.
  Live* Choose(uint64_t* id) {
    std::vector<uint64_t> idle;
    for (const auto& [one, sequence] : live_) {
      if (!sequence.steps) idle.push_back(one);
    }
    if (idle.empty()) return nullptr;
    *id = idle[UpTo(static_cast<uint32_t>(idle.size()) - 1)];
    return &live_[*id];
  }

  void Begin(uint32_t m) {
    TakenStep step;
    std::vector<Member> members;
    for (auto& [id, sequence] : live_) {
      if (sequence.micro_batch != m || UpTo(2) == 0) continue;
      const auto length = static_cast<uint32_t>(sequence.tokens.size());
      const uint32_t rows = UpTo(2) > 0 ? 1 : 1 + UpTo(39), end = length + rows;
      if (end > kContext || step.tokens.size() + rows > kRowsMax) continue;
      if (!ledger_.TakeForStep(sequence.seat, length, end, /*is_whole=*/true)) {
        ++refused_;
        continue;
      }
      members.push_back({id, length, rows});
      step.members.push_back(id);
      sequence.steps = true;
      sequence.before = length;
      for (uint32_t i = 0; i < rows; ++i) {
        sequence.tokens.push_back(++last_token_);
        step.tokens.push_back(last_token_);
      }
    }
    if (members.empty()) return;
    ASSERT_TRUE(rig_.SendRoster(m, members)) << rig_.link().lost_cause();
    rig_.Take(static_cast<int>(m), members);
    step.entries = rig_.entries();
    step.changes = rig_.change_list();
    step.rows = rig_.rows();
    for (size_t i = 0; i < step.members.size(); ++i) live_[step.members[i]].slot = step.entries[i].slot;
    steps_[m] = step;
  }

  // What the kernels of a step do: first the tables, then what is copied and appended.
  void Do(TakenStep* step) {
    if (step->is_done) return;
    step->is_done = true;
    for (const KvTableChange& change : step->changes) {
      ASSERT_LT(change.page, kPages);
      table_[{change.slot, change.index}] = change.page;
    }
    for (size_t r = 0; r < step->rows.size(); ++r) {
      const StepRow& row = step->rows[r];
      const auto position = static_cast<uint32_t>(row.position);
      auto& page = pages_[table_.at({row.slot, position / kPageTokens})];
      if (row.copied_page != kNoCopy) {
        ++copies_;
        const auto& from = pages_[row.copied_page];
        std::copy_n(from.begin(), position % kPageTokens, page.begin());
      }
      page[position % kPageTokens] = step->tokens[r];
    }
    for (const uint64_t id : step->members) ASSERT_NO_FATAL_FAILURE(ExpectItsTokens(id));
  }

  void End(uint32_t m) {
    if (!steps_[m].has_value()) return;
    ASSERT_NO_FATAL_FAILURE(Do(&*steps_[m]));
    rig_.home().EndStep(static_cast<int>(m));
    for (const uint64_t id : steps_[m]->members) {
      live_[id].steps = false;
      ledger_.EndStep(live_[id].seat);
    }
    steps_[m].reset();
  }

  void ExpectItsTokens(uint64_t id) {
    const Live& sequence = live_[id];
    for (size_t p = 0; p < sequence.tokens.size(); ++p) {
      const uint32_t page = table_.at({*sequence.slot, static_cast<uint32_t>(p / kPageTokens)});
      ASSERT_EQ(pages_[page][p % kPageTokens], sequence.tokens[p]) << "sequence " << id << " position " << p;
    }
  }

  void Fork() {
    if (live_.empty() || live_.size() == kSequences) return;
    auto chosen = live_.begin();
    std::advance(chosen, UpTo(static_cast<uint32_t>(live_.size()) - 1));
    const uint64_t id = chosen->first;
    const Live* const parent = &chosen->second;
    if (parent->tokens.empty()) return;
    const auto length = static_cast<uint32_t>(parent->tokens.size());
    // In the midst of a step those of its pages are shared that were full before.
    const uint32_t full = parent->before / kPageTokens * kPageTokens;
    const uint32_t tokens = parent->steps ? full : UpTo(1) == 0 ? length : UpTo(length);
    in_steps_ += parent->steps && full > 0;
    Live fork = {.micro_batch = UpTo(kMicroBatches - 1), .seat = ledger_.Fork(parent->seat, tokens)};
    ASSERT_NE(fork.seat, HomeLedger::kNobody);
    fork.tokens.assign(parent->tokens.begin(), parent->tokens.begin() + tokens);
    ASSERT_TRUE(rig_.Fork(id, tokens, ++last_id_)) << rig_.link().lost_cause();
    live_[last_id_] = fork;
    ++forks_;
  }

  void Truncate() {
    uint64_t id = 0;
    Live* const sequence = Choose(&id);
    if (sequence == nullptr || sequence->tokens.empty()) return;
    const auto length = static_cast<uint32_t>(sequence->tokens.size());
    const uint32_t tokens = UpTo(length);
    ASSERT_TRUE(ledger_.Truncate(sequence->seat, length, tokens));
    sequence->tokens.resize(tokens);
    ASSERT_TRUE(rig_.Send(ControlKind::kTruncate, id, tokens)) << rig_.link().lost_cause();
  }

  void Release() {
    uint64_t id = 0;
    Live* const sequence = Choose(&id);
    if (sequence == nullptr) return;
    ledger_.Release(sequence->seat);
    ASSERT_TRUE(rig_.Send(ControlKind::kRelease, id));
    live_.erase(id);
  }

  // The home never has more pages in use than the engine counts, and as many when no step runs.
  void ExpectCountsAgree() {
    ledger_.CheckInvariants();
    const StatsMessage counts = rig_.Counts();
    const uint64_t used = counts.pages_total - counts.pages_free;
    bool any = false;
    for (const auto& step : steps_) any |= step.has_value();
    ASSERT_LE(used, ledger_.pages_used(0));
    if (!any) {
      ASSERT_EQ(used, ledger_.pages_used(0));
    }
    most_used_ = std::max(most_used_, used);
  }

  void DoAnything() {
    const uint32_t operation = UpTo(99), m = UpTo(kMicroBatches - 1);
    if (live_.empty() || (live_.size() < kSequences && UpTo(19) == 0)) Open(m);
    if (operation < 35) {
      if (!steps_[m].has_value()) Begin(m);
    } else if (operation < 55) {
      if (steps_[m].has_value()) Do(&*steps_[m]);
    } else if (operation < 75) {
      End(m);
    } else if (operation < 88) {
      Fork();
    } else if (operation < 94) {
      Truncate();
    } else {
      Release();
    }
  }

  std::mt19937 random_{7};
  GpuHomeRig rig_{kPages};
  HomeLedger ledger_{/*open_pages=*/false, kSequences};
  std::map<uint64_t, Live> live_;
  std::array<std::optional<TakenStep>, kMicroBatches> steps_;
  // The device's.
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> table_;  // by slot and index
  std::array<std::array<uint64_t, kPageTokens>, kPages> pages_ = {};

  uint64_t last_id_ = 0, last_token_ = 0, most_used_ = 0;
  int refused_ = 0, copies_ = 0, forks_ = 0, in_steps_ = 0;
};

TEST_F(GpuHomeForksTest, EverySequenceKeepsItsTokens) {
  for (int i = 0; i < 50000; ++i) {
    SCOPED_TRACE(testing::Message() << "operation " << i);
    DoAnything();
    if (HasFatalFailure()) return;
    ASSERT_NO_FATAL_FAILURE(ExpectCountsAgree());
    if (i % 5000 != 4999) continue;
    for (uint32_t m = 0; m < kMicroBatches; ++m) ASSERT_NO_FATAL_FAILURE(End(m));
    ASSERT_NO_FATAL_FAILURE(ExpectCountsAgree());
    while (!live_.empty()) Release();
    EXPECT_EQ(rig_.Counts().pages_free, kPages) << "a page leaked";
  }
  EXPECT_GT(copies_, 1000);
  EXPECT_GT(forks_, 1000);
  EXPECT_GT(in_steps_, 100);
  EXPECT_GT(refused_, 100) << "the home was never full";
  EXPECT_EQ(most_used_, kPages);
}

// The page that is copied is nobody's until the step is over, but for the one that copies it.
TEST(GpuHomeCopiesTest, KeepThePageUntilTheStepIsOver) {
  GpuHomeRig rig(4);
  ASSERT_TRUE(rig.Send(ControlKind::kFill, 1, 40));
  ASSERT_TRUE(rig.Fork(1, 36, 2));
  EXPECT_EQ(rig.Counts().pages_free, 2u);
  const std::vector<Member> both = {{1, 40, 2}, {2, 36, 1}};
  ASSERT_TRUE(rig.SendRoster(0, {both[0]}));
  rig.Take(0, {both[0]});
  const uint32_t slot = rig.entries()[0].slot, shared = rig.rows()[0].copied_page;
  EXPECT_EQ(rig.changes(), 2u) << "the page before was never told";
  EXPECT_NE(shared, kNoCopy);
  EXPECT_NE(shared, rig.PageAt(slot, 1));
  EXPECT_EQ(rig.rows()[1].copied_page, kNoCopy) << "the entry's first row alone copies";
  ASSERT_TRUE(rig.SendRoster(1, {both[1]}));
  rig.Take(1, {both[1]});
  EXPECT_EQ(rig.rows()[0].copied_page, shared) << "another step may be reading it";
  EXPECT_EQ(rig.Counts().pages_free, 0u);
  rig.home().EndStep(0);
  EXPECT_EQ(rig.Counts().pages_free, 0u) << "the other one is copying it";
  rig.home().EndStep(1);
  EXPECT_EQ(rig.Counts().pages_free, 1u);
  rig.home().EndStep(1);
  EXPECT_EQ(rig.Counts().pages_free, 1u) << "once";
}

// Also by a home that ends in the middle of a step.
TEST(GpuHomeCopiesTest, GiveThePageBackWithTheLink) {
  GpuHomeRig rig(4);
  for (int i = 0; i < 3; ++i) {
    ASSERT_TRUE(rig.Send(ControlKind::kFill, 1, 40));
    ASSERT_TRUE(rig.Fork(1, 36, 2));
    ASSERT_TRUE(rig.SendRoster(0, {{2, 36, 1}}));
    rig.Take(0, {{2, 36, 1}});
    if (i == 2) break;
    rig.Attach();
    EXPECT_EQ(rig.Counts().pages_free, 4u);
    rig.home().EndStep(0);
    EXPECT_EQ(rig.Counts().pages_free, 4u);
  }
}

// At the end of a page there is nothing to copy.
TEST(GpuHomeCopiesTest, WholePagesStayShared) {
  GpuHomeRig rig(5);
  ASSERT_TRUE(rig.Send(ControlKind::kFill, 1, 70));
  ASSERT_TRUE(rig.Fork(1, 64, 2));
  ASSERT_TRUE(rig.SendRoster(0, {{1, 70, 1}, {2, 64, 1}}));
  rig.Take(0, {{1, 70, 1}, {2, 64, 1}});
  EXPECT_EQ(rig.rows()[0].copied_page, kNoCopy);
  EXPECT_EQ(rig.rows()[1].copied_page, kNoCopy);
  EXPECT_EQ(rig.Counts().pages_free, 1u);
  const uint32_t first = rig.entries()[0].slot, second = rig.entries()[1].slot;
  EXPECT_NE(first, second);
  EXPECT_EQ(rig.PageAt(first, 1), rig.PageAt(second, 1));
  EXPECT_NE(rig.PageAt(first, 2), rig.PageAt(second, 2));
}

}  // namespace
}  // namespace fastdecode
