#ifndef FASTDECODE_TESTS_ENGINE_PIPELINE_HOME_THREAD_H_
#define FASTDECODE_TESTS_ENGINE_PIPELINE_HOME_THREAD_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "rdma/link.h"
#include "tests/engine/pipeline/home_model.h"

namespace fastdecode {

// A HomeModel at the home's end of a real link. Once the engine says that it is idle, it sleeps until it is rung and
// for no other reason, so that a ring that is missing hangs the test. A rule that the engine breaks is a gtest failure
// and loses the link. Owns: the link's end, the thread. Thread: the owner's; the counters any.
class HomeThread {
 public:
  HomeThread(const RPartShape& shape, uint32_t pages, std::unique_ptr<HomeLink> link);
  // Loses the link and joins.
  ~HomeThread();

  uint64_t sleeps() const { return sleeps_.load(); }
  void Join();

 private:
  void Run();
  bool Turn();
  void TakeHop(const HopHeader& hop, const std::byte* rows);
  void RunHop(const HopHeader& hop, const std::byte* rows);
  bool TakeControl();
  void Violate(const std::string& what);

  struct WaitingHop {
    bool waiting = false;
    HopHeader hop;
    const std::byte* rows = nullptr;
  };

  const RPartShape shape_;
  const std::unique_ptr<HomeLink> link_;
  HomeModel model_;
  std::vector<WaitingHop> waiting_;
  std::vector<std::byte> buffer_;
  std::atomic<uint64_t> sleeps_{0};
  std::thread thread_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_ENGINE_PIPELINE_HOME_THREAD_H_
