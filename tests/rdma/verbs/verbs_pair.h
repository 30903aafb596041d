#ifndef FASTDECODE_TESTS_RDMA_VERBS_VERBS_PAIR_H_
#define FASTDECODE_TESTS_RDMA_VERBS_VERBS_PAIR_H_

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>

#include "rdma/verbs/verbs_link.h"
#include "tests/rdma/gpu/made_up_cuda.h"
#include "tests/rdma/verbs/fake_fabric.h"
#include "tests/rdma/verbs/fake_peer_channel.h"

namespace fastdecode {

// Both ends of a verbs link over a made-up fabric.
struct VerbsPair {
  struct Options {
    LinkSize size = {};
    FakeFabricOptions fabric = {};
    bool checksum = false;
    uint64_t epoch = 7;
    uint64_t (*now_ns)() = NowNs;
    MadeUpCuda* cuda = nullptr;  // the engine's payload lies in its GPU's memory; must outlive the pair
  };

  explicit VerbsPair(const Options& options) : fabric(options.fabric), calls(fabric.Calls()) {
    VerbsOptions verbs;
    verbs.checksum = options.checksum;
    verbs.calls = &calls;
    verbs.now_ns = options.now_ns;
    if (options.now_ns == NowNs) verbs.fabric.heartbeat_timeout_ns = 60'000'000'000;  // threads may stand still
    auto home_end = VerbsEnd::Create(verbs, options.size, LinkRole::kHome, -1);
    if (options.cuda != nullptr) {
      verbs.fabric.gpu = 0;
      verbs.cuda = std::make_shared<const CudaDriver>(options.cuda->Driver());
    }
    auto engine_end = VerbsEnd::Create(verbs, options.size, LinkRole::kEngine, -1);
    EXPECT_TRUE(engine_end.ok()) << engine_end.status();
    EXPECT_TRUE(home_end.ok()) << home_end.status();
    EXPECT_TRUE((*home_end)->Connect((*engine_end)->parameters()).ok());
    EXPECT_TRUE((*engine_end)->Connect((*home_end)->parameters()).ok());
    engine_context = (*engine_end)->device().context.get();
    home_context = (*home_end)->device().context.get();
    engine_wiring = (*engine_end)->wiring();
    home_wiring = (*home_end)->wiring();
    to_engine = std::make_shared<FakeWire>();
    to_home = std::make_shared<FakeWire>();
    engine = *MakeVerbsEngineLink(*std::move(engine_end), options.epoch,
                                  std::make_unique<FakePeerChannel>("the home", to_engine, to_home));
    home = *MakeVerbsHomeLink(*std::move(home_end), options.epoch,
                              std::make_unique<FakePeerChannel>("the engine", to_home, to_engine));
  }

  // Nothing may have been wrong, and nothing may be left once both ends are gone.
  void ExpectClean() {
    engine.reset();
    home.reset();
    EXPECT_EQ(fabric.live_objects(), 0);
    for (const std::string& violation : fabric.violations()) ADD_FAILURE() << violation;
  }

  FakeFabric fabric;
  VerbsCalls calls;
  ibv_context* engine_context;
  ibv_context* home_context;
  VerbsWiring engine_wiring;
  VerbsWiring home_wiring;
  std::shared_ptr<FakeWire> to_engine;
  std::shared_ptr<FakeWire> to_home;
  std::unique_ptr<EngineLink> engine;
  std::unique_ptr<HomeLink> home;
};

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_RDMA_VERBS_VERBS_PAIR_H_
