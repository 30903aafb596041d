#include "rdma/verbs/verbs_bootstrap.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "numa/clock.h"
#include "rdma/tcp/tcp_connect.h"
#include "rdma/verbs/verbs_device.h"
#include "rdma/verbs/verbs_link.h"

namespace fastdecode {

namespace {

class VerbsPendingLink final : public PendingLink {
 public:
  VerbsPendingLink(std::unique_ptr<PendingConnection> connection, const VerbsOptions& options)
      : connection_(std::move(connection)), options_(options) {}

  const LinkProposal& proposal() const override { return connection_->proposal(); }
  std::string peer_name() const override { return connection_->peer_name(); }

  absl::StatusOr<std::unique_ptr<HomeLink>> Accept(const LinkAcceptance& acceptance, int home_node) override {
    absl::StatusOr<std::unique_ptr<VerbsEnd>> end = MakeEnd(home_node);
    if (!end.ok()) {
      connection_->Refuse(std::string(end.status().message()));
      return end.status();
    }
    absl::StatusOr<std::unique_ptr<ControlChannel>> channel =
        connection_->Accept(acceptance, (*end)->parameters().ToWire());
    if (!channel.ok()) return channel.status();
    return MakeVerbsHomeLink(*std::move(end), proposal().epoch, *std::move(channel));
  }

  void Refuse(const std::string& text) override { connection_->Refuse(text); }

 private:
  absl::StatusOr<std::unique_ptr<VerbsEnd>> MakeEnd(int home_node) const {
    const absl::StatusOr<VerbsParameters> peer = VerbsParameters::FromWire(connection_->parameters());
    if (!peer.ok()) return peer.status();
    absl::StatusOr<std::unique_ptr<VerbsEnd>> end =
        VerbsEnd::Create(options_, proposal().size, LinkRole::kHome, home_node);
    if (!end.ok()) return end;
    if (absl::Status connected = (*end)->Connect(*peer); !connected.ok()) return connected;
    return end;
  }

  const std::unique_ptr<PendingConnection> connection_;
  const VerbsOptions options_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<VerbsListener>> VerbsListener::Listen(const std::string& host, uint16_t port,
                                                                     std::shared_ptr<const Secret> secret,
                                                                     const VerbsOptions& options) {
  // Each link opens its own, on its home's node; without any, no engine could be served.
  if (absl::StatusOr<VerbsDevice> device = OpenVerbsDevice(*options.calls, options.fabric, /*node=*/-1); !device.ok()) {
    return device.status();
  }
  TcpDoorOptions door_options;
  door_options.host = host;
  door_options.port = port;
  door_options.secret = std::move(secret);
  absl::StatusOr<std::unique_ptr<TcpDoor>> door = TcpDoor::Listen(std::move(door_options));
  if (!door.ok()) return door.status();
  return std::unique_ptr<VerbsListener>(new VerbsListener(*std::move(door), options));
}

absl::StatusOr<std::unique_ptr<PendingLink>> VerbsListener::AcceptProposal(uint64_t timeout_ns) {
  absl::StatusOr<std::unique_ptr<PendingConnection>> connection = door_->AcceptConnection(timeout_ns);
  if (!connection.ok()) return connection.status();
  return std::make_unique<VerbsPendingLink>(*std::move(connection), options_);
}

absl::StatusOr<ConnectResult> ConnectVerbs(const std::string& host, uint16_t port, std::shared_ptr<const Secret> secret,
                                           const VerbsOptions& options, const LinkProposal& proposal, int engine_node,
                                           uint64_t timeout_ns, uint64_t hello_timeout_ns) {
  // The device itself is opened once there is a peer, but no peer need be waited for to say this.
  if (absl::Status status = CheckLibrary(*options.calls); !status.ok()) return status;
  const uint64_t deadline_ns = NowNs() + timeout_ns;
  std::unique_ptr<VerbsEnd> end;
  const auto make_offer = [&]() -> absl::StatusOr<LinkOffer> {
    absl::StatusOr<std::unique_ptr<VerbsEnd>> made =
        VerbsEnd::Create(options, proposal.size, LinkRole::kEngine, engine_node);
    if (!made.ok()) return made.status();
    end = *std::move(made);
    return LinkOffer{proposal, end->parameters().ToWire()};
  };
  absl::StatusOr<TcpConnection> connection =
      ConnectTcpDoor(host, port, std::move(secret), make_offer, deadline_ns, hello_timeout_ns);
  if (!connection.ok()) return connection.status();

  const LinkAnswer& answer = connection->answer;
  const absl::StatusOr<VerbsParameters> peer = VerbsParameters::FromWire(answer.parameters);
  absl::Status connected = peer.ok() ? end->Connect(*peer) : peer.status();
  if (!connected.ok()) {
    const std::string why(connected.message());
    connection->channel->SendFarewell(why);
    return absl::Status(connected.code(), absl::StrCat(connection->channel->name(), ": ", why));
  }
  connection->channel->SendReady();
  if (absl::Status ready = connection->channel->AwaitReady(deadline_ns); !ready.ok()) return ready;
  ConnectResult result;
  result.answer = answer.acceptance.answer;
  result.homes = answer.acceptance.homes;
  absl::StatusOr<std::unique_ptr<EngineLink>> link =
      MakeVerbsEngineLink(std::move(end), proposal.epoch, std::move(connection->channel));
  if (!link.ok()) return link.status();
  result.link = *std::move(link);
  return result;
}

}  // namespace fastdecode
