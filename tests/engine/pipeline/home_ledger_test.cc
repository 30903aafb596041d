// The engine's account of pages against a brute-force one that knows each page, and against a home's own.
#include "engine/pipeline/home_ledger.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "engine/rpart/kv_pool.h"
#include "engine/rpart/page_account.h"
#include "engine/rpart/sequence_table.h"

namespace fastdecode {
namespace {

constexpr uint32_t kContext = 512;
constexpr size_t kHoldersMax = 24;

// Holders as lists of numbered pages, where equal numbers are shared pages.
class BruteForce {
 public:
  struct Holder {
    int home = 0;
    uint32_t tokens = 0;
    std::vector<int> pages;   // [position / 32], with those that were taken ahead
    std::vector<int> pieces;  // of the open page
    bool kept = false;
  };

  explicit BruteForce(bool open_pages) : counts_(open_pages) {}

  void AddHome(int home, uint32_t total) { total_[home] = total; }
  uint32_t Used(int home) const {
    std::set<int> used;
    for (const auto& [id, holder] : holders_) {
      if (holder.home != home) continue;
      used.insert(holder.pages.begin(), holder.pages.end());
      used.insert(holder.pieces.begin(), holder.pieces.end());
    }
    return static_cast<uint32_t>(used.size());
  }
  uint32_t Free(int home) const { return total_.at(home) - Used(home); }
  uint32_t Alone(uint32_t id) const {
    uint32_t alone = 0;
    for (const int page : holders_.at(id).pages) alone += Holders(page) == 1;
    return alone + static_cast<uint32_t>(holders_.at(id).pieces.size());
  }

  // Pages that kept holders alone have.
  uint32_t Idle(int home) const {
    std::set<int> needed, idle;
    for (const auto& [id, holder] : holders_) {
      if (holder.home != home) continue;
      std::set<int>& pages = holder.kept ? idle : needed;
      pages.insert(holder.pages.begin(), holder.pages.end());
      pages.insert(holder.pieces.begin(), holder.pieces.end());
    }
    return static_cast<uint32_t>(
        std::count_if(idle.begin(), idle.end(), [&](int page) { return needed.count(page) == 0; }));
  }
  // How many of a holder's first pages only kept ones have.
  uint32_t IdleOf(uint32_t id, uint32_t pages) const {
    uint32_t idle = 0;
    for (uint32_t i = 0; i < pages; ++i) {
      const int page = holders_.at(id).pages[i];
      idle += std::none_of(holders_.begin(), holders_.end(), [&](const auto& one) {
        const std::vector<int>& has = one.second.pages;
        return !one.second.kept && std::find(has.begin(), has.end(), page) != has.end();
      });
    }
    return idle;
  }

