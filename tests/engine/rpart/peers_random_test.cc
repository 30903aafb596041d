// Several engines at one home at once, each on a thread of its own with random traffic, dying at random moments in
// every way and coming again. Each checks its results against the reference in double; the home checks when a peer ends
// that no page of its account is missing, and when the last one ends that none of the pool is.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "engine/rpart/home.h"
#include "tests/engine/rpart/test_engine.h"

namespace fastdecode {
namespace {

constexpr uint32_t kEngines = 3;
constexpr uint32_t kSequences = 6;  // of an engine's own
constexpr uint32_t kLives = 25;
constexpr uint32_t kStepsOfALife = 40;
constexpr uint64_t kReservedPages = 30;  // less than the sequences may need

// What is known of sequences that are on their way from one engine to another.
class Letters {
 public:
  void Put(uint32_t to, uint64_t sequence, std::vector<uint64_t> contents) {
    std::lock_guard lock(mutex_);
    letters_[{to, sequence}] = std::move(contents);
  }
  bool Take(uint32_t to, uint64_t sequence, std::vector<uint64_t>* contents) {
    std::lock_guard lock(mutex_);
    const auto found = letters_.find({to, sequence});
    if (found == letters_.end()) return false;
    *contents = std::move(found->second);
    letters_.erase(found);
    return true;
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<uint32_t, uint64_t>, std::vector<uint64_t>> letters_;
};

// What others may fill of an engine's pages. Whoever hands sequences over to it, or counts its pages, has the mutex.
struct Room {
  std::mutex mutex;
  uint64_t spare_pages = UINT64_MAX;  // beside those that its step needs; UINT64_MAX: it makes none
};

struct Shared {
  explicit Shared(std::unique_ptr<Home> home) : home(std::move(home)) {}
  std::unique_ptr<Home> home;
  std::mutex control;  // who has it is the home's control thread
  Letters letters;
  std::array<Room, kEngines> rooms;
  std::atomic<uint64_t> next_handed_over{1000};
  std::atomic<int> handed_over{0};
};

// One engine: several lives, one after the other.
class RandomEngine {
 public:
  RandomEngine(Shared* shared, const RPartShape& shape, uint32_t number)
      : shared_(shared), shape_(shape), number_(number), random_(number + 17) {}

  void Run() {
    for (uint32_t life = 0; life < kLives && !testing::Test::HasFailure(); ++life) {
      {
        std::lock_guard lock(shared_->control);
        engine_ = std::make_unique<TestEngine>(shared_->home.get(), shape_,
                                               PeerRequest{{number_, 0}, "a thread", kReservedPages});
      }
      sequences_.clear();
      for (uint64_t s = 0; s < kSequences; ++s) sequences_.push_back(s);
      const uint32_t steps = random_() % kStepsOfALife;
      for (uint32_t i = 0; i < steps && !testing::Test::HasFailure(); ++i) Act();
      if (!testing::Test::HasFailure()) CheckPages();
      std::lock_guard lock(shared_->control);
      Die();
      engine_.reset();
    }
  }

 private:
  void Act() {
    TakeWhatIsHandedOver();
    const uint64_t id = sequences_[random_() % sequences_.size()];
    const uint32_t length = engine_->Length(id);
    switch (random_() % 10) {
      case 0:
        if (length > 0) WithRoomForAnOpenPage([&] { engine_->Truncate(id, random_() % (length + 1)); });
        break;
      case 1:
        engine_->Release(id);
        break;
      case 2: {
        const uint64_t fork = random_() % kSequences;
        if (length == 0 || fork == id) break;
        engine_->Release(fork);
        WithRoomForAnOpenPage([&] { engine_->Fork(id, 1 + random_() % length, fork); });
        break;
      }
      case 3: {
        const IdleMessage idle;
        engine_->Send(&idle, sizeof(idle));
        break;
      }
      case 4:
        HandSomethingOver(id);
        break;
      default:
        Step();
    }
  }

  void Step() {
    std::vector<TestEntry> entries;
    uint32_t rows = 0;
    for (const uint64_t s : sequences_) {
      const uint32_t stored = engine_->Length(s);
      const uint32_t tokens = random_() % 4 == 0 ? 1 + random_() % 20 : 1;
      if (random_() % 2 == 0 || stored + tokens > shape_.max_context || rows + tokens > shape_.max_rows) continue;
      entries.push_back({s, stored, tokens, next_content_++});
      rows += tokens;
    }
    Room& room = shared_->rooms[number_];
    {
      std::lock_guard lock(room.mutex);
      if (!MakeRoom(entries, &room.spare_pages)) return;
    }
    if (!entries.empty()) engine_->CheckedStep(static_cast<int>(random_() % 2), entries);
    std::lock_guard lock(room.mutex);
    room.spare_pages = UINT64_MAX;
  }

  // For what takes pieces of one; nobody hands sequences over meanwhile.
  template <class Act>
  void WithRoomForAnOpenPage(Act act) {
    if (open_pieces_ == 0) return act();
    std::lock_guard lock(shared_->rooms[number_].mutex);
    if (engine_->Stats().pages_free < open_pieces_) return;
    act();
    engine_->Stats();  // done by then
  }

  // As the engine's own count of pages does; a page that is shared may become one more.
  bool MakeRoom(const std::vector<TestEntry>& entries, uint64_t* spare_pages) {
    uint64_t needed = 0;
    for (const TestEntry& entry : entries) needed += entry.tokens / kPageTokens + 2 + open_pieces_;
    uint64_t free = engine_->Stats().pages_free;
    for (const uint64_t s : sequences_) {
      if (free >= needed) break;
      if (std::any_of(entries.begin(), entries.end(), [s](const TestEntry& e) { return e.sequence == s; })) continue;
      engine_->Release(s);
      free = engine_->Stats().pages_free;
    }
    if (free < needed) return false;
    *spare_pages = free - needed;
    return true;
  }

