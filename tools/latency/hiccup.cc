// fastdecode latency hiccup: how steadily the cores run that would do the work, and what takes them away.
#include "tools/latency/hiccup.h"

#include <memory>
#include <string>
#include <vector>

#include <fastdecode/fastdecode.hpp>
#include "numa/clock.h"
#include "tools/bench/summary.h"
#include "tools/interrupt.h"
#include "tools/latency/machine/hiccup_probe.h"
#include "tools/latency/machine/hiccup_report.h"
#include "tools/latency/machine/provenance.h"
#include "tools/latency/measured_cores.h"
#include "tools/latency/text/text.h"
#include "tools/latency/text/units.h"
#include "tools/option_values.h"
#include "tools/output.h"

namespace fastdecode {

namespace {

// Readings of the clock are some 10 ns apart, and not all alike.
constexpr double kThresholdNsMin = 200;

struct HiccupFlags {
  MeasuredCores cores;
  double seconds = 10;
  std::string threshold = "2us";
  size_t worst = 10;
  int columns = 0;
  bool json = false;
};

uint64_t ParseThreshold(const std::string& text) {
  const std::optional<double> ns = ParseNs(text);
  if (!ns || *ns < kThresholdNsMin) {
    throw Error(FD_INVALID_ARGUMENT,
                "--threshold: '" + text + "' is no duration of 200 ns or more, such as 2us (ns, us, ms or s)");
  }
  return static_cast<uint64_t>(*ns);
}

bool StopAsked() { return InterruptGuard::Signal() != 0; }

void LatencyHiccup(HiccupFlags& flags) {
  HiccupOptions options;
  options.threshold_ns = ParseThreshold(flags.threshold);
  options.duration_ns = static_cast<uint64_t>(flags.seconds * 1e9);
  options.cores = flags.cores.Take();
  TickClock::Get();
  nlohmann::json provenance = ReadProvenance(SysRoot(), ProvenanceInput::Now(fd_version()));
  options.hypervisor = provenance["cpu"]["hypervisor"] != "none";
  const InterruptGuard guard;  // ends the measurement, and what there is until then is said
  const std::vector<HiccupCore> cores = MeasureHiccups(options, &StopAsked);
  if (flags.json) {
    nlohmann::json json = HiccupsToJson(cores, options, flags.worst);
    json["provenance"] = std::move(provenance);
    WriteOut(ToLine(json));
  } else {
    const size_t width = static_cast<size_t>(flags.columns > 0 ? flags.columns : TerminalColumns());
    WriteOut("fastdecode latency hiccup\n" + FormatProvenance(provenance, "", width) + "\n" +
             FormatHiccups(cores, options, flags.worst, width));
  }
}

}  // namespace

void AddLatencyHiccup(CLI::App* latency) {
  auto flags = std::make_shared<HiccupFlags>();
  CLI::App* command = latency->add_subcommand(
      "hiccup", "How steadily cores run: when something else had them, for how long, and what it was");
  flags->cores.AddTo(command);
  command->add_option("--seconds", flags->seconds, "how long")
      ->transform(Number(0.01, 86400.0))
      ->type_name("S")
      ->capture_default_str();
  command->add_option("--threshold", flags->threshold, "what is longer is a hiccup, with its unit")
      ->type_name("TIME")
      ->capture_default_str();
  command->add_option("--worst", flags->worst, "hiccups shown one by one, the longest")
      ->transform(Number(0, 100'000))
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--columns", flags->columns, "width of the text (0: the terminal's)")
      ->transform(Number(0, 1000))
      ->type_name("N")
      ->capture_default_str();
  command->add_flag("--json", flags->json, "one JSON object");
  command->callback([flags] { LatencyHiccup(*flags); });
}

}  // namespace fastdecode
