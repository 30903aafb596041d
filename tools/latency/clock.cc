// fastdecode latency clock: whether the clock can be believed that all figures come from.
#include "tools/latency/clock.h"

#include <memory>
#include <string>

#include <fastdecode/fastdecode.hpp>
#include "numa/clock.h"
#include "tools/bench/summary.h"
#include "tools/latency/machine/clock_probe.h"
#include "tools/latency/machine/provenance.h"
#include "tools/latency/measured_cores.h"
#include "tools/latency/text/text.h"
#include "tools/option_values.h"
#include "tools/output.h"

namespace fastdecode {

namespace {

struct ClockFlags {
  MeasuredCores cores;
  double seconds = 2;
  int columns = 0;
  bool json = false;
};

void LatencyClock(ClockFlags& flags) {
  ClockOptions options;
  options.duration_ns = static_cast<uint64_t>(flags.seconds * 1e9);
  options.cores = flags.cores.Take();
  TickClock::Get();
  nlohmann::json provenance = ReadProvenance(SysRoot(), ProvenanceInput::Now(fd_version()));
  const ClockFacts facts = ExamineClock(options, SysRoot());
  if (flags.json) {
    nlohmann::json json = ToJson(facts);
    json["provenance"] = std::move(provenance);
    return WriteOut(ToLine(json));
  }
  const size_t width = static_cast<size_t>(flags.columns > 0 ? flags.columns : TerminalColumns());
  WriteOut("fastdecode latency clock\n" + FormatProvenance(provenance, "", width) + "\n" + FormatClock(facts, width));
}

}  // namespace

void AddLatencyClock(CLI::App* latency) {
  auto flags = std::make_shared<ClockFlags>();
  CLI::App* command = latency->add_subcommand(
      "clock", "Whether the clock can be believed: its rate, cost and steps, and whether cores agree on it");
  flags->cores.AddTo(command);
  command->add_option("--seconds", flags->seconds, "of the comparison with the kernel's clock")
      ->transform(Number(0.1, 86400.0))
      ->type_name("S")
      ->capture_default_str();
  command->add_option("--columns", flags->columns, "width of the text (0: the terminal's)")
      ->transform(Number(0, 1000))
      ->type_name("N")
      ->capture_default_str();
  command->add_flag("--json", flags->json, "one JSON object");
  command->callback([flags] { LatencyClock(*flags); });
}

}  // namespace fastdecode
