// fastdecode latency attach: where the time of a running engine goes.
#include "tools/latency/attach.h"

#include <memory>
#include <string>
#include <utility>

#include <fastdecode/fastdecode.hpp>
#include "tools/interrupt.h"
#include "tools/latency/recorded_run.h"
#include "tools/latency/report_flags.h"

namespace fastdecode {

namespace {

struct AttachFlags {
  std::string target;
  RecordFlags record;
  ReportFlags report;
};

void LatencyAttach(AttachFlags& flags) {
  flags.report.Check();
  LatencyResult result;
  result.command = "attach";
  Recording recording;
  {
    EngineRecord record(flags.target);
    const InterruptGuard guard;
    recording = Record(record, flags.record, &result);
  }
  flags.report.Report(std::move(recording), std::move(result));
}

}  // namespace

void AddLatencyAttach(CLI::App* latency) {
  auto flags = std::make_shared<AttachFlags>();
  CLI::App* command =
      latency->add_subcommand("attach", "Record a running engine for some seconds: where the time of its tokens went");
  command->add_option("target", flags->target, "the engine's process id, or the path of its --record-socket")
      ->required()
      ->type_name("PID|SOCKET");
  flags->record.AddTo(command);
  flags->report.AddTo(command);
  command->callback([flags] { LatencyAttach(*flags); });
}

}  // namespace fastdecode
