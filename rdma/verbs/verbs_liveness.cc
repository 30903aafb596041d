#include "rdma/verbs/verbs_liveness.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rdma/verbs/verbs_error_text.h"

namespace fastdecode {

namespace {

const char* PeerRole(LinkRole own) { return own == LinkRole::kEngine ? "home" : "engine"; }

absl::Status NoDescriptor(const char* call) {
  return absl::ResourceExhaustedError(
      absl::StrCat(call, " for a link: ", std::generic_category().message(errno), " (`ulimit -n`)"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<VerbsLiveness>> VerbsLiveness::Create(const VerbsEnd& end,
                                                                     std::unique_ptr<PeerChannel> channel) {
  std::unique_ptr<VerbsLiveness> liveness(new VerbsLiveness(end, std::move(channel)));
  if (absl::Status status = liveness->Start(); !status.ok()) return status;
  return liveness;
}

VerbsLiveness::VerbsLiveness(const VerbsEnd& end, std::unique_ptr<PeerChannel> channel)
    : calls_(*end.options().calls),
      context_(end.device().context.get()),
      port_(end.device().port),
      device_name_(end.device().Name()),
      role_(end.role()),
      heartbeat_timeout_ns_(end.options().fabric.heartbeat_timeout_ns),
      now_ns_(end.options().now_ns),
      channel_(std::move(channel)) {}

absl::Status VerbsLiveness::Watch(int fd) {
  epoll_event event = {};
  event.events = EPOLLIN;
  event.data.fd = fd;
  return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0 ? absl::OkStatus() : NoDescriptor("epoll_ctl");
}

absl::Status VerbsLiveness::Start() {
  epoll_ = FileDescriptor(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll_.valid()) return NoDescriptor("epoll_create1");
  timer_ = FileDescriptor(timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!timer_.valid()) return NoDescriptor("timerfd_create");
  wake_ = FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake_.valid()) return NoDescriptor("eventfd");
  const timespec period = {0, kHeartbeatNs};
  const itimerspec times = {period, period};
  if (timerfd_settime(timer_.get(), 0, &times, nullptr) != 0) return NoDescriptor("timerfd_settime");
  fcntl(context_->async_fd, F_SETFL, fcntl(context_->async_fd, F_GETFL) | O_NONBLOCK);
  for (const int fd : {channel_->fd(), context_->async_fd, timer_.get()}) {
    if (absl::Status status = Watch(fd); !status.ok()) return status;
  }
  return absl::OkStatus();
}

void VerbsLiveness::MarkLost(const char* cause) {
  if (!loss_.Set(cause)) return;
  channel_->SendFarewell(cause);
  const uint64_t one = 1;
  // Full only if it is readable already.
  [[maybe_unused]] const ssize_t written = write(wake_.get(), &one, sizeof(one));
}

std::string VerbsLiveness::Place() const { return absl::StrCat(channel_->name(), " through ", device_name_); }

void VerbsLiveness::LoseByProtocol(const char* defect, int slot) {
  const std::string where = slot < 0 ? "" : absl::StrCat(" (slot ", slot, ")");
  MarkLost(absl::StrCat("protocol error by the ", PeerRole(role_), ": ", defect, where).c_str());
}

void VerbsLiveness::LoseByCall(const char* call, int error) {
  MarkLost(absl::StrCat(Place(), ": ", call, ": ", std::generic_category().message(error), " (", error, ")").c_str());
}

void VerbsLiveness::LoseByCompletion(const ibv_wc& completion) {
  if (completion.status == IBV_WC_WR_FLUSH_ERR) {
    // Relaxed: the control thread acts on the flag alone.
    flushed_.store(true, std::memory_order_relaxed);
    return;
  }
  MarkLost(absl::StrCat(Place(), ": ", DescribeCompletionError(completion)).c_str());
}

void VerbsLiveness::Check() {
  const std::lock_guard<std::mutex> lock(check_mutex_);
  CheckEvents();
  CheckChannel();
  CheckTimer();
  CheckSilence();
}

void VerbsLiveness::CheckEvents() {
  for (int i = 0; i < kNewsMax; ++i) {
    ibv_async_event event;
    if (calls_.get_async_event(context_, &event) != 0) return;
    const std::string fatal = DescribeFatalEvent(event, port_);
    // Before anything else: destroying what an event is about waits for its acknowledgement.
    calls_.ack_async_event(&event);
    if (!fatal.empty()) MarkLost(absl::StrCat(Place(), ": ", fatal).c_str());
  }
}

void VerbsLiveness::CheckChannel() {
  for (int i = 0; i < kNewsMax; ++i) {
    const PeerNews news = channel_->Poll();
    switch (news.kind) {
      case PeerNews::Kind::kNothing:
        return;
      case PeerNews::Kind::kHeartbeat:
        heard_ns_ = now_ns_();
        peer_progress_.value.store(news.progress, std::memory_order_relaxed);
        break;
      case PeerNews::Kind::kFarewell:
        return MarkLost(absl::StrCat(channel_->name(), " gave the link up: ", news.text).c_str());
      case PeerNews::Kind::kClosed:
        return MarkLost(absl::StrCat(channel_->name(), " went away", news.text.empty() ? "" : ": ", news.text).c_str());
    }
  }
}

void VerbsLiveness::CheckTimer() {
  uint64_t ticks = 0;
  if (read(timer_.get(), &ticks, sizeof(ticks)) == sizeof(ticks) && !lost()) {
    channel_->SendHeartbeat(own_progress_.value.load(std::memory_order_relaxed));
    if (flushed_.load(std::memory_order_relaxed) && ++flushed_ticks_ > 1) {
      ibv_wc completion = {};
      completion.status = IBV_WC_WR_FLUSH_ERR;
      completion.wr_id = WrId(MessageKind::kNone, 0, 0).bits();
      MarkLost(absl::StrCat(Place(), ": ", DescribeCompletionError(completion)).c_str());
    }
  }
}

// After the channel: what came while this process itself stood still counts. From the first look on that finds the peer
// ready: until it knows the same of this end it says nothing, and it learns that from such a look.
void VerbsLiveness::CheckSilence() {
  const uint64_t now_ns = now_ns_();
  if (heard_ns_ == 0 && channel_->ready()) heard_ns_ = now_ns;
  if (heard_ns_ == 0) return;
  const uint64_t silent_ns = now_ns - heard_ns_;
  if (silent_ns <= heartbeat_timeout_ns_) return;
  MarkLost(absl::StrCat(channel_->name(), " has been silent for ", silent_ns / 1'000'000,
                        " ms: its process hangs or "
                        "is stopped, its host is down, or the network between is cut")
               .c_str());
}

}  // namespace fastdecode
