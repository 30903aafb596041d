#include "engine/record/record_reader.h"

#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/record/record_server.h"
#include "numa/clock.h"
#include "rdma/shm/unix_socket.h"

namespace fastdecode {

namespace {

constexpr size_t kHelloBytesMax = 128 << 10;
constexpr uint64_t kHelloTimeoutNs = 5'000'000'000;

// "1234 (bash)".
std::string ProcessName(pid_t pid) {
  std::string name;
  if (FILE* file = std::fopen(absl::StrFormat("/proc/%d/comm", pid).c_str(), "r")) {
    char line[64] = {};
    if (std::fgets(line, sizeof(line), file) != nullptr) name.assign(line, std::strcspn(line, "\n"));
    std::fclose(file);
  }
  return name.empty() ? absl::StrCat(pid) : absl::StrFormat("%d (%s)", pid, name);
}

absl::StatusOr<FileDescriptor> ConnectTo(const sockaddr_un& address, socklen_t length) {
  absl::StatusOr<FileDescriptor> socket = OpenSocket();
  if (!socket.ok()) return socket;
  if (connect(socket->get(), reinterpret_cast<const sockaddr*>(&address), length) == 0) return socket;
  switch (errno) {
    case ECONNREFUSED:
    case ENOENT:
      return absl::NotFoundError(std::strerror(errno));
    case EACCES:
    case EPERM:
      return absl::PermissionDeniedError(std::strerror(errno));
    default:
      return absl::UnavailableError(std::strerror(errno));
  }
}

absl::StatusOr<FileDescriptor> ConnectToPid(pid_t pid) {
  if (kill(pid, 0) != 0 && errno == ESRCH) return absl::NotFoundError(absl::StrFormat("there is no process %d", pid));
  socklen_t length = 0;
  const sockaddr_un address = RecordAddress(pid, &length);
  absl::StatusOr<FileDescriptor> socket = ConnectTo(address, length);
  if (absl::IsNotFound(socket.status())) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "process %s lets nobody read a recording: it is no engine, one with --record-socket off or with a path, or one in "
        "another network or pid namespace",
        ProcessName(pid)));
  }
  if (!socket.ok()) return absl::Status(socket.status().code(), absl::StrCat("process ", ProcessName(pid), ": ", socket.status().message()));
  const pid_t listener = ReadPeerCredentials(socket->get()).pid;
  if (listener != pid) {
    return absl::PermissionDeniedError(absl::StrFormat("process %s: process %s listens in its name", ProcessName(pid),
                                                       ProcessName(listener)));
  }
  return socket;
}

absl::StatusOr<FileDescriptor> ConnectToPath(const std::string& path) {
  const absl::StatusOr<sockaddr_un> address = SocketAddress(path);
  if (!address.ok()) return address.status();
  absl::StatusOr<FileDescriptor> socket = ConnectTo(*address, sizeof(*address));
  if (socket.ok()) return socket;
  return absl::Status(socket.status().code(),
                      absl::StrCat("no engine at the socket ", path, ": ", socket.status().message()));
}

}  // namespace

RecordReader::RecordReader(Recorder* recorder, nlohmann::json engine)
    : engine_(std::move(engine)), recorder_(recorder) {
  recorder->AddReader();
  for (int i = 0; i < Recorder::kRings; ++i) readers_.push_back(recorder->reader(static_cast<Recorder::Ring>(i)));
}

RecordReader::~RecordReader() {
  if (recorder_ != nullptr) recorder_->RemoveReader();
}

absl::StatusOr<std::unique_ptr<RecordReader>> RecordReader::Attach(const std::string& pid_or_socket) {
  pid_t pid = 0;
  const bool by_pid = absl::SimpleAtoi(pid_or_socket, &pid) && pid > 0;
  absl::StatusOr<FileDescriptor> connection = by_pid ? ConnectToPid(pid) : ConnectToPath(pid_or_socket);
  if (!connection.ok()) return connection.status();
  const std::string who = by_pid ? "process " + ProcessName(pid) : "the engine at " + pid_or_socket;

  std::string text(kHelloBytesMax, '\0');
  ReceivedPacket packet;
  ReceiveOutcome outcome = ReceiveOutcome::kNothing;
  const uint64_t deadline_ns = NowNs() + kHelloTimeoutNs;
  while (outcome == ReceiveOutcome::kNothing && WaitReadable(connection->get(), deadline_ns)) {
    outcome = ReceivePacket(connection->get(), text.data(), text.size(), &packet);
  }
  if (outcome == ReceiveOutcome::kNothing) {
    return absl::UnavailableError(
        absl::StrCat(who, " does not answer: it is stopped, or too many are reading its recording"));
  }
  if (outcome == ReceiveOutcome::kClosed) {
    const PeerCredentials engine = ReadPeerCredentials(connection->get());
    if (engine.pid != 0 && geteuid() != 0 && engine.uid != geteuid()) {
      return absl::PermissionDeniedError(absl::StrCat(who, " belongs to another user"));
    }
    return absl::UnavailableError(absl::StrCat(who, " closed the connection; is it ending?"));
  }
  const nlohmann::json hello = nlohmann::json::parse(text.substr(0, packet.bytes), nullptr, false);
  if (packet.malformed || !packet.fd.valid() || !hello.is_object() || !hello.contains("layout") ||
      !hello.contains("engine")) {
    return absl::FailedPreconditionError(absl::StrCat(who, " is no engine: it sent no recording"));
  }
  std::unique_ptr<RecordReader> reader(new RecordReader());
  absl::StatusOr<std::unique_ptr<MappedRings>> mapped = MappedRings::Map(hello["layout"], packet.fd.get());
  if (!mapped.ok()) return absl::FailedPreconditionError(absl::StrCat(who, ": ", mapped.status().message()));
  reader->engine_ = hello["engine"];
  reader->connection_ = *std::move(connection);
  reader->mapped_ = *std::move(mapped);
  reader->readers_ = reader->mapped_->Readers();
  return reader;
}

size_t RecordReader::Read(RecordEvent* out, size_t capacity, uint64_t* lost) {
  size_t count = 0;
  for (EventReader& reader : readers_) count += reader.Read(out + count, capacity - count, lost);
  return count;
}

bool RecordReader::Ended() {
  if (!connection_.valid()) return false;
  char byte;
  ReceivedPacket packet;
  return ReceivePacket(connection_.get(), &byte, sizeof(byte), &packet) == ReceiveOutcome::kClosed;
}

}  // namespace fastdecode
