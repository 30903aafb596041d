#ifndef FASTDECODE_TESTS_RDMA_LINK_SUITE_H_
#define FASTDECODE_TESTS_RDMA_LINK_SUITE_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>

#include "rdma/link.h"
#include "tests/rdma/link_messages.h"

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

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_RDMA_LINK_SUITE_H_
