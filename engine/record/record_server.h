#ifndef FASTDECODE_ENGINE_RECORD_RECORD_SERVER_H_
#define FASTDECODE_ENGINE_RECORD_RECORD_SERVER_H_

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/record/recorder.h"
#include "numa/pinned_thread.h"
#include "rdma/file_descriptor.h"
#include "rdma/shm/socket_file.h"

namespace fastdecode {

// The door for readers of other processes. Each gets one packet, {"engine": description, "layout": Recorder::Layout()}
// with the memory's descriptor, and keeps recording on as long as it keeps the socket open. Only processes of the same
// user, or root's, get in.
//
// Owns: the sockets and the thread that waits at them; the recorder is lent. Thread: made and destroyed by any one.
// Bounded: kReadersMax at a time.
class RecordServer {
 public:
  static constexpr size_t kReadersMax = 8;

  // `path`: of a socket file; empty: at the abstract address of this process (abstract_socket.h). `describe` is called by the server's thread.
  // Errors: those of SocketFile::Listen; AlreadyExists if this process has such a server; FailedPrecondition if no other
  // process can map the recorder's memory.
  static absl::StatusOr<std::unique_ptr<RecordServer>> Start(const std::string& path, Recorder* recorder,
                                                             std::function<nlohmann::json()> describe);
  ~RecordServer();
  RecordServer(const RecordServer&) = delete;
  RecordServer& operator=(const RecordServer&) = delete;

 private:
  RecordServer(Recorder* recorder, std::function<nlohmann::json()> describe)
      : recorder_(recorder), describe_(std::move(describe)) {}

  void Run();
  void LetIn();
  void DropGone(const std::vector<pollfd>& polled);
  int listening() const { return file_ != nullptr ? file_->fd() : abstract_.get(); }

  Recorder* const recorder_;
  const std::function<nlohmann::json()> describe_;
  std::unique_ptr<SocketFile> file_;  // one of the two
  FileDescriptor abstract_;
  FileDescriptor stop_;  // an eventfd: written to, it ends the thread, whatever a forked child still has open
  std::vector<FileDescriptor> readers_;    // the thread's
  PinnedThread thread_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_RECORD_RECORD_SERVER_H_