  void Open(uint32_t id, int home) { holders_[id].home = home; }
  void Keep(uint32_t id) { holders_.at(id).kept = true; }
  // A step that appends tokens [tokens, end): what it writes to must not be shared.
  bool Step(uint32_t id, uint32_t end) {
    const Holder before = holders_.at(id);
    Holder& holder = holders_.at(id);
    for (size_t i = holder.tokens / kPageTokens; i < holder.pages.size(); ++i) {
      if (Holders(holder.pages[i]) > 1) holder.pages[i] = next_++;
    }
    // Pieces that the step does not need come free before it takes pages.
    const uint32_t pieces = counts_.PiecesOfStep(holder.tokens, end);
    holder.pieces.resize(std::min<size_t>(holder.pieces.size(), pieces));
    while (holder.pages.size() < counts_.Closed(end)) holder.pages.push_back(next_++);
    while (holder.pieces.size() < pieces) holder.pieces.push_back(next_++);
    if (Used(holder.home) <= total_.at(holder.home)) {
      holder.tokens = end;
      return true;
    }
    holder = before;
    return false;
  }
  bool Fork(uint32_t id, uint32_t tokens, uint32_t new_id) {
    const Holder& from = holders_.at(id);
    if (PiecesOfCut(tokens) > Free(from.home)) return false;
    Holder fork;
    fork.home = from.home;
    fork.tokens = tokens;
    fork.pages.assign(from.pages.begin(), from.pages.begin() + counts_.Closed(tokens));
    while (fork.pieces.size() < PiecesOfCut(tokens)) fork.pieces.push_back(next_++);
    holders_[new_id] = fork;
    return true;
  }
  bool Truncate(uint32_t id, uint32_t tokens) {
    const Holder before = holders_.at(id);
    Holder& holder = holders_.at(id);
    holder.pages.resize(counts_.Closed(tokens));
    holder.pieces.resize(PiecesOfCut(tokens));
    for (size_t i = before.pieces.size(); i < holder.pieces.size(); ++i) holder.pieces[i] = next_++;
    // The page that is opened again is read before it is returned.
    const size_t last = counts_.Closed(tokens);
    const bool is_read = tokens % kPageTokens != 0 && counts_.Closed(before.tokens) > last;
    const uint32_t read = is_read && Holders(before.pages[last]) == 0 ? 1 : 0;
    if (Used(holder.home) + read > total_.at(holder.home)) {
      holder = before;
      return false;
    }
    holder.tokens = tokens;
    return true;
  }
  void Release(uint32_t id) { holders_.erase(id); }
  const std::map<uint32_t, Holder>& holders() const { return holders_; }

 private:
  // A page that is whole has no pieces once the sequence is cut or forked behind it.
  uint32_t PiecesOfCut(uint32_t tokens) const { return tokens % kPageTokens == 0 ? 0 : counts_.Pieces(tokens); }
  int Holders(int page) const {
    return static_cast<int>(std::count_if(holders_.begin(), holders_.end(), [&](const auto& one) {
      return std::find(one.second.pages.begin(), one.second.pages.end(), page) != one.second.pages.end();
    }));
  }

  const PageCounts counts_;
  std::map<int, uint32_t> total_;
  std::map<uint32_t, Holder> holders_;
  int next_ = 0;
};

// A home's own tables, without a network in between. One that copies later keeps a page that a step copies until the
// step is over, as a GPU does.
class RealHome {
 public:
  RealHome(bool open_pages, uint32_t pages, bool copies_later)
      : shape_(ElementType::kF32, open_pages ? KvType::kInt4 : KvType::kF32, 1, 1, 64, 0.125f, 0, 0),
        memory_(KvPool::PageBytesAllLayers(shape_, 1) * pages),
        pool_(shape_, 1, memory_, copies_later ? PageCopies::kElsewhere : PageCopies::kByPool),
        account_(&pool_, pages),
        table_(&account_, 1, kContext, kHoldersMax),
        copies_later_(copies_later) {}

  bool Step(uint32_t id, uint32_t first, uint32_t end) {
    KvSequence* const sequence = table_.FindOrCreate(id);
    const size_t page = first / kPageTokens;
    const PageId before = page < sequence->pages.size() ? sequence->pages[page] : kNoPage;
    if (table_.Grow(sequence, first, end - first) != GrowOutcome::kOk) return false;
    sequence->stored_tokens[0] = end;
    if (copies_later_ && before != kNoPage && sequence->pages[page] != before) {
      account_.AddReference(before);
      kept_[id] = before;
    }
    return true;
  }
  void EndStep(uint32_t id) {
    const auto kept = kept_.find(id);
    if (kept == kept_.end()) return;
    account_.Return(kept->second);
    kept_.erase(kept);
  }
  SequenceTable& table() { return table_; }
  uint32_t used() const { return account_.used(); }

