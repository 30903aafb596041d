// The parker's own code in every interleaving and with every stale value that Relacy's random scheduler comes to. A
// lost wake-up is a deadlock there.

#include <gtest/gtest.h>

#include <string>

#include "numa/parker.h"
#include "tests/numa/relacy_atomics.h"

namespace fastdecode {
namespace {

using RelacyParker = BasicParker<RelacyFutexPolicy>;

// How work is published and rung for, in the two ways that Parker offers and in two wrong ones.
struct SeqCstRing {
  static constexpr std::memory_order kStore = std::memory_order_seq_cst;
  static constexpr std::memory_order kLoad = std::memory_order_seq_cst;
  static void Ring(RelacyParker* parker) { parker->Ring(); }
};
struct ReleaseRing {
  static constexpr std::memory_order kStore = std::memory_order_release;
  static constexpr std::memory_order kLoad = std::memory_order_acquire;
  static void Ring(RelacyParker* parker) { parker->RingAfterRelease(); }
};
struct TooWeakRing {  // Ring() without what it requires
  static constexpr std::memory_order kStore = std::memory_order_release;
  static constexpr std::memory_order kLoad = std::memory_order_acquire;
  static void Ring(RelacyParker* parker) { parker->Ring(); }
};

// Thread 0 sleeps until it has seen all items; the others publish them, each its own and ring once an item.
template <class Way, unsigned kRingers, unsigned kItems>
struct ParkModel : rl::test_suite<ParkModel<Way, kRingers, kItems>, 1 + kRingers> {
  RelacyAtomic<int> word;
  RelacyAtomic<unsigned> items[kRingers];

  bool AllSeen() {
    unsigned seen = 0;
    for (RelacyAtomic<unsigned>& item : items) seen += item.load(Way::kLoad);
    return seen == kRingers * kItems;
  }

  void thread(unsigned index) {
    RelacyParker parker(&word);
    if (index != 0) {
      for (unsigned i = 1; i <= kItems; ++i) {
        items[index - 1].store(i, Way::kStore);
        Way::Ring(&parker);
      }
      return;
    }
    while (!AllSeen()) {
      parker.Arm();
      if (AllSeen()) {
        parker.Disarm();
        break;
      }
      parker.Sleep(RelacyParker::kForever);
    }
  }
};

TEST(ParkerRelacyTest, RingLosesNoWakeUp) {
  std::string log;
  EXPECT_TRUE((SimulateSchedules<ParkModel<SeqCstRing, 1, 2>>(200'000, &log))) << log;
  EXPECT_TRUE((SimulateSchedules<ParkModel<SeqCstRing, 2, 1>>(200'000, &log))) << log;
}

TEST(ParkerRelacyTest, RingAfterReleaseLosesNoWakeUp) {
  std::string log;
  EXPECT_TRUE((SimulateSchedules<ParkModel<ReleaseRing, 1, 2>>(200'000, &log))) << log;
  EXPECT_TRUE((SimulateSchedules<ParkModel<ReleaseRing, 2, 1>>(200'000, &log))) << log;
}

TEST(ParkerRelacyTest, RingAfterAMereReleaseIsFoundToLoseThem) {
  std::string log;
  EXPECT_FALSE((SimulateSchedules<ParkModel<TooWeakRing, 1, 1>>(200'000, &log))) << log;
  EXPECT_NE(log.find("DEADLOCK"), std::string::npos) << log;
}

}  // namespace
}  // namespace fastdecode
