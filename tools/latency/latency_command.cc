// fastdecode latency: where time goes.
#include "tools/commands.h"
#include "tools/latency/attach.h"
#include "tools/latency/clock.h"
#include "tools/latency/compare_command.h"
#include "tools/latency/fabric.h"
#include "tools/latency/hiccup.h"
#include "tools/latency/kernel.h"
#include "tools/latency/step.h"

namespace fastdecode {

void AddLatency(CLI::App& program) {
  CLI::App* latency = program.add_subcommand("latency", "Measure where time goes");
  latency->require_subcommand(1);
  AddLatencyStep(latency);
  AddLatencyAttach(latency);
  AddLatencyKernel(latency);
  AddLatencyFabric(latency);
  AddLatencyHiccup(latency);
  AddLatencyClock(latency);
  AddLatencyCompare(latency);
}

}  // namespace fastdecode