 private:
  const AttentionShape shape_;
  std::vector<std::byte> memory_;
  KvPool pool_;
  PageAccount account_;
  SequenceTable table_;
  const bool copies_later_;
  std::map<uint32_t, PageId> kept_;  // by sequence
};

constexpr int kHomes = 2;

// The same operations on the ledger, the brute-force account and two homes. While steps run at a home the ledger may
// count more than they do and refuse more: what it grants they have.
class HomeLedgerTest : public testing::TestWithParam<bool> {
 protected:
  HomeLedgerTest() {
    for (int h = 0; h < kHomes; ++h) AddHome(h, h == 0 ? 12 : 30);
  }

  void AddHome(int home, uint32_t pages) {
    ledger_.AddHome(home, pages);
    model_.AddHome(home, pages);
    homes_[home] = std::make_unique<RealHome>(GetParam(), pages, /*copies_later=*/false);
    late_homes_[home] = std::make_unique<RealHome>(GetParam(), pages, /*copies_later=*/true);
  }
  bool StepsRun(int home) const {
    return std::any_of(steps_.begin(), steps_.end(), [&](uint32_t id) { return HomeOf(id) == home; });
  }
  int HomeOf(uint32_t id) const { return ledger_.home(holders_.at(id)); }
  uint32_t Open(int home) {
    const uint32_t id = ++last_id_;
    holders_[id] = ledger_.Open(home);
    model_.Open(id, home);
    homes_[home]->table().FindOrCreate(id);
    late_homes_[home]->table().FindOrCreate(id);
    return id;
  }
  // An operation that the ledger has granted or refused: all others do the same, but for one that the ledger alone
  // refuses, because of steps that run, and of which the home is not told.
  template <class Do>
  void Follow(int home, bool granted, const Do& of_model, const auto& of_home) {
    if (!granted && StepsRun(home)) return;
    EXPECT_EQ(of_model(), granted);
    EXPECT_EQ(of_home(*homes_[home]), granted);
    EXPECT_EQ(of_home(*late_homes_[home]), granted);
  }
  // Whether there was room.
  bool BeginStep(uint32_t id, uint32_t end) {
    const uint32_t first = model_.holders().at(id).tokens;
    const int home = HomeOf(id);
    const uint32_t free = ledger_.pages_free(home), more = ledger_.PagesForStep(holders_[id], first, end);
    const bool fits = ledger_.TakeForStep(holders_[id], first, end, /*is_whole=*/true);
    EXPECT_EQ(fits, more <= free);
    EXPECT_EQ(ledger_.pages_free(home), fits ? free - more : free);
    Follow(
        home, fits, [&] { return model_.Step(id, end); }, [&](RealHome& one) { return one.Step(id, first, end); });
    if (fits) steps_.insert(id);
    return fits;
  }
  void EndStep(uint32_t id) {
    const int home = HomeOf(id);
    const uint32_t free = ledger_.pages_free(home);
    const bool any = ledger_.EndStep(holders_[id]);
    EXPECT_EQ(ledger_.pages_free(home) > free, any);
    late_homes_[home]->EndStep(id);
    steps_.erase(id);
  }
  bool Fork(uint32_t id, uint32_t tokens) {
    const int home = HomeOf(id);
    const HomeLedger::Holder fork = ledger_.Fork(holders_[id], tokens);
    const bool fits = fork != HomeLedger::kNobody;
    const uint32_t new_id = last_id_ + 1;
    Follow(
        home, fits, [&] { return model_.Fork(id, tokens, new_id); },
        [&](RealHome& one) { return one.table().Fork(id, tokens, new_id).ok(); });
    if (fits) holders_[++last_id_] = fork;
    return fits;
  }
  bool Truncate(uint32_t id, uint32_t tokens) {
    const bool fits = ledger_.Truncate(holders_[id], model_.holders().at(id).tokens, tokens);
    Follow(
        HomeOf(id), fits, [&] { return model_.Truncate(id, tokens); },
        [&](RealHome& one) { return one.table().Truncate(id, tokens).ok(); });
    return fits;
  }
  // Cut to its full pages before, as it would be.
  void Keep(uint32_t id) {
    if (steps_.contains(id)) EndStep(id);
    const uint32_t tokens = model_.holders().at(id).tokens / kPageTokens * kPageTokens;
    ASSERT_TRUE(Truncate(id, tokens));
    ledger_.Keep(holders_[id]);
    model_.Keep(id);
    for (uint32_t pages = 0; pages <= tokens / kPageTokens && !StepsRun(HomeOf(id)); ++pages) {
      ASSERT_EQ(ledger_.CountIdle(holders_[id], pages), model_.IdleOf(id, pages)) << id << " " << pages;
    }
  }
  void Release(uint32_t id) {
    const int home = HomeOf(id);
    homes_[home]->table().Release(id);
    late_homes_[home]->table().Release(id);
    late_homes_[home]->EndStep(id);
    model_.Release(id);
    ledger_.Release(holders_[id]);
    holders_.erase(id);
    steps_.erase(id);
  }
  void Check() {
    ledger_.CheckInvariants();
    std::array<uint32_t, kHomes> holders = {};
    for (const auto& [id, holder] : model_.holders()) {
      holders[static_cast<size_t>(holder.home)] += holder.kept ? 0 : 1;
      if (!steps_.contains(id)) {
        ASSERT_EQ(ledger_.pages(holders_[id]), holder.pages.size() + holder.pieces.size()) << id;
      }
      if (!StepsRun(holder.home)) {
        ASSERT_EQ(ledger_.pages_alone(holders_[id]), model_.Alone(id)) << id;
      }
    }
    for (int h = 0; h < kHomes; ++h) {
      ASSERT_EQ(ledger_.holders(h), holders[static_cast<size_t>(h)]);
      ASSERT_EQ(model_.Used(h), homes_[h]->used()) << "what the home itself counts";
      ASSERT_LE(homes_[h]->used(), late_homes_[h]->used());
      ASSERT_LE(late_homes_[h]->used(), ledger_.pages_used(h));
      kept_ += homes_[h]->used() < late_homes_[h]->used();
      if (StepsRun(h)) continue;
      ASSERT_EQ(ledger_.pages_used(h), homes_[h]->used());
      ASSERT_EQ(ledger_.pages_used(h), late_homes_[h]->used());
      ASSERT_EQ(ledger_.pages_idle(h), model_.Idle(h));
      ASSERT_EQ(ledger_.pages_available(h) + ledger_.pages_needed(h), ledger_.pages_total(h));
    }
  }

