#include "tools/latency/recorded_run.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <new>
#include <thread>

#include "nlohmann/json.hpp"
#include "numa/clock.h"
#include "tools/doctor/sys_root.h"
#include "tools/interrupt.h"
#include "tools/latency/machine/interruptions.h"
#include "tools/latency/machine/provenance.h"
#include "tools/option_values.h"

namespace fastdecode {

namespace {

constexpr std::chrono::milliseconds kReadEvery(20);  // the rings hold a second or so

nlohmann::json CostOf(const Recording& recording, double seconds) {
  const double ns_per_event = recording.engine.value("ns_per_event", 0.0);
  const double events_per_s = static_cast<double>(recording.events.size() + recording.lost) / seconds;
  return {{"events", recording.events.size()},
          {"events_per_s", events_per_s},
          {"ns_per_event", ns_per_event},
          {"share", events_per_s * ns_per_event * 1e-9}};
}

// Address space alone: what no event is written to takes no memory, and the vector never has to move.
std::vector<fd_record_event> RoomFor(size_t events_max) {
  constexpr size_t kReadAtOnceMax = 1 << 18;  // what the rings hold
  std::vector<fd_record_event> events;
  try {
    events.reserve(events_max + kReadAtOnceMax);
  } catch (const std::bad_alloc&) {
    throw Error(FD_RESOURCE_EXHAUSTED, "--max-events: " + std::to_string(events_max) + " events of " +
                                           std::to_string(sizeof(fd_record_event)) + " bytes: no room for them");
  }
  return events;
}

}  // namespace

void RecordFlags::AddTo(CLI::App* command) {
  command->add_option("--seconds", seconds, "of recording")
      ->transform(Number(0.1, 86400.0))
      ->type_name("S")
      ->capture_default_str();
  command
      ->add_option("--max-events", events_max,
                   "recording ends early with so many: " + std::to_string(sizeof(fd_record_event)) +
                       " bytes of memory each, and half as much again for their analysis")
      ->transform(Number(1000, 100'000'000))
      ->type_name("N")
      ->capture_default_str();
}

Recording Record(EngineRecord& record, const RecordFlags& flags, LatencyResult* result,
                 const std::function<bool()>& given_up) {
  Recording recording;
  recording.events = RoomFor(flags.events_max);
  recording.engine = nlohmann::json::parse(record.DescribeJson());
  recording.provenance = ReadProvenance(SysRoot("/"), ProvenanceInput::Now(fd_version()));
  const int pid = recording.engine.value("pid", 0);
  const MachineSnapshot before = TakeSnapshot(SysRoot("/"), pid);
  const uint64_t start_ns = recording.start_ns = NowNs();
  const uint64_t end_ns = start_ns + static_cast<uint64_t>(flags.seconds * 1e9);
  while (NowNs() < end_ns && !record.ended() && InterruptGuard::Signal() == 0 && !given_up() &&
         recording.events.size() < flags.events_max) {
    std::this_thread::sleep_for(kReadEvery);
    recording.end_ns = NowNs();
    const size_t before = recording.events.size();
    record.ReadInto(&recording.events);
    SortIn(before, &recording.events);
  }
  const double seconds = static_cast<double>(NowNs() - start_ns) * 1e-9;
  recording.lost = record.lost();
  const Interruptions interruptions = FindInterruptions(before, TakeSnapshot(SysRoot("/"), pid));
  if (recording.events.empty() && !given_up()) {
    throw Error(FD_UNAVAILABLE, "nothing was recorded in " + std::to_string(seconds) +
                                    " s: the engine made no step, for want of requests or because it is stopped");
  }
  result->interrupted = interruptions.interrupted;
  result->warnings.insert(result->warnings.end(), interruptions.warnings.begin(), interruptions.warnings.end());
  if (InterruptGuard::Signal() != 0) result->warnings.push_back("a signal ended the recording early");
  if (record.ended()) result->warnings.push_back("the engine ended before the recording did");
  if (recording.events.size() >= flags.events_max) {
    result->warnings.push_back("the recording ended early, with --max-events " + std::to_string(flags.events_max));
  }
  result->recording_cost = CostOf(recording, seconds);
  return recording;
}

}  // namespace fastdecode
