#include "rdma/verbs/verbs_link.h"

#include <fcntl.h>
#include <poll.h>

#include <cerrno>
#include <utility>

#include "numa/check.h"
#include "numa/core_turn.h"

namespace fastdecode {

namespace {

VerbsParts MakeParts(std::unique_ptr<VerbsEnd> end, std::unique_ptr<VerbsLiveness> liveness, MessageKind own,
                     MessageKind theirs) {
  const VerbsWiring wiring = end->wiring();
  VerbsLiveness* const watch = liveness.get();
  auto bulk = wiring.bulk_pair != nullptr ? std::make_unique<VerbsBulk>(wiring, watch) : nullptr;
  VerbsBulk* const its_bulk = bulk.get();
  return {std::move(end), std::move(liveness), std::move(bulk), VerbsChannel(wiring, own, theirs, watch, its_bulk)};
}

}  // namespace

absl::StatusOr<std::unique_ptr<EngineLink>> MakeVerbsEngineLink(std::unique_ptr<VerbsEnd> end, uint64_t epoch,
                                                                std::unique_ptr<PeerChannel> channel) {
  FD_CHECK(end->connected() && end->role() == LinkRole::kEngine, "not an engine's connected end");
  auto liveness = VerbsLiveness::Create(*end, std::move(channel));
  if (!liveness.ok()) return liveness.status();
  return std::make_unique<VerbsEngineLink>(std::move(end), epoch, *std::move(liveness));
}

absl::StatusOr<std::unique_ptr<HomeLink>> MakeVerbsHomeLink(std::unique_ptr<VerbsEnd> end, uint64_t epoch,
                                                            std::unique_ptr<PeerChannel> channel) {
  FD_CHECK(end->connected() && end->role() == LinkRole::kHome, "not a home's connected end");
  auto liveness = VerbsLiveness::Create(*end, std::move(channel));
  if (!liveness.ok()) return liveness.status();
  return std::make_unique<VerbsHomeLink>(std::move(end), epoch, *std::move(liveness));
}

VerbsEngineLink::VerbsEngineLink(std::unique_ptr<VerbsEnd> end, uint64_t epoch, std::unique_ptr<VerbsLiveness> liveness)
    : size_(end->size()),
      epoch_(epoch),
      flush_(end->gpu_to_flush()),
      parts_(MakeParts(std::move(end), std::move(liveness), MessageKind::kHop, MessageKind::kReply)) {}

VerbsEngineLink::~VerbsEngineLink() { MarkLost("the engine closed the link"); }

VerbsHomeLink::VerbsHomeLink(std::unique_ptr<VerbsEnd> end, uint64_t epoch, std::unique_ptr<VerbsLiveness> liveness)
    : size_(end->size()),
      epoch_(epoch),
      parts_(MakeParts(std::move(end), std::move(liveness), MessageKind::kReply, MessageKind::kHop)) {
  const int fd = parts_.end->channel()->fd;
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

VerbsHomeLink::~VerbsHomeLink() { MarkLost("the home closed the link"); }

// Events of rings that came while nobody slept.
void VerbsHomeLink::TakeNotificationEvents() {
  const VerbsCalls& calls = *parts_.end->options().calls;
  ibv_cq* queue = nullptr;
  while (calls.get_cq_event(parts_.end->channel(), &queue) == 0) calls.ack_cq_events(queue, 1);
}

// What a ring is for came before it on the same queue pair; a bulk segment, on another one, raises its own event. A
// ring whose completion was taken before the notification was asked for has brought its work to a poll that came
// before, too; one that is taken after it, by the poll between Arm and Sleep, keeps Sleep from sleeping; a later one
// raises an event.
void VerbsHomeLink::Arm() {
  TakeNotificationEvents();
  parts_.channel.TakeRing();
  if (const int error = ibv_req_notify_cq(parts_.end->wiring().completions, /*solicited_only=*/1); error != 0) {
    parts_.liveness->LoseByCall("ibv_req_notify_cq", error);
  }
}

void VerbsHomeLink::Sleep(uint64_t timeout_ns) {
  if (parts_.channel.TakeRing() || lost()) return;
  pollfd entries[] = {{parts_.end->channel()->fd, POLLIN, 0}, {parts_.liveness->wake_fd(), POLLIN, 0}};
  const timespec timeout = {static_cast<time_t>(timeout_ns / 1'000'000'000),
                            static_cast<long>(timeout_ns % 1'000'000'000)};
  const CoreTurn::Away away;
  ppoll(entries, 2, &timeout, nullptr);
  TakeNotificationEvents();
}

LinkPoll VerbsEngineLink::Lose(int slot, const char* defect) {
  parts_.liveness->LoseByProtocol(defect, slot);
  return LinkPoll::kLost;
}

LinkPoll VerbsHomeLink::Lose(int slot, const char* defect) {
  parts_.liveness->LoseByProtocol(defect, slot);
  return LinkPoll::kLost;
}

}  // namespace fastdecode