  HomeLedger ledger_{GetParam(), kHoldersMax};
  BruteForce model_{GetParam()};
  std::array<std::unique_ptr<RealHome>, kHomes> homes_, late_homes_;
  std::map<uint32_t, HomeLedger::Holder> holders_;
  std::set<uint32_t> steps_;  // that run: of these holders
  uint32_t last_id_ = 0;
  int kept_ = 0;  // how often a page was seen that is kept for a step alone
};

TEST_P(HomeLedgerTest, RandomOperations) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 random(seed);
    const auto upto = [&](uint32_t most) { return std::uniform_int_distribution<uint32_t>(0, most)(random); };
    std::array<int, 7> done = {};
    int refused = 0;
    const bool at_once = seed % 2 == 0;  // steps are over before anything else happens
    for (int i = 0; i < 1500; ++i) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << ", operation " << i);
      if (holders_.empty() || (holders_.size() < kHoldersMax && upto(9) == 0)) Open(static_cast<int>(upto(kHomes - 1)));
      auto chosen = holders_.begin();
      std::advance(chosen, upto(static_cast<uint32_t>(holders_.size()) - 1));
      const uint32_t id = chosen->first, tokens = model_.holders().at(id).tokens;
      const uint32_t operation = upto(99);
      bool fits = true;
      if (model_.holders().at(id).kept) {  // it is forked, cut to full pages, or goes
        if (operation < 50 && holders_.size() < kHoldersMax) fits = Fork(id, upto(tokens));
        if (operation >= 50 && operation < 70) fits = Truncate(id, upto(tokens / kPageTokens) * kPageTokens);
        if (operation >= 85) Release(id);
      } else if (operation >= 80 && operation < 85) {
        Keep(id);
        ++done[6];
      } else if (operation < 50) {
        const uint32_t end = std::min(kContext, tokens + 1 + (upto(3) == 0 ? upto(80) : 0));
        if (steps_.contains(id)) {
          EndStep(id);
          ++done[5];
        } else if (end > tokens) {
          fits = BeginStep(id, end);
        }
        if (at_once && steps_.contains(id)) EndStep(id);
        ++done[0];
      } else if (operation < 75) {
        if (holders_.size() == kHoldersMax) continue;
        fits = Fork(id, upto(1) == 0 ? tokens : upto(tokens));
        ++done[1];
      } else if (operation < 85) {
        fits = Truncate(id, upto(tokens));
        ++done[2];
      } else if (operation < 99) {
        Release(id);
        ++done[3];
      } else {  // the home is lost, and comes back with other memory
        const int home = ledger_.home(chosen->second);
        for (auto one = holders_.begin(); one != holders_.end();) {
          const uint32_t other = (one++)->first;
          if (ledger_.home(holders_[other]) == home) Release(other);
        }
        AddHome(home, 8 + upto(30));
        ++done[4];
      }
      refused += !fits;
      Check();
      if (HasFatalFailure()) return;
    }
    for (size_t kind = 0; kind < 5; ++kind) EXPECT_GT(done[kind], 0) << kind;
    EXPECT_EQ(done[5] > 0, !at_once);
    EXPECT_GT(done[6], 0);
    EXPECT_EQ(kept_ > 0, !at_once && !GetParam()) << "open pages are never shared";
    kept_ = 0;
    EXPECT_GT(refused, 0) << "homes were never full";
    while (!holders_.empty()) Release(holders_.begin()->first);
    for (int h = 0; h < kHomes; ++h) EXPECT_EQ(ledger_.pages_used(h), 0u);
  }
}

