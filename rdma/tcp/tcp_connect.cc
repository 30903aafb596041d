#include "rdma/tcp/tcp_connect.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "numa/clock.h"
#include "rdma/tcp/tcp_socket.h"
#include "rdma/tcp/transcript.h"

namespace fastdecode {

namespace {

absl::Status CheckOffer(const LinkOffer& offer) {
  if (absl::Status status = CheckLinkSize(offer.proposal.size); !status.ok()) return status;
  for (const auto& [name, blob] : {std::pair<const char*, const std::string&>("link shape", offer.proposal.shape),
                                   {"provider parameters", offer.parameters}}) {
    if (blob.size() > kHandshakeBlobBytesMax) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: %d bytes are more than %d", name, blob.size(), kHandshakeBlobBytesMax));
    }
  }
  return absl::OkStatus();
}

// The engine's side of a handshake.
class Handshake {
 public:
  Handshake(std::string worker, FileDescriptor socket, std::shared_ptr<const Secret> secret, uint64_t deadline_ns)
      : worker_(std::move(worker)),
        socket_(std::move(socket)),
        deadline_ns_(deadline_ns),
        reader_(Side::kEngine),
        transcript_(std::move(secret)) {}

  absl::Status ExchangeHellos(uint64_t deadline_ns) {
    const absl::StatusOr<Nonce> nonce = RandomNonce();
    if (!nonce.ok()) return nonce.status();
    const std::string hello = MakeHelloFrame(*nonce);
    transcript_.Append(hello);
    Send(hello);
    const absl::StatusOr<std::string> answer = Receive(FrameKind::kHello, deadline_ns);
    if (!answer.ok()) return answer.status();
    transcript_.Append(*answer);
    return absl::OkStatus();
  }

  absl::StatusOr<LinkAnswer> Propose(const LinkOffer& offer) {
    std::string proposal = MakeProposalFrame(offer);
    transcript_.SignAndAppend(Side::kEngine, &proposal);
    Send(proposal);
    const absl::StatusOr<std::string> acceptance = Receive(FrameKind::kAcceptance, deadline_ns_);
    if (!acceptance.ok()) return acceptance.status();
    if (!transcript_.VerifyAndAppend(Side::kWorker, *acceptance)) {
      return absl::UnauthenticatedError(absl::StrCat(worker_, " does not know the secret"));
    }
    absl::StatusOr<LinkAnswer> answer = ParseAcceptanceFrame(*acceptance, offer.proposal.epoch);
    if (!answer.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(worker_, " sent a malformed answer: ", std::string(answer.status().message())));
    }
    return answer;
  }

  std::unique_ptr<ControlChannel> TakeChannel() {
    return std::make_unique<ControlChannel>(Side::kEngine, worker_, std::move(socket_),
                                            MakeReadyFrames(std::move(transcript_)), deadline_ns_);
  }

 private:
  // A worker that has closed the connection may have said why: what is wrong shows when its answer is read. All frames
  // of a handshake together fit into an empty socket.
  void Send(const std::string& frame) { SendSome(socket_.get(), frame.data(), frame.size()); }

  absl::StatusOr<std::string> Receive(FrameKind wanted, uint64_t deadline_ns) {
    FrameNews news;
    while ((news = ReadFrame(socket_.get(), &reader_)).kind == FrameNews::Kind::kNothing) {
      if (!WaitReadable(socket_.get(), deadline_ns)) {
        return absl::DeadlineExceededError(absl::StrCat(worker_, " did not answer in time"));
      }
    }
    if (news.kind == FrameNews::Kind::kClosed) {
      return absl::UnavailableError(absl::StrCat(worker_, " ", news.text, " without an answer"));
    }
    if (news.kind == FrameNews::Kind::kMalformed) {
      return absl::InvalidArgumentError(absl::StrCat(worker_, ": ", news.text));
    }
    const FrameKind kind = KindOf(news.text);
    if (kind == FrameKind::kRefusal) {
      return absl::FailedPreconditionError(absl::StrCat(worker_, " refused the link: ", ParseTextFrame(news.text)));
    }
    if (kind != wanted) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s sent %s where %s was due", worker_, FrameKindName(kind), FrameKindName(wanted)));
    }
    return std::move(news.text);
  }

  const std::string worker_;
  FileDescriptor socket_;
  const uint64_t deadline_ns_;
  FrameReader reader_;
  Transcript transcript_;
};

}  // namespace

absl::StatusOr<TcpConnection> ConnectTcpDoor(const std::string& host, uint16_t port,
                                             std::shared_ptr<const Secret> secret,
                                             const std::function<absl::StatusOr<LinkOffer>()>& make_offer,
                                             uint64_t deadline_ns, uint64_t hello_timeout_ns) {
  const absl::StatusOr<AddressList> addresses = LookUpTcp(host, port);
  if (!addresses.ok()) return addresses.status();
  const std::string worker = absl::StrCat("worker at ", FormatHostAndPort(host, port));
  const uint64_t now_ns = NowNs();
  if (now_ns >= deadline_ns) {
    return absl::DeadlineExceededError(absl::StrCat("looking up ", worker, " took longer than it may take to connect"));
  }
  const uint64_t hello_deadline_ns = now_ns + std::min(hello_timeout_ns, deadline_ns - now_ns);
  absl::StatusOr<FileDescriptor> socket = ConnectTcp(host, port, *addresses, hello_deadline_ns);
  if (!socket.ok()) return socket.status();

  Handshake handshake(worker, *std::move(socket), std::move(secret), deadline_ns);
  if (absl::Status status = handshake.ExchangeHellos(hello_deadline_ns); !status.ok()) return status;
  const absl::StatusOr<LinkOffer> offer = make_offer();
  if (!offer.ok()) return offer.status();
  if (absl::Status status = CheckOffer(*offer); !status.ok()) return status;
  if (NowNs() > deadline_ns) {
    return absl::DeadlineExceededError(
        absl::StrCat("making the objects of the link to ", worker, " took longer than it may take to connect"));
  }
  absl::StatusOr<LinkAnswer> answer = handshake.Propose(*offer);
  if (!answer.ok()) return answer.status();
  return TcpConnection{*std::move(answer), handshake.TakeChannel()};
}

}  // namespace fastdecode