  void HandSomethingOver(uint64_t id) {
    const uint32_t to = static_cast<uint32_t>((number_ + 1 + random_() % (kEngines - 1)) % kEngines);
    const uint64_t new_id = shared_->next_handed_over++;
    const uint32_t length = engine_->Length(id);
    std::lock_guard lock(shared_->rooms[to].mutex);
    uint64_t& spare_pages = shared_->rooms[to].spare_pages;
    const uint64_t pages = length / kPageTokens + 1 + open_pieces_;
    if (spare_pages < pages) return;  // a step needs them
    if (spare_pages != UINT64_MAX) spare_pages -= pages;
    const HandOverOutcome outcome = engine_->HandOver(id, {to, 0}, new_id);
    if (outcome == HandOverOutcome::kDone) {
      std::vector<uint64_t> contents = engine_->Forget(id);
      EXPECT_EQ(contents.size(), length);
      shared_->letters.Put(to, new_id, std::move(contents));
      ++shared_->handed_over;
    } else {
      EXPECT_TRUE(outcome == HandOverOutcome::kNoPeer || outcome == HandOverOutcome::kNoPages ||
                  (outcome == HandOverOutcome::kNoSequence && length == 0))
          << static_cast<int>(outcome);
    }
  }

  void TakeWhatIsHandedOver() {
    HandedOverMessage told;
    while (engine_->TryHandedOver(&told)) {
      std::vector<uint64_t> contents;
      while (!shared_->letters.Take(number_, told.sequence, &contents)) std::this_thread::yield();
      EXPECT_EQ(contents.size(), told.tokens);
      engine_->Adopt(told.sequence, std::move(contents));
      sequences_.push_back(told.sequence);
    }
  }

  // Nothing is left behind by releases, in whatever company.
  void CheckPages() {
    StatsMessage stats = engine_->Stats();
    EXPECT_EQ(stats.pages_total, kReservedPages);
    EXPECT_LE(stats.pages_free, kReservedPages);
    TakeWhatIsHandedOver();
    for (const uint64_t s : sequences_) {
      if (random_() % 2 == 0) engine_->Release(s);
    }
  }

  // By the hand of whoever is the control thread now.
  void Die() {
    switch (random_() % 6) {
      case 0:
        engine_->Close();
        break;
      case 1:
        engine_->link().MarkLost("the test pulled the plug");
        break;
      case 2: {  // a bad header
        engine_->SendRoster(0, {{1, 0, 2, 1}}, 1);
        HopHeader hop = engine_->WriteRows(0, {{1, 0, 2, 1}}, 0);
        hop.rows = 1;
        engine_->link().PostHop(hop);
        break;
      }
      case 3: {  // bad control
        const uint32_t nonsense = 77;
        engine_->Send(&nonsense, sizeof(nonsense));
        break;
      }
      case 4:
        shared_->home->Detach(engine_->session());
        return;
      case 5: {  // in the middle of a hop
        const uint64_t step = engine_->BeginStep(0);
        engine_->SendRoster(0, {{1, engine_->Length(1), 20, 1}}, step);
        engine_->link().PostHop(engine_->WriteRows(0, {{1, engine_->Length(1), 20, 1}}, 0));
        engine_->link().RingHome();
        engine_->Close();
      }
    }
    EXPECT_FALSE(engine_->AwaitEnd().empty());
  }

  Shared* const shared_;
  const RPartShape shape_;
  const uint64_t open_pieces_ = HasOpenPages(shape_.attention()) ? kOpenPieces : 0;
  const uint32_t number_;
  std::mt19937 random_;
  std::unique_ptr<TestEngine> engine_;
  std::vector<uint64_t> sequences_;
  uint64_t next_content_ = 1;
};

// A window of so many tokens in the second of two layers; 0: none. What int4 loses hides longer ones.
struct Variant {
  KvType kv_type;
  uint32_t window;
};

class PeersRandomTest : public testing::TestWithParam<Variant> {};

TEST_P(PeersRandomTest, RandomTrafficAndDeathsLeakNothing) {
  RPartShape shape = SmallShape(ElementType::kF32);
  shape.kv_type = static_cast<uint32_t>(GetParam().kv_type);
  if (GetParam().window > 0) {
    shape.sliding_window = GetParam().window;
    shape.SetWindowed(1);
  }
  shape.max_context = 200;
  Shared shared(MakeTestHome(2, 4 << 20, kEngines));
  ASSERT_GE(shared.home->Describe(shape).pages, kReservedPages * kEngines);
  std::vector<std::unique_ptr<RandomEngine>> engines;
  for (uint32_t i = 0; i < kEngines; ++i) engines.push_back(std::make_unique<RandomEngine>(&shared, shape, i));
  std::vector<std::thread> threads;
  for (const auto& engine : engines) threads.emplace_back([&engine] { engine->Run(); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(shared.home->sessions().empty());
  EXPECT_GT(shared.handed_over.load(), 0);
}

INSTANTIATE_TEST_SUITE_P(Types, PeersRandomTest,
                         testing::Values(Variant{KvType::kF32, 0}, Variant{KvType::kInt4, 0}, Variant{KvType::kF32, 30},
                                         Variant{KvType::kInt4, 4}),
                         [](const auto& info) {
                           return std::string(KvTypeName(info.param.kv_type)) +
                                  (info.param.window > 0 ? "_window" : "");
                         });

}  // namespace
}  // namespace fastdecode