INSTANTIATE_TEST_SUITE_P(WithoutAndWithOpenPages, HomeLedgerTest, testing::Bool());

// Beams: in each step one of two is forked and the other one goes. The tree must not grow with the steps.
TEST(HomeLedgerTreeTest, ALongLineOfForksNeedsNoMoreNodesThanHolders) {
  HomeLedger ledger(/*open_pages=*/false, 3);
  ledger.AddHome(0, 10'000);
  HomeLedger::Holder first = ledger.Open(0);
  ASSERT_TRUE(ledger.TakeForStep(first, 0, 1, true));
  HomeLedger::Holder second = ledger.Fork(first, 1);
  for (uint32_t tokens = 1; tokens < 5000; ++tokens) {
    ASSERT_TRUE(ledger.TakeForStep(first, tokens, tokens + 1, true));
    ASSERT_TRUE(ledger.TakeForStep(second, tokens, tokens + 1, true));
    ledger.EndStep(first);
    ledger.EndStep(second);
    if (tokens % 3 == 0) std::swap(first, second);
    ledger.Release(second);
    second = ledger.Fork(first, tokens + 1);
    ledger.CheckInvariants();
    EXPECT_EQ(ledger.pages_used(0), tokens / kPageTokens + 1);
  }
}

// Who writes to a page that is being copied gets a copy, too; the page is free when the last one of them is over.
TEST(HomeLedgerTreeTest, ACopiedPageIsSharedUntilTheStepIsOver) {
  HomeLedger ledger(/*open_pages=*/false, 3);
  ledger.AddHome(0, 5);
  const HomeLedger::Holder first = ledger.Open(0);
  ASSERT_TRUE(ledger.TakeForStep(first, 0, 40, true));
  ledger.EndStep(first);
  const HomeLedger::Holder second = ledger.Fork(first, 36);
  ASSERT_TRUE(ledger.TakeForStep(first, 40, 41, true));
  EXPECT_EQ(ledger.pages_free(0), 2u);
  EXPECT_EQ(ledger.PagesForStep(second, 36, 37), 1u);
  ASSERT_TRUE(ledger.TakeForStep(second, 36, 37, true));
  EXPECT_EQ(ledger.pages_free(0), 1u);
  EXPECT_FALSE(ledger.EndStep(first));
  EXPECT_EQ(ledger.pages_free(0), 1u);
  ledger.CheckInvariants();
  EXPECT_TRUE(ledger.EndStep(second));
  EXPECT_EQ(ledger.pages_free(0), 2u);
  EXPECT_FALSE(ledger.EndStep(second));
  // The last one to have the page has it alone again once the copy is over.
  const HomeLedger::Holder third = ledger.Fork(first, 41);
  ASSERT_TRUE(ledger.TakeForStep(third, 41, 42, true));
  EXPECT_EQ(ledger.pages_alone(first), 0u);
  EXPECT_FALSE(ledger.EndStep(third));
  EXPECT_EQ(ledger.pages_alone(first), 1u);
  EXPECT_EQ(ledger.PagesForStep(first, 41, 42), 0u);
  ASSERT_TRUE(ledger.TakeForStep(first, 41, 42, true));
  EXPECT_FALSE(ledger.EndStep(first));
  // One that leaves in the middle of its step leaves nothing behind.
  ASSERT_EQ(ledger.pages_free(0), 1u);
  ledger.Release(second);
  const HomeLedger::Holder fourth = ledger.Fork(first, 42);
  ASSERT_TRUE(ledger.TakeForStep(fourth, 42, 43, true));
  for (const HomeLedger::Holder holder : {fourth, third, first}) ledger.Release(holder);
  EXPECT_EQ(ledger.pages_used(0), 0u);
  ledger.CheckInvariants();
}

// What only keeps pages is a holder like any other.
TEST(HomeLedgerTreeTest, APrefixOutlivesTheSequenceThatComputedIt) {
  HomeLedger ledger(/*open_pages=*/false, 4);
  ledger.AddHome(0, 10);
  const HomeLedger::Holder sequence = ledger.Open(0);
  ASSERT_TRUE(ledger.Take(sequence, 5));
  const HomeLedger::Holder prefix = ledger.Fork(sequence, 96);
  EXPECT_EQ(ledger.pages_used(0), 5u);
  EXPECT_EQ(ledger.pages_alone(sequence), 2u);
  ledger.Release(sequence);
  EXPECT_EQ(ledger.pages_used(0), 3u);
  const HomeLedger::Holder next = ledger.Fork(prefix, 96);
  ASSERT_TRUE(ledger.Take(next, 10));
  EXPECT_FALSE(ledger.Take(next, 11));
  EXPECT_EQ(ledger.pages_free(0), 0u);
  ledger.Release(prefix);
  EXPECT_EQ(ledger.pages_used(0), 10u);
  ledger.Release(next);
  EXPECT_EQ(ledger.pages_used(0), 0u);
  ledger.CheckInvariants();
}

// A prompt has all its pages from the start, and keeps them from chunk to chunk.
TEST(HomeLedgerTreeTest, PagesThatWereTakenAheadAreKept) {
  HomeLedger ledger(/*open_pages=*/false, 2);
  ledger.AddHome(0, 8);
  const HomeLedger::Holder prompt = ledger.Open(0);
  ASSERT_TRUE(ledger.Take(prompt, 5));
  ASSERT_TRUE(ledger.TakeForStep(prompt, 0, 32, /*is_whole=*/false));
  EXPECT_FALSE(ledger.EndStep(prompt));
  EXPECT_EQ(ledger.pages(prompt), 5u);
  ASSERT_TRUE(ledger.TakeForStep(prompt, 32, 160, /*is_whole=*/true));
  EXPECT_EQ(ledger.pages(prompt), 5u);
  EXPECT_EQ(ledger.returns(0), 0u);
}

}  // namespace
}  // namespace fastdecode
