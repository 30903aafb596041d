#include "rdma/shm/local_link.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "numa/arena.h"
#include "numa/parker.h"
#include "rdma/shm/shm_link.h"

namespace fastdecode {

namespace {

// What the two ends share.
struct LocalPair {
  LocalPair(const LinkSize& size, Arena home, Arena engine)
      : home_arena(std::move(home)),
        engine_arena(std::move(engine)),
        regions{HomeRegion(reinterpret_cast<std::byte*>(home_arena.data()), size),
                EngineRegion(reinterpret_cast<std::byte*>(engine_arena.data()), size)} {}

  const Arena home_arena;
  const Arena engine_arena;
  const ShmRegions regions;
  LossRecord engine_loss;
  LossRecord home_loss;
};

class LocalEngineBacking final : public ShmBacking {
 public:
  explicit LocalEngineBacking(std::shared_ptr<LocalPair> pair) : pair_(std::move(pair)) {}

  LossRecord* loss() override { return &pair_->engine_loss; }
  void TellPeer(const char* cause) override {
    pair_->home_loss.Set(absl::StrCat("the engine gave the link up: ", cause).c_str());
    Parker(pair_->regions.home.park_word()).RingAfterRelease();
  }
  std::string peer_name() const override { return "home in this process"; }

 private:
  const std::shared_ptr<LocalPair> pair_;
};

class LocalHomeBacking final : public ShmBacking {
 public:
  explicit LocalHomeBacking(std::shared_ptr<LocalPair> pair) : pair_(std::move(pair)) {}

  LossRecord* loss() override { return &pair_->home_loss; }
  void TellPeer(const char* cause) override {
    pair_->engine_loss.Set(absl::StrCat("the home gave the link up: ", cause).c_str());
  }
  std::string peer_name() const override { return "engine in this process"; }

 private:
  const std::shared_ptr<LocalPair> pair_;
};

absl::StatusOr<Arena> MakeRegionArena(size_t bytes, int node) {
  ArenaOptions options;
  options.bytes = bytes;
  options.node = node;
  return Arena::Create(options);
}

}  // namespace

absl::StatusOr<LocalLink> MakeLocalLink(const LinkSize& size, int home_node, int engine_node, uint64_t epoch) {
  if (absl::Status status = CheckLinkSize(size); !status.ok()) return status;
  absl::StatusOr<Arena> home_arena = MakeRegionArena(HomeRegion::Bytes(size), home_node);
  if (!home_arena.ok()) return home_arena.status();
  absl::StatusOr<Arena> engine_arena = MakeRegionArena(EngineRegion::Bytes(size), engine_node);
  if (!engine_arena.ok()) return engine_arena.status();

  auto pair = std::make_shared<LocalPair>(size, *std::move(home_arena), *std::move(engine_arena));
  LocalLink link;
  link.engine = std::make_unique<ShmEngineLink>(size, epoch, pair->regions, std::make_unique<LocalEngineBacking>(pair));
  link.home = std::make_unique<ShmHomeLink>(size, epoch, pair->regions, std::make_unique<LocalHomeBacking>(pair));
  return link;
}

}  // namespace fastdecode
