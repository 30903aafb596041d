#ifndef FASTDECODE_TESTS_RDMA_LINK_SUITE_H_
#define FASTDECODE_TESTS_RDMA_LINK_SUITE_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "rdma/link.h"

namespace fastdecode {

// Both ends of a link of some provider.
struct LinkEnds {
  virtual ~LinkEnds() = default;

  // Lets what one end has said of itself (progress, loss) reach the other, where that takes somebody to carry it.
  virtual void PassNews() {}

  std::unique_ptr<EngineLink> engine;
  std::unique_ptr<HomeLink> home;
};

struct LinkProvider {
  std::string name;
  std::unique_ptr<LinkEnds> (*make)(const LinkSize& size, uint64_t epoch);
};

inline std::string LinkProviderName(const testing::TestParamInfo<LinkProvider>& info) { return info.param.name; }

// What EngineLink and HomeLink promise, whoever provides them: one event at a time and without threads. Instantiated by
// every provider's tests.
class LinkSuite : public testing::TestWithParam<LinkProvider> {
 protected:
  void SetUp() override;
  EngineLink* engine() { return ends_->engine.get(); }
  HomeLink* home() { return ends_->home.get(); }

  std::unique_ptr<LinkEnds> ends_;
  HopHeader hop_;
  ReplyHeader reply_;
  const std::byte* payload_ = nullptr;
};

// The same, between two threads that both run as fast as they can.
class LinkStressSuite : public testing::TestWithParam<LinkProvider> {};

// Three slots of 200 and 100 bytes, and messages that fill them.
LinkSize SmallSize();
HopHeader Hop(int slot, uint64_t step = 1, int layer = 0);
ReplyHeader ReplyTo(const HopHeader& hop);

// Bytes that differ by place and seed.
void FillPattern(std::byte* to, size_t bytes, uint64_t seed);
bool HasPattern(const std::byte* at, size_t bytes, uint64_t seed);

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_RDMA_LINK_SUITE_H_
