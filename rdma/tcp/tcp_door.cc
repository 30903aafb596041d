#include "rdma/tcp/tcp_door.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "numa/check.h"
#include "numa/clock.h"
#include "rdma/tcp/tcp_socket.h"

namespace fastdecode {

namespace {

constexpr size_t kNoncesKept = 64;

bool SendWhole(int socket, const std::string& frame) {
  return SendSome(socket, frame.data(), frame.size()) == frame.size();
}

void RefuseAndClose(FileDescriptor socket, const std::string& why) {
  SendWhole(socket.get(), MakeTextFrame(FrameKind::kRefusal, why));  // it may have gone
  CloseTcp(std::move(socket));
}

bool HasGone(int socket) {
  char byte;
  const ssize_t got = recv(socket, &byte, 1, MSG_PEEK);
  return got == 0 || (got < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR);
}

// Of a client's name, without the port.
std::string_view AddressOf(const std::string& name) { return std::string_view(name).substr(0, name.rfind(':')); }

std::string WrongKind(const std::string& frame, FrameKind wanted) {
  return absl::StrFormat("%s came where %s was due", FrameKindName(KindOf(frame)), FrameKindName(wanted));
}

}  // namespace

// ---- PendingConnection ----

PendingConnection::PendingConnection(std::string peer_name, FileDescriptor socket, Transcript transcript,
                                     LinkOffer offer, uint64_t ready_timeout_ns)
    : peer_name_(std::move(peer_name)),
      offer_(std::move(offer)),
      ready_timeout_ns_(ready_timeout_ns),
      socket_(std::move(socket)),
      transcript_(std::move(transcript)) {}

PendingConnection::~PendingConnection() {
  if (socket_.valid()) Refuse("the worker did not decide");
}

absl::StatusOr<std::unique_ptr<ControlChannel>> PendingConnection::Accept(const LinkAcceptance& acceptance,
                                                                          const std::string& parameters) {
  FD_CHECK(socket_.valid(), "the proposal was decided already");
  std::string frame = MakeAcceptanceFrame(offer_.proposal.epoch, {acceptance, parameters});
  transcript_.SignAndAppend(Side::kWorker, &frame);
  if (HasGone(socket_.get()) || !SendWhole(socket_.get(), frame)) {
    socket_.Close();
    return absl::UnavailableError(absl::StrCat("the engine at ", peer_name_, " has gone before it was answered"));
  }
  return std::make_unique<ControlChannel>(Side::kWorker, absl::StrCat("engine at ", peer_name_), std::move(socket_),
                                          MakeReadyFrames(transcript_), NowNs() + ready_timeout_ns_);
}

void PendingConnection::Refuse(const std::string& text) {
  FD_CHECK(socket_.valid(), "the proposal was decided already");
  RefuseAndClose(std::move(socket_), text);
}

// ---- TcpDoor ----

absl::StatusOr<std::unique_ptr<TcpDoor>> TcpDoor::Listen(TcpDoorOptions options) {
  FD_CHECK(options.secret != nullptr, "a door needs a secret");
  absl::StatusOr<std::vector<FileDescriptor>> sockets = ListenTcp(options.host, options.port);
  if (!sockets.ok()) return sockets.status();
  return std::unique_ptr<TcpDoor>(new TcpDoor(std::move(options), *std::move(sockets)));
}

TcpDoor::TcpDoor(TcpDoorOptions options, std::vector<FileDescriptor> sockets)
    : options_(std::move(options)), sockets_(std::move(sockets)), port_(LocalPort(sockets_.front().get())) {}

// Those who are inside go first, oldest first: newcomers wait in the kernel's queue until nobody here has said anything
// that was not heard.
TcpDoor::Result TcpDoor::AcceptConnection(uint64_t timeout_ns) {
  const uint64_t deadline_ns = NowNs() + timeout_ns;
  while (true) {
    if (std::optional<Result> result = ServeClients(deadline_ns); result.has_value()) {
      if (!result->ok()) ++turned_away_;
      return *std::move(result);
    }
    if (NowNs() >= deadline_ns) {
      return absl::DeadlineExceededError(absl::StrCat("no engine came to ", FormatHostAndPort(options_.host, port_)));
    }
  }
}

// One round of poll(2).
std::optional<TcpDoor::Result> TcpDoor::ServeClients(uint64_t deadline_ns) {
  std::vector<pollfd> entries;
  for (const std::unique_ptr<Client>& client : half_open_) entries.push_back({client->socket.get(), POLLIN, 0});
  for (const FileDescriptor& socket : sockets_) entries.push_back({socket.get(), POLLIN, 0});
  const uint64_t wake_ns = half_open_.empty() ? deadline_ns : std::min(deadline_ns, half_open_.front()->deadline_ns);
  poll(entries.data(), entries.size(), PollTimeoutMs(wake_ns));

  const size_t clients = half_open_.size();
  for (size_t i = 0; i < clients; ++i) {
    std::optional<Result> result;
    if (entries[i].revents != 0) result = Serve(half_open_[i].get());
    // Judged after it was heard: what came in time while nobody listened here is in time.
    if (!result.has_value() && NowNs() >= half_open_[i]->deadline_ns) {
      result = TurnAway(half_open_[i].get(), "no proposal came in time");
    }
    if (!result.has_value()) continue;
    half_open_.erase(half_open_.begin() + static_cast<std::ptrdiff_t>(i));
    return result;
  }
  for (size_t i = 0; i < sockets_.size(); ++i) {
    if (entries[clients + i].revents == 0) continue;
    if (half_open_.size() == kHalfOpenMax) return MakeRoom();
    TakeInClients(sockets_[i].get());
  }
  return std::nullopt;
}

// At the cost of whoever crowds the door: an engine that registers its memory meanwhile, from an address of its own,
// stays.
std::optional<TcpDoor::Result> TcpDoor::MakeRoom() {
  std::map<std::string_view, size_t> clients;  // by address
  size_t most = 0;
  for (const std::unique_ptr<Client>& client : half_open_) most = std::max(most, ++clients[AddressOf(client->name)]);
  const auto find = [&](bool silent) {
    return std::find_if(half_open_.begin(), half_open_.end(), [&](const std::unique_ptr<Client>& client) {
      return clients[AddressOf(client->name)] == most && !(silent && client->nonce.has_value());
    });
  };
  const auto silent = find(/*silent=*/true);
  const auto leaving = silent == half_open_.end() ? find(/*silent=*/false) : silent;
  const absl::Status status = TurnAway(leaving->get(), "too many clients are at the door; try again");
  half_open_.erase(leaving);
  return status;
}

void TcpDoor::TakeInClients(int socket) {
  while (half_open_.size() < kHalfOpenMax) {
    std::string name;
    FileDescriptor fd = AcceptTcp(socket, &name);
    if (!fd.valid()) {
      PauseIfExhausted(errno);
      return;
    }
    half_open_.push_back(
        std::unique_ptr<Client>(new Client{std::move(name), std::move(fd), NowNs() + options_.handshake_timeout_ns,
                                           FrameReader(Side::kWorker), Transcript(options_.secret), std::nullopt}));
  }
}

std::optional<TcpDoor::Result> TcpDoor::Serve(Client* client) {
  const FrameNews news = ReadFrame(client->socket.get(), &client->reader);
  switch (news.kind) {
    case FrameNews::Kind::kNothing:
      return std::nullopt;
    case FrameNews::Kind::kClosed:
      return absl::UnavailableError(absl::StrCat("client at ", client->name, " ", news.text, " without a proposal"));
    case FrameNews::Kind::kMalformed:
      return TurnAway(client, news.text);
    case FrameNews::Kind::kFrame:
      break;
  }
  if (client->nonce.has_value()) return Judge(client, news.text);
  return Greet(client, news.text);
}

std::optional<TcpDoor::Result> TcpDoor::Greet(Client* client, const std::string& hello) {
  if (KindOf(hello) != FrameKind::kHello) return TurnAway(client, WrongKind(hello, FrameKind::kHello));
  const absl::StatusOr<Nonce> nonce = RandomNonce();
  if (!nonce.ok()) return TurnAway(client, std::string(nonce.status().message()));
  const std::string answer = MakeHelloFrame(*nonce);
  client->nonce = ParseHelloFrame(hello);
  client->transcript.Append(hello);
  client->transcript.Append(answer);
  SendWhole(client->socket.get(), answer);  // if it has gone, reading will tell
  return std::nullopt;
}

// First of all whether it knows the secret: until then its proposal is only bytes.
TcpDoor::Result TcpDoor::Judge(Client* client, const std::string& proposal) {
  if (KindOf(proposal) != FrameKind::kProposal) return TurnAway(client, WrongKind(proposal, FrameKind::kProposal));
  const bool nonce_is_old = std::count(proven_nonces_.begin(), proven_nonces_.end(), *client->nonce) > 0;
  if (!client->transcript.VerifyAndAppend(Side::kEngine, proposal)) {
    return TurnAway(client, nonce_is_old ? "replayed handshake" : "wrong secret");
  }
  proven_nonces_.push_back(*client->nonce);
  if (proven_nonces_.size() > kNoncesKept) proven_nonces_.pop_front();

  absl::StatusOr<LinkOffer> offer = ParseProposalFrame(proposal);
  if (!offer.ok()) return TurnAway(client, std::string(offer.status().message()));
  return std::make_unique<PendingConnection>(client->name, std::move(client->socket), std::move(client->transcript),
                                             *std::move(offer), options_.ready_timeout_ns);
}

absl::Status TcpDoor::TurnAway(Client* client, const std::string& why) {
  RefuseAndClose(std::move(client->socket), why);
  return absl::InvalidArgumentError(absl::StrCat("refused the client at ", client->name, ": ", why));
}

}  // namespace fastdecode
