#ifndef FASTDECODE_TOOLS_LATENCY_RECORDING_H_
#define FASTDECODE_TOOLS_LATENCY_RECORDING_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <fastdecode/fastdecode.h>
#include "nlohmann/json.hpp"

namespace fastdecode {

// When a request was meant to start, for open loop: it may have been submitted later than that, or not at all.
struct IntendedStart {
  uint64_t id = 0;  // 0: the engine never took it
  uint64_t intended_ns = 0;
  uint64_t submit_ns = 0;
  uint64_t ended_ns = 0;  // when its caller saw its end; 0: never

  bool Submitted() const { return id != 0; }
  // Without an event until then: it waited, unless it had ended before.
  bool WaitedUntil(uint64_t ns) const { return intended_ns < ns && (ended_ns == 0 || ended_ns >= ns); }
};

// What an engine did during some seconds, as it recorded it (fd_record_event), and what was known beside it.
struct Recording {
  nlohmann::json engine;                    // fd_record_describe
  nlohmann::json provenance;                // of the machine that measured (provenance.h)
  std::vector<fd_record_event> events;      // ascending by end_ns
  uint64_t start_ns = 0;                    // engine clock: when the reading began; 0: with its first event
  uint64_t end_ns = 0;                      // engine clock: what ended before is there; 0: until its last event
  uint64_t lost = 0;                        // events that were overwritten before they were read
  double memory_gb_per_s = 0;               // what the cores of one of its homes read; 0: not measured
  std::vector<IntendedStart> intended;      // empty: requests are meant to start when they are submitted

  uint64_t StartNs() const { return start_ns > 0 || events.empty() ? start_ns : events.front().end_ns; }
  uint64_t EndNs() const { return end_ns > 0 || events.empty() ? end_ns : events.back().end_ns; }
  int layers() const { return engine.value("layers", 0); }
  int micro_batches() const { return engine.value("micro_batches", 0); }
  // Stages run on a GPU, beside the pipeline thread, and several micro-batches' at once.
  bool stages_overlap() const { return engine.is_object() && engine.value("s_part_asynchronous", false); }
  // "home 1 (10.0.0.2:7000, home 0)".
  std::string HomeName(int home) const;
  // [homes] whether it runs on the engine's host.
  std::vector<bool> SameHost(int homes) const;
};

// Events come in the order in which each thread wrote them, which is nearly that of their ends. The first `sorted` of
// `events` are ascending by end_ns; all are then, those of equal ends in the order in which they came. In place but for
// those that are out of order, and what lies behind the first of them.
void SortIn(size_t sorted, std::vector<fd_record_event>* events);

// The physical memory behind the end of `events` goes back to the kernel, and its place stays: shrink_to_fit() would need
// both the old memory and the new at once.
void ReleaseBehindEnd(std::vector<fd_record_event>* events);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_RECORDING_H_
