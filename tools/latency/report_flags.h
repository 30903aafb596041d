#ifndef FASTDECODE_TOOLS_LATENCY_REPORT_FLAGS_H_
#define FASTDECODE_TOOLS_LATENCY_REPORT_FLAGS_H_

#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "tools/latency/analysis/requests.h"
#include "tools/latency/recording.h"
#include "tools/latency/result.h"

namespace fastdecode {

struct ReportMaterial;

// What becomes of what was measured: how it is shown, where it is saved, and, of a recording, what it is judged by.
class ReportFlags {
 public:
  void AddTo(CLI::App* command);  // of a recording
  void AddToWithoutRecording(CLI::App* command);

  // Before measuring: throws Error naming the option if a file cannot be written or a limit makes no sense.
  void Check();
  // Takes the recording apart, prints and saves what was asked for. `base` has what the recording does not know:
  // command, recording_cost, achieved, warnings. Throws Error; ExitCode if a limit was not met.
  void Report(Recording recording, LatencyResult base) const;
  // Without a recording.
  void ReportFigures(const LatencyResult& result) const;

 private:
  void Deliver(const ReportMaterial& material) const;

  bool recorded_ = true;
  std::string format_ = "text";
  bool json_ = false;
  std::vector<std::string> save_;
  std::vector<std::string> slo_texts_;
  size_t worst_ = 3;
  int columns_ = 0;  // 0: the terminal's
  std::vector<Slo> slos_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_REPORT_FLAGS_H_
