#ifndef FASTDECODE_TOOLS_LATENCY_RECORDED_RUN_H_
#define FASTDECODE_TOOLS_LATENCY_RECORDED_RUN_H_

#include <cstddef>
#include <functional>
#include <string>

#include "CLI/CLI.hpp"
#include <fastdecode/fastdecode.hpp>
#include "tools/latency/recording.h"
#include "tools/latency/result.h"

namespace fastdecode {

// How long an engine is recorded, and how much of it is kept.
struct RecordFlags {
  double seconds = 10;
  size_t events_max = 8'000'000;

  void AddTo(CLI::App* command);
};

// Reads an engine's recording for so many seconds, or until a signal comes or the engine ends, and notes what the
// machine did to its threads meanwhile. Sets result->interrupted and recording_cost, adds to its warnings.
// `given_up`: asked now and then; true ends the recording. Throws Error if nothing was recorded and nobody gave up.
Recording Record(EngineRecord& record, const RecordFlags& flags, LatencyResult* result,
                 const std::function<bool()>& given_up = [] { return false; });

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_RECORDED_RUN_H_
