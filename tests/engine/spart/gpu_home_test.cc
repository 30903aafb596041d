// The books of a home that is a GPU: what its kernels are told fits together, whatever comes and goes.
#include "engine/spart/cuda/gpu_home.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/spart/soft_device.h"

namespace fastdecode {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kMicroBatches = 2, kSequences = 6, kRowsMax = 64, kContext = 200;
constexpr int kIndex = 3;  // of the home in step tables

RPartShape Shape() {
  RPartShape shape;
  shape.layers = 2;
  shape.kv_heads = 2;
  shape.group = 2;
  shape.head_dim = 16;
  shape.scale = 0.25f;
  shape.micro_batches = kMicroBatches;
  shape.max_rows = kRowsMax;
  shape.max_context = kContext;
  return shape;
}

uint64_t PagesBytes(uint32_t pages) {
  return pages * KvPool::PageBytesAllLayers(Shape().attention(), static_cast<int>(Shape().layers));
}

absl::StatusOr<std::unique_ptr<GpuHome>> MakeHome(SoftDevice* device, uint64_t kv_bytes) {
  GpuHomeOptions options;
  options.kv_bytes = kv_bytes;
  options.sequences_max = kSequences;
  options.read_rate = 3.2e12;
  return GpuHome::Create(options, Shape(), device);
}

// One row or more of a sequence in a step; sequence 0: rows of another home.
struct Member {
  uint64_t sequence;
  uint32_t position, rows;
};

// A home, told what a pipeline tells it, and the page tables as the device has them.
class Rig {
 public:
  explicit Rig(uint32_t pages) : home_(*MakeHome(&device_, PagesBytes(pages))), areas_(kMicroBatches) {
    Attach();
    memory_.board = &board_;
    memory_.entries = entries_;
    memory_.changes = changes_;
  }

  void Attach() {
    link_ = home_->Attach(kIndex, areas_);
    versions_[0] = versions_[1] = 0;
  }

  bool Send(ControlKind kind, uint64_t sequence, uint32_t tokens = 0) {
    const SequenceMessage message = {static_cast<uint32_t>(kind), tokens, sequence};
    return link_->TrySendControl(&message, sizeof(message));
  }

  bool SendRoster(uint32_t micro_batch, const std::vector<Member>& members) {
    RosterMessage header;
    header.micro_batch = micro_batch;
    header.version = ++versions_[micro_batch];
    std::vector<std::byte> message(sizeof(header));
    for (const Member& member : members) {
      if (member.sequence == 0) continue;
      const RosterEntry entry = {member.sequence, 1, member.position, member.rows};
      const auto* const bytes = reinterpret_cast<const std::byte*>(&entry);
      message.insert(message.end(), bytes, bytes + sizeof(entry));
      ++header.entries;
    }
    std::memcpy(message.data(), &header, sizeof(header));
    return link_->TrySendControl(message.data(), message.size());
  }

  // Takes a step of these members, and applies what the device would.
  uint32_t Take(int micro_batch, const std::vector<Member>& members) {
    const uint32_t taken = TakeWith(&area_, micro_batch, members);
    uint32_t here = 0;
    for (const Member& member : members) here += member.sequence == 0 ? 0 : member.rows;
    EXPECT_EQ(taken, here);
    return taken;
  }

  // The same with what the step table has as this home's send area, which is null if the link is lost.
  uint32_t TakeWith(std::byte* send, int micro_batch, const std::vector<Member>& members) {
    StepTable table;
    table.home_areas.resize(kIndex + 2);
    table.home_areas[kIndex].send = send;
    uint32_t home_row = 0;
    for (const Member& member : members) {
      for (uint32_t i = 0; i < member.rows; ++i, ++table.rows) {
        table.homes.push_back(member.sequence == 0 ? kIndex + 1 : kIndex);
        table.home_rows.push_back(member.sequence == 0 ? 77 : home_row++);
        table.positions.push_back(static_cast<int32_t>(member.position + i));
      }
    }
    rows_.assign(static_cast<size_t>(table.rows), {});
    const uint32_t taken = home_->TakeStep(micro_batch, table, memory_, rows_.data());
    for (uint32_t i = 0; i < board_.changes; ++i) tables_[{changes_[i].slot, changes_[i].index}] = changes_[i].page;
    return taken;
  }

  GpuHome& home() { return *home_; }
  EngineLink& link() { return *link_; }
  std::vector<KvEntry> entries() const { return {entries_, entries_ + board_.entries}; }
  uint32_t changes() const { return board_.changes; }
  const std::vector<StepRow>& rows() const { return rows_; }
  uint32_t PageAt(uint32_t slot, uint32_t index) const { return tables_.at({slot, index}); }

 private:
  SoftDevice device_{SoftDevice::Options()};
  std::unique_ptr<GpuHome> home_;
  std::vector<std::byte*> areas_;
  std::byte area_{};
  std::unique_ptr<EngineLink> link_;
  uint32_t versions_[kMicroBatches] = {};
  KvBoard board_;
  KvEntry entries_[kSequences];
  KvTableChange changes_[kSequences * (kContext / kPageTokens + 1)];
  KvStepMemory memory_;
  std::vector<StepRow> rows_;
  std::map<std::pair<uint32_t, uint32_t>, uint32_t> tables_;
};

TEST(GpuHomeTest, TellsTheStepOfItsRows) {
  Rig rig(20);
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
  Rig rig(20);
  const std::vector<Member> members = {{11, 0, 33}};
  ASSERT_TRUE(rig.SendRoster(0, members));
  rig.Take(0, members);
  ASSERT_EQ(rig.entries().size(), 1u);
  EXPECT_EQ(rig.TakeWith(nullptr, 0, members), 0u);
  EXPECT_TRUE(rig.entries().empty());
}

TEST(GpuHomeTest, FilledSequencesGoOn) {
  Rig rig(20);
  ASSERT_TRUE(rig.Send(ControlKind::kFill, 5, 64));
  ASSERT_TRUE(rig.SendRoster(1, {{5, 64, 1}}));
  rig.Take(1, {{5, 64, 1}});
  EXPECT_EQ(rig.changes(), 3u);
}

// What makes no sense loses the link, with the reason; a new one finds the home empty.
TEST(GpuHomeTest, BadMessagesLoseTheLink) {
  Rig rig(20);
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
  EXPECT_FALSE(rig.Send(ControlKind::kTruncate, 1));
  EXPECT_THAT(rig.link().lost_cause(), HasSubstr("kind 3"));
}

// Sequences come, grow and go in both micro-batches, as many as the pages allow: no page is two sequences', no slot is,
// and every token that was written has its page.
TEST(GpuHomeTest, PagesAndSlotsAreNobodyElses) {
  constexpr uint32_t kPages = 17;
  Rig rig(kPages);
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
