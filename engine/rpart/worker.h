#ifndef FASTDECODE_ENGINE_RPART_WORKER_H_
#define FASTDECODE_ENGINE_RPART_WORKER_H_

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/rpart/home.h"
#include "engine/rpart/messages.h"
#include "numa/log.h"
#include "rdma/link_monitor.h"
#include "rdma/shm/unix_bootstrap.h"

namespace fastdecode {

struct WorkerOptions {
  std::string listen_path;                // of the unix socket
  std::vector<HomeOptions> homes;         // at least one; a proposal's home_index picks from them
  std::optional<RPartShape> model_shape;  // serve no other model (DescribeModelDifference); none: any
  Logger* logger = nullptr;               // may be null; outlives the worker
};

// A process's homes, served to the engines that come to its socket: one link per home, one engine per home at a time.
// When an engine goes, however it goes, its homes are free for the next one. Owns: the listener, the homes. Thread: one
// control thread creates, runs and destroys it; Stop may be called by any.
class Worker {
 public:
  // Takes all KV memory, then opens the door.
  // Errors: InvalidArgument (no homes); those of Home::Create and UnixListener::Listen.
  static absl::StatusOr<std::unique_ptr<Worker>> Create(WorkerOptions options);
  // Detaches all homes.
  ~Worker();

  // Serves until Stop.
  void Run();
  // Run returns within a fraction of a second. A signal handler may call it.
  void Stop() { stopping_.store(true, std::memory_order_relaxed); }

  const Home& home(size_t index) const { return *homes_[index]; }
  size_t home_count() const { return homes_.size(); }

 private:
  Worker(WorkerOptions options, std::vector<std::unique_ptr<Home>> homes, std::unique_ptr<UnixListener> listener);

  void Decide(PendingLink* pending);
  // OK: *shape may be served by the home.
  absl::Status CheckProposal(const LinkProposal& proposal, RPartShape* shape);
  absl::Status Serve(PendingLink* pending, const RPartShape& shape);
  void FreeEndedHomes();
  void FreeHome(size_t index);
  void Log(LogLevel level, const std::string& message);

  // Constant after construction.
  const WorkerOptions options_;
  const std::vector<std::unique_ptr<Home>> homes_;
  const std::unique_ptr<UnixListener> listener_;

  // The control thread's.
  std::vector<uint64_t> engine_ids_;  // [home], of the engine that it serves
  LinkMonitor monitor_;

  std::atomic<bool> stopping_{false};
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_RPART_WORKER_H_
