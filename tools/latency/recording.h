#ifndef FASTDECODE_TOOLS_LATENCY_RECORDING_H_
#define FASTDECODE_TOOLS_LATENCY_RECORDING_H_

#include <cstdint>
#include <string>
#include <vector>

#include "engine/fastdecode.h"
#include "nlohmann/json.hpp"

namespace fastdecode {

// When a request was meant to start, for open loop: it may have been submitted later than that.
struct IntendedStart {
  uint64_t id = 0;
  uint64_t intended_ns = 0;
  uint64_t submit_ns = 0;
};

// What an engine did during some seconds, as it recorded it (fd_record_event), and what was known beside it.
struct Recording {
  nlohmann::json engine;                    // fd_record_describe
  nlohmann::json provenance;                // of the machine that measured (provenance.h)
  std::vector<fd_record_event> events;      // ascending by end_ns
  uint64_t lost = 0;                        // events that were overwritten before they were read
  std::vector<IntendedStart> intended;      // by id; empty: requests are meant to start when they are submitted

  int layers() const { return engine.value("layers", 0); }
  int micro_batches() const { return engine.value("micro_batches", 0); }
  // "home 1 (10.0.0.2:7000, home 0)".
  std::string HomeName(int home) const;
  // [homes] whether it runs on the engine's host.
  std::vector<bool> SameHost(int homes) const;
};

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_RECORDING_H_
