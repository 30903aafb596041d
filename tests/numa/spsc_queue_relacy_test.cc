// The queue's own code in every interleaving and with every stale value that Relacy's random scheduler comes to.

#include <gtest/gtest.h>

#include <string>

#include "numa/spsc_queue.h"
#include "tests/numa/relacy_atomics.h"

namespace fastdecode {
namespace {

// Four messages through a queue of two: both the full and the empty end, and every slot is used twice.
struct QueueModel : rl::test_suite<QueueModel, 2> {
  static constexpr unsigned kMessages = 4;

  SpscQueue<unsigned, RelacyAtomics> queue{2};

  void thread(unsigned index) {
    rl::linear_backoff backoff;
    for (unsigned i = 0; i < kMessages; ++i) {
      if (index == 0) {
        while (!queue.TryPush(i)) backoff.yield($);
      } else {
        unsigned value = ~0u;
        while (!queue.TryPop(&value)) backoff.yield($);
        RL_ASSERT(value == i);
      }
    }
    RL_ASSERT(queue.SizeApprox() <= 2);
  }
};

// The same with the release store of the tail weakened: shows that a wrong order is found.
template <class T>
class WeakStoreAtomic : public RelacyAtomic<T> {
 public:
  using RelacyAtomic<T>::RelacyAtomic;
  void store(T value, std::memory_order /*order*/) { RelacyAtomic<T>::store(value, std::memory_order_relaxed); }
};
struct WeakAtomics : RelacyAtomics {
  template <class T>
  using Atomic = WeakStoreAtomic<T>;
};
struct WeakQueueModel : rl::test_suite<WeakQueueModel, 2> {
  SpscQueue<unsigned, WeakAtomics> queue{2};

  void thread(unsigned index) {
    unsigned value = 0;
    if (index == 0) {
      queue.TryPush(7u);
    } else if (queue.TryPop(&value)) {
      RL_ASSERT(value == 7);
    }
  }
};

TEST(SpscQueueRelacyTest, NoRaceAndNoLoss) {
  std::string log;
  EXPECT_TRUE(SimulateSchedules<QueueModel>(200'000, &log)) << log;
}

TEST(SpscQueueRelacyTest, AWeakenedStoreIsFound) {
  std::string log;
  EXPECT_FALSE(SimulateSchedules<WeakQueueModel>(10'000, &log)) << log;
  EXPECT_NE(log.find("DATA RACE"), std::string::npos) << log;
}

}  // namespace
}  // namespace fastdecode
