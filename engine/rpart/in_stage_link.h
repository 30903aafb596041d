#ifndef FASTDECODE_ENGINE_RPART_IN_STAGE_LINK_H_
#define FASTDECODE_ENGINE_RPART_IN_STAGE_LINK_H_

#include <cstddef>
#include <cstdint>

#include "numa/check.h"
#include "rdma/link.h"

namespace fastdecode {

// What the engine's ends of all links have in common whose home is attended to within the S-Part's stages
// (AttendsInStage): there are no hops, no segments, and nobody to wake.
class InStageLink : public EngineLink {
 public:
  uint64_t epoch() const override { return 0; }

  bool AttendsInStage() const override { return true; }
  void PostHop(const HopHeader& /*header*/) override { FD_CHECK(false, "a home that attends in stages has no hops"); }
  LinkPoll PollReply(ReplyHeader* /*out*/) override { return lost() ? LinkPoll::kLost : LinkPoll::kEmpty; }
  std::byte* BulkArea() override { return nullptr; }
  void PostBulk(size_t /*bytes*/) override { FD_CHECK(false, "there is no bulk channel"); }
  uint64_t BulkFreed() override { return 0; }
  void RingHome() override {}
  uint64_t Progress() const override { return 0; }
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_RPART_IN_STAGE_LINK_H_
