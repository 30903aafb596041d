// Attention over shared prefixes: bit for bit what it is over private copies of the same KV.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "tests/engine/rpart/hop_rig.h"

namespace fastdecode {
namespace {

// Sequences as trees of forks: each begins with `shared` tokens of `parent` and goes on to `tokens` by itself. 0 is no
// sequence: such a one shares nothing.
struct Member {
  uint64_t id = 0;
  uint64_t parent = 0;
  uint32_t shared = 0;
  uint32_t tokens = 0;
};

// The member, and with it those that begin with its tokens, each forked when there are just so many.
void MakeWithForks(HopRig* rig, const std::vector<Member>& members, const Member& member) {
  std::vector<Member> forks;
  for (const Member& fork : members) {
    if (fork.parent == member.id) forks.push_back(fork);
  }
  std::sort(forks.begin(), forks.end(), [](const Member& a, const Member& b) { return a.shared < b.shared; });
  for (const Member& fork : forks) {
    rig->Fill(member.id, fork.shared, member.id);
    rig->Fork(member.id, fork.shared, fork.id);
    MakeWithForks(rig, members, fork);
  }
  rig->Fill(member.id, member.tokens, member.id);
}

// With open pages a fork in the midst of a closed page has it as it was rounded, and is no copy.
void MakeForked(HopRig* rig, const std::vector<Member>& members) {
  if (rig->has_open_pages()) {
    for (const Member& member : members) {
      if (member.parent == 0) MakeWithForks(rig, members, member);
    }
    return;
  }
  for (const Member& member : members) {
    if (member.parent > 0) rig->Fork(member.parent, member.shared, member.id);
    if (member.tokens > member.shared) rig->Fill(member.id, member.tokens, member.id);
  }
}

// The same tokens, with a copy of each for itself.
void MakePrivate(HopRig* rig, const std::vector<Member>& members) {
  std::map<uint64_t, std::vector<std::pair<uint32_t, uint64_t>>> contents;  // [id]: up to which position whose
  for (const Member& member : members) {
    std::vector<std::pair<uint32_t, uint64_t>>& own = contents[member.id];
    for (const auto& [end, content] : contents[member.parent]) {
      if (own.empty() || own.back().first < member.shared) own.emplace_back(std::min(end, member.shared), content);
    }
    if (member.tokens > member.shared) own.emplace_back(member.tokens, member.id);
    for (const auto& [end, content] : own) rig->Fill(member.id, end, content);
  }
}

constexpr uint64_t kForkedBytes = uint64_t{24} << 20;
constexpr uint64_t kPrivateBytes = uint64_t{80} << 20;

// Two steps (with a bad entry one) over forked sequences with any number of threads, and over private copies by one.
// `sharing`: a bit for each layer in which something is shared.
void ExpectTheSame(const RPartShape& shape, const std::vector<Member>& members, const std::vector<Ask>& asked,
                   uint32_t sharing = kAllLayers) {
  const bool has_bad = std::any_of(asked.begin(), asked.end(), [](const Ask& ask) { return ask.bad; });
  std::vector<Outcome> expected;
  {
    HopRig rig(shape, 1, kPrivateBytes);
    MakePrivate(&rig, members);
    for (int i = 0; i < (has_bad ? 1 : 2); ++i) expected.push_back(rig.Step(asked));
    EXPECT_EQ(expected[0].shared_layers, 0u);
  }
  // 3000 floats are room for some of the entries.
  for (const size_t shared_floats : {SIZE_MAX, size_t{3000}}) {
    for (const int threads : {1, 2, 3}) {
      if (shared_floats != SIZE_MAX && threads != 2) continue;
      HopRig rig(shape, threads, kForkedBytes, shared_floats);
      MakeForked(&rig, members);
      for (const Outcome& wanted : expected) {
        const Outcome outcome = rig.Step(asked);
        ASSERT_TRUE(outcome.o == wanted.o) << threads << " threads, " << shared_floats << " floats";
        if (shared_floats == SIZE_MAX) {
          EXPECT_EQ(outcome.shared_layers, sharing);
        }
        EXPECT_EQ(outcome.kv_bytes < wanted.kv_bytes, sharing != 0);
      }
    }
  }
}

struct Variant {
  ElementType type;
  KvType kv_type;
  uint32_t group;
};

class SharedAttentionTest : public testing::TestWithParam<Variant> {
 protected:
  void SetUp() override {
    if (DetectIsa() == Isa::kNone) GTEST_SKIP() << "no AVX2";
  }
  RPartShape shape() const { return HopShape(GetParam().type, GetParam().kv_type, GetParam().group); }
};

TEST_P(SharedAttentionTest, AFamilyWithTailsOfAnyLength) {
  const std::vector<Member> members = {{1, 0, 0, 1100},    {2, 1, 1024, 1024}, {3, 1, 1100, 1100},
                                       {4, 1, 1030, 1535}, {5, 1, 1024, 2300}, {6, 0, 0, 700}};
  ExpectTheSame(shape(), members, {{1, 1, 11}, {6, 1, 16}, {2, 1, 12}, {3, 1, 13}, {4, 1, 14}, {5, 1, 15}});
}

TEST_P(SharedAttentionTest, SeveralRowsAndChunksBeside) {
  const std::vector<Member> members = {{1, 0, 0, 1024},    {2, 1, 1024, 1050}, {3, 1, 1024, 1532}, {4, 1, 1024, 1100},
                                       {5, 1, 1024, 1024}, {6, 0, 0, 40},      {7, 1, 1000, 1000}};
  // Of 5 and 7 chunks: they read for themselves.
  ExpectTheSame(shape(), members,
                {{5, 20, 15}, {1, 2, 11}, {2, 8, 12}, {6, 9, 16}, {3, 7, 13}, {4, 1, 14}, {7, 40, 17}});
}

TEST_P(SharedAttentionTest, PrefixesWithinPrefixes) {
  const std::vector<Member> members = {{1, 0, 0, 1600},    {2, 1, 1536, 1600}, {3, 1, 1536, 2100}, {4, 1, 512, 1400},
                                       {5, 4, 1400, 1400}, {6, 4, 1024, 1500}, {7, 1, 700, 701},   {8, 1, 500, 600}};
  ExpectTheSame(shape(), members,
                {{8, 1, 18}, {7, 1, 17}, {6, 1, 16}, {5, 2, 15}, {4, 1, 14}, {3, 3, 13}, {2, 1, 12}, {1, 1, 11}});
}

TEST_P(SharedAttentionTest, MoreThanAChainTakes) {
  std::vector<Member> members = {{1, 0, 0, 600}};
  std::vector<Ask> asked = {{1, 1, 101}};
  for (uint64_t id = 2; id <= 45; ++id) {
    members.push_back({id, 1, 512 + static_cast<uint32_t>(id), 520 + static_cast<uint32_t>(id) * 2});
    asked.push_back({id, 1 + static_cast<uint32_t>(id % 3), 100 + id});
  }
  ExpectTheSame(shape(), members, asked);
}

TEST_P(SharedAttentionTest, ABadEntrySpoilsNoOther) {
  const std::vector<Member> members = {{1, 0, 0, 1100}, {2, 1, 1024, 1030}, {3, 1, 1024, 1600}, {4, 1, 1024, 1024}};
  for (uint64_t bad = 1; bad <= 4; ++bad) {
    std::vector<Ask> asked = {{1, 1, 11}, {2, 2, 12}, {3, 1, 13}, {4, 1, 14}};
    asked[bad - 1].bad = true;
    ExpectTheSame(shape(), members, asked);
  }
}

TEST_P(SharedAttentionTest, NothingIsSharedOfLessThanABlockOrWithAWindow) {
  const std::vector<Member> members = {{1, 0, 0, 800}, {2, 1, 511, 900}, {3, 1, 500, 500}};
  ExpectTheSame(shape(), members, {{1, 1, 11}, {2, 1, 12}, {3, 1, 13}}, /*sharing=*/0);
  const std::vector<Member> longer = {{1, 0, 0, 1100}, {2, 1, 1024, 1030}};
  ExpectTheSame(HopShape(GetParam().type, GetParam().kv_type, GetParam().group, 600), longer, {{1, 1, 11}, {2, 1, 12}},
                /*sharing=*/0);
}

// A window that leaves blocks out, and one that leaves nothing out of the shorter sequences.
TEST_P(SharedAttentionTest, LayersWithoutAWindowShareBesideThoseWithOne) {
  const std::vector<Member> members = {{1, 0, 0, 1600}, {2, 1, 1024, 1050}, {3, 1, 1024, 1532}, {4, 1, 1024, 1030}};
  for (const uint32_t window : {40u, 1100u}) {
    for (const uint32_t windowed : {0b101u, 0b010u}) {
      const RPartShape mixed = HopShape(GetParam().type, GetParam().kv_type, GetParam().group, window, windowed);
      ExpectTheSame(mixed, members, {{2, 1, 12}, {1, 1, 11}, {4, 20, 14}, {3, 2, 13}}, kAllLayers & ~windowed);
    }
  }
}

#if defined(__SANITIZE_THREAD__)  // to threads all types are alike
INSTANTIATE_TEST_SUITE_P(Shapes, SharedAttentionTest, testing::Values(Variant{ElementType::kBf16, KvType::kInt4, 2}));
#else
INSTANTIATE_TEST_SUITE_P(Shapes, SharedAttentionTest,
                         testing::Values(Variant{ElementType::kF32, KvType::kF32, 1},
                                         Variant{ElementType::kBf16, KvType::kBf16, 4},
                                         Variant{ElementType::kBf16, KvType::kInt8, 4},
                                         Variant{ElementType::kBf16, KvType::kInt4, 4},
                                         Variant{ElementType::kF32, KvType::kInt4, 1}));
#endif

}  // namespace
}  // namespace fastdecode
