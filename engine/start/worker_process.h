#ifndef FASTDECODE_ENGINE_START_WORKER_PROCESS_H_
#define FASTDECODE_ENGINE_START_WORKER_PROCESS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/record/abstract_socket.h"
#include "engine/rpart/worker.h"
#include "engine/start/options.h"
#include "numa/core_plan.h"
#include "numa/log.h"

namespace fastdecode {

// A worker made from options: every usable NUMA node a home. What the C interface's fd_worker is.
// Owns: the worker, its log, its cores' reservation. Thread: one, except Stop and Drain, which any thread or signal
// handler may call.
class WorkerProcess {
 public:
  static absl::StatusOr<std::unique_ptr<WorkerProcess>> Create(const Options& options);

  std::string Describe() const;
  absl::Status Run();
  void Stop() { worker_->Stop(); }
  void Drain() { worker_->Drain(); }

 private:
  explicit WorkerProcess(const Options& options);
  absl::Status Start();

  const Options options_;
  const ProcessSign sign_;  // for those who look here for an engine's recording
  Logger log_;
  ReservedCorePlan cores_;
  std::string machine_;
  std::unique_ptr<Worker> worker_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_START_WORKER_PROCESS_H_
