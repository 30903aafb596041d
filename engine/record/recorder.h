#ifndef FASTDECODE_ENGINE_RECORD_RECORDER_H_
#define FASTDECODE_ENGINE_RECORD_RECORDER_H_

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/record/event_ring.h"
#include "nlohmann/json.hpp"
#include "rdma/file_descriptor.h"

namespace fastdecode {

// The rings of an engine's threads, in one piece of memory that other processes can map (record_server.h), unless the
// kernel refuses what that needs. They take memory from the first reader on; while nobody reads, a thread looks at one
// word and goes on.
//
// Owns: the memory. Thread: any; each writer its own thread. Bounded: fixed memory.
class Recorder {
 public:
  enum Ring { kPipelineRing, kDeskRing, kRings };

  // Errors: ResourceExhausted if there is no room for the rings.
  static absl::StatusOr<std::unique_ptr<Recorder>> Create();
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  EventWriter writer(Ring ring) const { return EventWriter(rings_[ring]); }
  EventReader reader(Ring ring) const { return EventReader(rings_[ring]); }

  // Every ring is on while somebody reads.
  void AddReader();
  void RemoveReader();

  // For a process that maps the memory: what lies where. fd: to be passed on, for reading only; -1: there is none.
  nlohmann::json Layout() const;
  int fd() const { return memory_.read_only.get(); }
  // Why no other process can map the memory ("memfd_create: Operation not permitted"); empty: it can.
  const std::string& not_shared() const { return memory_.not_shared; }

 private:
  struct Memory {
    FileDescriptor whole, read_only;
    std::string not_shared;
  };
  static Memory OpenMemory();
  Recorder(Memory memory, std::byte* base);

  const Memory memory_;
  std::byte* const base_;
  std::vector<EventRing> rings_;
  std::mutex mutex_;
  bool touched_ = false;
};

// What one event costs its writer on this machine, with a reading of the clock, ns. Takes about a millisecond.
double MeasureEventNs();

// Rings of another process, by its Layout() and descriptor. Owns: the mapping.
class MappedRings {
 public:
  // Errors: InvalidArgument if layout and descriptor do not fit together or are of another version.
  static absl::StatusOr<std::unique_ptr<MappedRings>> Map(const nlohmann::json& layout, int fd);
  ~MappedRings();
  MappedRings(const MappedRings&) = delete;
  MappedRings& operator=(const MappedRings&) = delete;

  std::vector<EventReader> Readers() const;

 private:
  MappedRings(std::byte* base, size_t bytes) : base_(base), bytes_(bytes) {}

  std::byte* const base_;
  const size_t bytes_;
  std::vector<EventRing> rings_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_RECORD_RECORDER_H_
