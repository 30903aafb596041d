// fastdecode worker: serves this host's NUMA nodes as homes.
#include <atomic>
#include <cstdio>
#include <fastdecode/fastdecode.hpp>
#include <memory>

#include "tools/commands.h"
#include "tools/engine_flags.h"
#include "tools/interrupt.h"

namespace fastdecode {

namespace {

std::atomic<fd_worker*> running_worker = nullptr;  // null: there is none to stop yet, or any more

// Called by the handler of the first signal.
void DrainWorker() {
  if (fd_worker* const worker = running_worker; worker != nullptr) fd_worker_drain(worker);
}

void RunWorker(const EngineFlags& flags) {
  const std::unique_ptr<EngineOptions> options = flags.Build();
  // Until the worker is gone: taking memory and giving it back takes a while, and leaves no socket behind.
  const InterruptGuard guard(
      "the worker is ending as soon as no engine has a sequence here (--grace-s); a signal that comes a second later "
      "ends it at once",
      &DrainWorker);
  WorkerServer worker(*options);
  running_worker = worker.get();
  ThrowIfInterrupted();  // nobody was served
  // Only now: who reads that it listens may stop it.
  if (!flags.quiet()) std::fprintf(stderr, "%s", worker.Describe().c_str());
  worker.Run();
  running_worker = nullptr;
}

}  // namespace

void AddWorker(CLI::App& program) {
  CLI::App* command = program.add_subcommand("worker", "Serve this host's NUMA nodes as homes for an engine");
  const std::vector<FlagHelp> helps = {
      {"listen", "where engines connect; needed"},
      {"peers", "engines that each home serves at once, 1 to 16; each has pages reserved for it [1]"},
      {"model", "serve only engines with this model's shape (default: any)"},
      {"r-cores", "cores of the homes' teams (default: all)"},
      {"kv-gib",
       "KV memory of each home (0: the homes share a quarter of what is free, in all and on their nodes) [0]"}};
  auto flags = std::make_shared<EngineFlags>(command, WorkerFlagNames(), helps);
  command->callback([flags] { RunWorker(*flags); });
}

}  // namespace fastdecode
