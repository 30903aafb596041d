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
#include "engine/record/abstract_socket.h"
#include "engine/record/no_recording.h"
#include "numa/clock.h"
#include "rdma/shm/unix_socket.h"

namespace fastdecode {

namespace {

constexpr size_t kHelloBytesMax = 128 << 10;
constexpr uint64_t kHelloTimeoutNs = 5'000'000'000;

absl::StatusOr<FileDescriptor> ConnectToPid(pid_t pid) {
  if (kill(pid, 0) != 0 && errno == ESRCH) {
    return absl::NotFoundError(absl::StrFormat("there is no process %d, as this process's namespace counts them", pid));
  }
  absl::StatusOr<FileDescriptor> socket = ConnectToName(AbstractAddress(kRecordName, pid));
  if (absl::IsNotFound(socket.status())) return absl::FailedPreconditionError(ExplainNoRecording(pid));
  if (!socket.ok()) {
    return absl::Status(socket.status().code(),
                        absl::StrCat("process ", ProcessName(pid), ": ", socket.status().message()));
  }
  const pid_t listener = ReadPeerCredentials(socket->get()).pid;
  if (listener != pid) {
    return absl::PermissionDeniedError(
        absl::StrFormat("process %s: process %s listens in its name", ProcessName(pid), ProcessName(listener)));
  }
  return socket;
}

absl::StatusOr<FileDescriptor> ConnectToPath(const std::string& path) {
  const absl::StatusOr<sockaddr_un> address = SocketAddress(path);
  if (!address.ok()) return address.status();
  absl::StatusOr<FileDescriptor> socket = ConnectToName({*address, sizeof(*address)});
  if (socket.ok()) return socket;
  const char* more =
      absl::IsNotFound(socket.status()) ? "; it is there once the engine has loaded its model, until it ends" : "";
  return absl::Status(socket.status().code(),
                      absl::StrCat("no engine at the socket ", path, ": ", socket.status().message(), more));
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
      return absl::PermissionDeniedError(
          absl::StrCat(who, " belongs to another user: run this as that user, or as root"));
    }
    return absl::UnavailableError(absl::StrCat(who, " closed the connection; is it ending?"));
  }
  const nlohmann::json hello = nlohmann::json::parse(text.substr(0, packet.bytes), nullptr, false);
  if (packet.malformed || !packet.fd.valid() || !hello.is_object() || !hello.contains("layout") ||
      !hello.contains("engine")) {
    return absl::FailedPreconditionError(
        absl::StrCat(who, " is no engine: it sent no recording; of a worker, give an engine that it serves"));
  }
  std::unique_ptr<RecordReader> reader(new RecordReader());
  absl::StatusOr<std::unique_ptr<MappedRings>> mapped = MappedRings::Map(hello["layout"], packet.fd.get());
  if (!mapped.ok()) return absl::FailedPreconditionError(absl::StrCat(who, ": ", mapped.status().message()));
  reader->engine_ = hello["engine"];
  // The engine may be in another namespace: its number is the one that this process's namespace has; -1: it has none.
  if (reader->engine_.contains("pid")) {
    const pid_t seen = ReadPeerCredentials(connection->get()).pid;
    reader->engine_["pid"] = seen != 0 ? seen : -1;
  }
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
