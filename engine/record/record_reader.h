#ifndef FASTDECODE_ENGINE_RECORD_RECORD_READER_H_
#define FASTDECODE_ENGINE_RECORD_RECORD_READER_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/record/recorder.h"
#include "nlohmann/json.hpp"
#include "rdma/file_descriptor.h"

namespace fastdecode {

// What fd_record is: a reader of an engine's rings, which are on as long as it lives.
// Owns: the connection and the mapping, of an engine of another process. Thread: one at a time. Bounded.
class RecordReader {
 public:
  // Of this process. `recorder` must outlive the reader.
  RecordReader(Recorder* recorder, nlohmann::json engine);
  // Of another. Errors: those of fd_record_attach.
  static absl::StatusOr<std::unique_ptr<RecordReader>> Attach(const std::string& pid_or_socket);
  ~RecordReader();
  RecordReader(const RecordReader&) = delete;
  RecordReader& operator=(const RecordReader&) = delete;

  const nlohmann::json& engine() const { return engine_; }
  size_t Read(RecordEvent* out, size_t capacity, uint64_t* lost);
  // The other process has gone.
  bool Ended();

 private:
  RecordReader() = default;

  nlohmann::json engine_;
  Recorder* recorder_ = nullptr;         // of this process, or:
  FileDescriptor connection_;
  std::unique_ptr<MappedRings> mapped_;
  std::vector<EventReader> readers_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_RECORD_RECORD_READER_H_
