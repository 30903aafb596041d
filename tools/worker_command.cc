// fastdecode worker: serves this host's NUMA nodes as homes.
#include <atomic>
#include <csignal>
#include <cstdio>
#include <fastdecode/fastdecode.hpp>
#include <memory>
#include <optional>

#include "tools/commands.h"
#include "tools/engine_flags.h"
#include "tools/interrupt.h"

namespace fastdecode {

namespace {

// Handled on the main thread, which also ends the worker: all others leave the process's signals to it.
std::atomic<fd_worker*> running_worker = nullptr;

void StopOnSignal(int) { fd_worker_stop(running_worker); }

// What SIGHUP does, the terminal having gone, unless the worker was told to stay (nohup).
void HandleHangUp(void (*handler)(int)) {
  if (std::signal(SIGHUP, handler) == SIG_IGN) std::signal(SIGHUP, SIG_IGN);
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
  command->callback([flags] {
    const std::unique_ptr<EngineOptions> options = flags->Build();
    std::optional<WorkerServer> worker;
    {
      const InterruptGuard guard;  // taking memory takes a while, and leaves no socket behind
      worker.emplace(*options);
      if (const int signal = InterruptGuard::Signal(); signal != 0) throw Interrupted(signal);
    }
    running_worker = worker->get();
    std::signal(SIGINT, &StopOnSignal);
    std::signal(SIGTERM, &StopOnSignal);
    HandleHangUp(&StopOnSignal);
    // Only now: who reads that it listens may stop it.
    if (!flags->quiet()) std::fprintf(stderr, "%s", worker->Describe().c_str());
    worker->Run();
    // A second Ctrl-C or SIGTERM ends the process at once. One SIGHUP is often the second signal of a logout: what is
    // left to do is done.
    std::signal(SIGINT, SIG_DFL);
    std::signal(SIGTERM, SIG_DFL);
    HandleHangUp(SIG_IGN);
    running_worker = nullptr;
  });
}

}  // namespace fastdecode
