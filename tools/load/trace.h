#ifndef FASTDECODE_TOOLS_LOAD_TRACE_H_
#define FASTDECODE_TOOLS_LOAD_TRACE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "tools/load/plan.h"

namespace fastdecode::load {

// Requests that somebody recorded.
struct Trace {
  std::vector<PlannedRequest> requests;  // their arrivals are at a mean rate of 1
  double rate = 0;                       // the trace's own mean rate, 1/s; 0: all arrived at once, or there is one
  size_t left_out = 0;                   // that had no answer
};

// Reads a trace of BurstGPT (CSV with Timestamp in seconds, Request tokens and Response tokens) or of Mooncake (JSONL
// with timestamp in ms, input_length and output_length; what prompts have in common is not read). `count`: so many
// requests at most; 0: all. Throws Error naming `option`, file, line and field.
Trace ReadTrace(const std::string& option, const std::string& path, size_t count);

}  // namespace fastdecode::load

#endif  // FASTDECODE_TOOLS_LOAD_TRACE_H_
