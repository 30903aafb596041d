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
#include "rdma/bootstrap.h"
#include "rdma/link_monitor.h"

namespace fastdecode {

struct WorkerOptions {
  Endpoint listen;                        // where engines come to; not kLocal
  FabricOptions fabric;                   // of links to other hosts
  std::vector<HomeOptions> homes;         // at least one; a proposal's home_index picks from them
  std::optional<RPartShape> model_shape;  // serve no other model (DescribeModelDifference); none: any
  uint64_t grace_ns = 30'000'000'000;     // how long Drain waits for engines to leave
  Logger* logger = nullptr;               // may be null; outlives the worker
};

// A process's homes, served to the engines that come to its socket: one link per home and engine, and as many engines
// at a time as HomeOptions::peers says. When an engine goes, however it goes, its place at its homes is free for the
// next one. An engine that comes again, under the same id and role, takes the place of its old self.
// Owns: the listener, the homes, the monitor of their links. Thread: one control thread creates, runs and destroys it;
// Stop may be called by any.
class Worker {
 public:
  // Opens the door, then takes all KV memory, which may take a minute. Engines that come meanwhile wait as long as
  // their timeouts let them: 10 s at their start, 1 s on return, which they try again.
  //
  // Errors: InvalidArgument (no homes); those of ListenAt and Home::Create.
  static absl::StatusOr<std::unique_ptr<Worker>> Create(WorkerOptions options);
  // Detaches all homes.
  ~Worker();

  // Serves until Stop.
  void Run();
  // Run returns within a fraction of a second. A signal handler may call it.
  void Stop() { stopping_.store(true, std::memory_order_relaxed); }
  // The engines are told, and bring no more sequences; no more engines are taken. Run returns when none has a sequence
  // here any more, at the latest after WorkerOptions::grace_ns. A signal handler may call it.
  void Drain() { draining_.store(true, std::memory_order_relaxed); }

  const Home& home(size_t index) const { return *homes_[index]; }
  size_t home_count() const { return homes_.size(); }

 private:
  Worker(WorkerOptions options, std::unique_ptr<Listener> listener);
  absl::Status MakeHomes();

  void Decide(PendingLink* pending);
  // OK: the proposal is sound, and *shape is one of the worker's model that its home can serve.
  absl::Status CheckProposal(const LinkProposal& proposal, RPartShape* shape, PeerRequest* peer) const;
  absl::Status Serve(PendingLink* pending, const HomeDescription& offer, const RPartShape& shape, PeerRequest peer);
  void MakeWay(size_t index, const PeerId& id);
  void BeginToDrain();
  bool MayEnd() const;
  void FreeEnded(size_t index);
  void Free(size_t index, PeerSession* session);
  void Log(LogLevel level, const std::string& message);

  const WorkerOptions options_;
  const std::unique_ptr<Listener> listener_;
  LinkMonitor monitor_;  // of the homes' ends of all links
  std::vector<std::unique_ptr<Home>> homes_;

  uint64_t drain_until_ns_ = 0;  // 0: it does not drain

  std::atomic<bool> stopping_{false};
  std::atomic<bool> draining_{false};
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_RPART_WORKER_H_
