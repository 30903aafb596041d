#include "engine/record/record_server.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <exception>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/record/abstract_socket.h"
#include "rdma/shm/unix_socket.h"

namespace fastdecode {

namespace {

absl::StatusOr<FileDescriptor> ListenAbstract() {
  absl::StatusOr<FileDescriptor> socket = ListenAtName(AbstractAddress(kRecordName, getpid()), RecordServer::kReadersMax);
  if (socket.ok()) return socket;
  const std::string why = absl::StrCat("--record-socket: auto: ", socket.status().message());
  if (!absl::IsAlreadyExists(socket.status())) return absl::Status(socket.status().code(), why);
  return absl::AlreadyExistsError(absl::StrCat(why, "; another engine with this process id has it (of this process, or "
                                                    "of another container on this network); give it a path"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<RecordServer>> RecordServer::Start(const std::string& path, Recorder* recorder,
                                                                  std::function<nlohmann::json()> describe) {
  if (!recorder->not_shared().empty()) {
    return absl::FailedPreconditionError(absl::StrCat("--record-socket: ", recorder->not_shared()));
  }
  std::unique_ptr<RecordServer> server(new RecordServer(recorder, std::move(describe)));
  if (path.empty()) {
    absl::StatusOr<FileDescriptor> socket = ListenAbstract();
    if (!socket.ok()) return socket.status();
    server->abstract_ = *std::move(socket);
  } else {
    absl::StatusOr<SocketFile> file = SocketFile::Listen(path);
    if (!file.ok())
      return absl::Status(file.status().code(), absl::StrCat("--record-socket: ", file.status().message()));
    server->file_ = std::make_unique<SocketFile>(*std::move(file));
  }
  server->stop_ = FileDescriptor(eventfd(0, EFD_CLOEXEC));
  if (!server->stop_.valid()) {
    return absl::ResourceExhaustedError(absl::StrCat("--record-socket: eventfd: ", std::strerror(errno)));
  }
  try {
    server->thread_ = PinnedThread("fd-record", -1, [raw = server.get()] { raw->Run(); });
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(absl::StrCat("--record-socket: ", error.what()));
  }
  return server;
}

RecordServer::~RecordServer() {
  if (!thread_.joinable()) return;
  eventfd_write(stop_.get(), 1);
  thread_.Join();
}

void RecordServer::Run() {
  for (;;) {
    std::vector<pollfd> polled = {{stop_.get(), POLLIN, 0}};
    // With all places taken the others wait in the backlog.
    polled.push_back({readers_.size() < kReadersMax ? listening() : -1, POLLIN, 0});
    for (const FileDescriptor& reader : readers_) polled.push_back({reader.get(), POLLIN, 0});
    if (poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) break;
    if (polled[0].revents != 0) break;
    DropGone(polled);
    if (polled[1].revents != 0) LetIn();
  }
  // Shut down rather than closed alone: a forked child may have them open for as long as it likes.
  shutdown(listening(), SHUT_RDWR);
  for (const FileDescriptor& reader : readers_) {
    shutdown(reader.get(), SHUT_RDWR);
    recorder_->RemoveReader();
  }
  readers_.clear();
}

// A reader has nothing to say: whatever can be read from it is its end.
void RecordServer::DropGone(const std::vector<pollfd>& polled) {
  for (size_t i = readers_.size(); i-- > 0;) {
    if (polled[2 + i].revents == 0) continue;
    recorder_->RemoveReader();
    readers_.erase(readers_.begin() + static_cast<ptrdiff_t>(i));
  }
}

void RecordServer::LetIn() {
  FileDescriptor reader(accept4(listening(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!reader.valid()) {
    PauseIfExhausted(errno);
    return;
  }
  const PeerCredentials peer = ReadPeerCredentials(reader.get());
  if (peer.uid != 0 && peer.uid != geteuid()) return;
  std::string text;
  try {
    const nlohmann::json hello = {{"engine", describe_()}, {"layout", recorder_->Layout()}};
    text = hello.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  } catch (const std::exception&) {
    return;  // no memory: this reader goes, the engine stays
  }
  recorder_->AddReader();
  if (!SendPacket(reader.get(), text.data(), text.size(), recorder_->fd()).ok()) {
    recorder_->RemoveReader();
    return;
  }
  readers_.push_back(std::move(reader));
}

}  // namespace fastdecode
