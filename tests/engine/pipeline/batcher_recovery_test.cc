// Where sequences go whose homes were lost.
#include <gtest/gtest.h>

#include "tests/engine/pipeline/batcher_rig.h"

namespace fastdecode {
namespace {

class BatcherRecoveryTest : public BatcherTest {};

// A sequence that lost its home three times within a minute goes to the one that has been there for the longest, though
// others have more room, and waits for it.
TEST_F(BatcherRecoveryTest, WhoKeepsLosingHomesGoesToTheOneThatStays) {
  constexpr uint64_t kSecondNs = 1'000'000'000;
  for (const uint64_t apart_s : {29, 31}) {
    for (const bool has_room : {true, false}) {
      SCOPED_TRACE(testing::Message() << apart_s << " s apart, room " << has_room);
      const bool keeps_losing = apart_s < 30;
      Make(kOne);
      batcher_->AddHome(0, 20);
      batcher_->AddHome(1, 40);
      batcher_->AddHome(2, 40);
      if (!has_room) {
        batcher_->LoseHome(1, 0);
        batcher_->LoseHome(2, 0);
        Add(1, 600, 640);
        Begin(0);
        batcher_->AddHome(1, 40);
        batcher_->AddHome(2, 40);
      }
      Sequence* const sequence = Add(2, 40, 80);
      for (uint64_t loss = 1; loss <= 3; ++loss) {
        sequence->recovery.last_losses_ns[sequence->recovery.losses++] = loss * apart_s * kSecondNs;
      }
      EXPECT_EQ(sequence->KeepsLosingHomes(), keeps_losing);
      Begin(0);
      EXPECT_EQ(sequence->seat.home, !keeps_losing ? 1 : has_room ? 0 : -1);
    }
  }
}

}  // namespace
}  // namespace fastdecode
