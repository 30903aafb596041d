#include "engine/homes/homes.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/rpart/page_counts.h"
#include "engine/rpart/rpart_shape.h"
#include "numa/clock.h"
#include "rdma/shm/local_link.h"

namespace fastdecode {

namespace {
constexpr uint64_t kConnectTimeoutNs = 10'000'000'000;
// Of a lost home's worker: others wait for their turn. Who is silent because it is stopped, or takes its memory, says
// no hello, and is not waited for any longer. Who has said it is at work on the link, and has kConnectTimeoutNs, though
// others wait for that, too: cut short it would begin anew with each attempt, and might never come to the end.
constexpr uint64_t kReturnHelloTimeoutNs = 1'000'000'000;
}  // namespace

Homes::Homes(HomesOptions options) : options_(std::move(options)) {
  if (options_.fabric.gpu >= 0) options_.fabric.hold_gpu = [this] { return HoldSteps(); };
}

absl::StatusOr<std::unique_ptr<Homes>> Homes::Create(HomesOptions options) {
  std::unique_ptr<Homes> homes(new Homes(std::move(options)));
  for (const Endpoint& endpoint : homes->options_.endpoints) {
    if (absl::Status bad = homes->MakeHomesAt(endpoint); !bad.ok()) return bad;
  }
  return homes;
}

Homes::~Homes() {
  Stop();
  for (const std::unique_ptr<Slot>& slot : slots_) {
    if (slot->link != nullptr) {
      monitor_.Remove(slot->link.get());
      UnregisterAreas(*slot->link);
    }
    slot->link.reset();
    if (slot->home != nullptr) slot->home->Detach();
  }
}

absl::Status Homes::MakeHomesAt(const Endpoint& endpoint) {
  if (endpoint.kind == Endpoint::Kind::kLocal) return MakeLocalHomes();
  if (endpoint.kind == Endpoint::Kind::kGpu) return MakeGpuHome();
  return ConnectWorker(endpoint);
}

absl::Status Homes::MakeGpuHome() {
  absl::StatusOr<Made> made = AttachGpu(slots_.size());
  if (!made.ok()) return made.status();
  Slot slot;
  slot.name = "gpu";
  slot.endpoint.kind = Endpoint::Kind::kGpu;
  return AddSlot(std::move(slot), *std::move(made));
}

absl::Status Homes::MakeLocalHomes() {
  const CorePlan& plan = options_.plan;
  for (size_t i = 0; i < plan.home_cores.size(); ++i) {
    HomeOptions home_options;
    home_options.name = absl::StrFormat("home%d", i);
    home_options.node = plan.home_nodes[i];
    home_options.cores = plan.home_cores[i];
    home_options.kv_bytes = options_.kv_bytes[i];
    home_options.poll = options_.poll;
    home_options.park = options_.park;
    home_options.isa = options_.isa;
    home_options.logger = options_.logger;
    absl::StatusOr<std::unique_ptr<Home>> home = Home::Create(home_options);
    if (!home.ok()) {
      return absl::Status(home.status().code(), absl::StrFormat("home %d (local, node %d): %s", i, home_options.node,
                                                                home.status().message()));
    }
    Slot slot;
    slot.name = absl::StrFormat("local, node %d", home_options.node);
    slot.home = *std::move(home);
    if (absl::Status bad = slot.home->CheckShape(options_.shape); !bad.ok()) {
      const char* option = absl::IsResourceExhausted(bad) ? "--kv-gib: " : "";
      return absl::Status(bad.code(), absl::StrCat(option, std::string(bad.message())));
    }
    absl::StatusOr<Made> made = AttachLocal(*slot.home);
    if (!made.ok()) return made.status();
    if (absl::Status added = AddSlot(std::move(slot), *std::move(made)); !added.ok()) return added;
  }
  return absl::OkStatus();
}

absl::Status Homes::ConnectWorker(const Endpoint& endpoint) {
  uint32_t homes = 1;
  for (uint32_t i = 0; i < homes; ++i) {
    absl::StatusOr<Made> made = Connect(endpoint, i, kConnectTimeoutNs);
    if (!made.ok()) return made.status();
    homes = made->homes_at_worker;
    Slot slot;
    slot.name = absl::StrFormat("%s, home %d", FormatEndpoint(endpoint), i);
    slot.endpoint = endpoint;
    slot.home_index = i;
    if (absl::Status added = AddSlot(std::move(slot), *std::move(made)); !added.ok()) return added;
  }
  return absl::OkStatus();
}

absl::Status Homes::CheckNew(const Slot& slot, const Made& made) const {
  if (slots_.size() == kMaxHomes) {
    return absl::InvalidArgumentError(absl::StrFormat("--homes: more than %d homes in all", kMaxHomes));
  }
  // A path or host may have several names, of which a worker knows nothing: the later link has cost the earlier one.
  for (const std::unique_ptr<Slot>& other : slots_) {
    if (made.description.id == 0 || made.description.id != other->description.id) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("--homes: '%s' and '%s' are the same home", other->name, slot.name));
  }
  return absl::OkStatus();
}

absl::Status Homes::AddSlot(Slot slot, Made made) {
  if (absl::Status bad = CheckNew(slot, made); !bad.ok()) {
    UnregisterAreas(*made.link);
    return bad;
  }
  slots_.push_back(std::make_unique<Slot>(std::move(slot)));
  PutUp(*slots_.back(), std::move(made));
  LogLink(*slots_.back());
  return absl::OkStatus();
}

absl::StatusOr<Homes::Made> Homes::AttachLocal(Home& home) {
  absl::StatusOr<LocalLink> link = MakeLocalLink(LinkSizeFor(options_.shape, options_.gpu_home),
                                                 home.options().node, options_.engine_node, next_epoch_++);
  if (!link.ok()) return link.status();
  if (absl::Status attached = home.Attach(options_.shape, std::move(link->home)); !attached.ok()) return attached;
  if (absl::Status bad = RegisterAreas(*link->engine); !bad.ok()) return bad;
  return Made{std::move(link->engine), home.Describe(options_.shape), 1};
}

absl::StatusOr<Homes::Made> Homes::AttachGpu(size_t index) {
  absl::StatusOr<SPart::OwnHome> own = options_.spart->AttachOwnHome(static_cast<int>(index));
  if (!own.ok()) return own.status();
  return Made{std::move(own->link), own->description, 1};
}

absl::StatusOr<Homes::Made> Homes::AttachAgain(size_t index) {
  Slot& slot = *slots_[index];
  if (slot.home != nullptr) return AttachLocal(*slot.home);
  if (slot.endpoint.kind == Endpoint::Kind::kGpu) return AttachGpu(index);
  return Connect(slot.endpoint, slot.home_index, kReturnHelloTimeoutNs);
}

absl::StatusOr<Homes::Made> Homes::Connect(const Endpoint& endpoint, uint32_t home_index, uint64_t hello_timeout_ns) {
  LinkProposal proposal;
  proposal.size = LinkSizeFor(options_.shape, options_.gpu_home);
  proposal.epoch = next_epoch_++;
  proposal.peer.engine_id = options_.engine_id;
  proposal.home_index = home_index;
  proposal.shape.assign(reinterpret_cast<const char*>(&options_.shape), sizeof(RPartShape));
  absl::StatusOr<ConnectResult> connected =
      ConnectTo(endpoint, options_.fabric, proposal, options_.engine_node, kConnectTimeoutNs, hello_timeout_ns);
  if (!connected.ok()) return connected.status();
  Made made;
  made.homes_at_worker = connected->homes;
  if (connected->answer.size() != sizeof(HomeDescription)) {
    return absl::InvalidArgumentError(absl::StrFormat("%s: the worker describes its home in %d bytes, not %d",
                                                      FormatEndpoint(endpoint), connected->answer.size(),
                                                      sizeof(HomeDescription)));
  }
  std::memcpy(&made.description, connected->answer.data(), sizeof(HomeDescription));
  made.link = std::move(connected->link);
  // Its heart beats from here on: registering may take as long as a step.
  monitor_.Add(made.link.get());
  absl::Status bad = RegisterAreas(*made.link);
  monitor_.Remove(made.link.get());
  if (!bad.ok()) return bad;
  return made;
}

namespace {

// The pages that hold one direction's areas, which follow each other.
std::span<std::byte> PagesOf(const std::byte* first, const std::byte* last, size_t payload_bytes) {
  constexpr uintptr_t kPage = 4096;
  const uintptr_t begin = reinterpret_cast<uintptr_t>(first) / kPage * kPage;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(last) + payload_bytes + kPage - 1) / kPage * kPage;
  return {reinterpret_cast<std::byte*>(begin), end - begin};
}

std::span<std::byte> SendPages(EngineLink& link) {
  return PagesOf(link.SendArea(0), link.SendArea(link.size().slots - 1), link.size().hop_payload_bytes_max);
}

std::span<std::byte> ReceivePages(EngineLink& link) {
  return PagesOf(link.ReceiveArea(0), link.ReceiveArea(link.size().slots - 1), link.size().reply_payload_bytes_max);
}

}  // namespace

// REQUIRES: there is an S-Part.
std::shared_ptr<void> Homes::HoldSteps() {
  std::shared_ptr<void> hold = options_.spart->HoldSteps();
  if (hold != nullptr) holds_.fetch_add(1, std::memory_order_relaxed);
  return hold;
}

absl::Status Homes::RegisterAreas(EngineLink& link) {
  if (options_.spart == nullptr || link.AreasOnGpu()) return absl::OkStatus();
  const std::shared_ptr<void> hold = HoldSteps();  // once for both
  const std::span<std::byte> send = SendPages(link), receive = ReceivePages(link);
  if (absl::Status bad = options_.spart->RegisterAreas(send.data(), send.size()); !bad.ok()) return bad;
  absl::Status bad = options_.spart->RegisterAreas(receive.data(), receive.size());
  if (!bad.ok()) options_.spart->UnregisterAreas(send.data());
  return bad;
}

void Homes::UnregisterAreas(EngineLink& link) {
  if (options_.spart == nullptr || link.AreasOnGpu()) return;
  const std::shared_ptr<void> hold = HoldSteps();  // once for both
  options_.spart->UnregisterAreas(SendPages(link).data());
  options_.spart->UnregisterAreas(ReceivePages(link).data());
}

void Homes::PutUp(Slot& slot, Made made) {
  slot.link = std::move(made.link);
  if (options_.fault && !slot.link->AttendsInStage())
    slot.link = std::make_unique<FaultLink>(std::move(slot.link), *options_.fault);
  slot.description = made.description;
  // The peer's text fields end somewhere inside.
  slot.description.isa[sizeof(slot.description.isa) - 1] = 0;
  slot.description.memory[sizeof(slot.description.memory) - 1] = 0;
  slot.state = Slot::State::kUp;
  monitor_.Add(slot.link.get());
}

// Not with mutex_ held: the log's sink may ask for this engine's homes.
void Homes::LogLink(const Slot& slot) {
  if (options_.logger == nullptr) return;
  options_.logger->Info(absl::StrCat("link to ", slot.name, ": ", slot.link->Describe()));
}

void Homes::Start(std::function<void(const PipelineCommand&)> command, std::function<uint64_t(int home)> replies) {
  command_ = std::move(command);
  replies_ = std::move(replies);
  for (size_t i = 0; i < slots_.size(); ++i) {
    slots_[i]->up_ns = NowNs();
    Announce(i);
  }
  control_ = PinnedThread("fd-homes", -1, [this] { ControlLoop(); });
}

void Homes::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  control_.Join();
}

void Homes::Announce(size_t index) {
  PipelineCommand command;
  command.kind = PipelineCommand::Kind::kAddHome;
  command.home = static_cast<int>(index);
  command.link = slots_[index]->link.get();
  command.pages = static_cast<uint32_t>(std::min<uint64_t>(slots_[index]->description.pages, UINT32_MAX));
  // Beside a GPU's memory. Among CPU homes a rate of a few milliseconds says as much of what else ran meanwhile.
  if (options_.gpu_home) command.read_mb_per_s = slots_[index]->description.read_mb_per_s;
  command_(command);
}

uint64_t Homes::pages_max() const {
  std::lock_guard lock(mutex_);
  uint64_t pages = 0;
  for (const auto& slot : slots_) pages = std::max(pages, slot->description.pages);
  return pages;
}

std::vector<Homes::Info> Homes::List() const {
  std::lock_guard lock(mutex_);
  std::vector<Info> list;
  for (size_t i = 0; i < slots_.size(); ++i) {
    const bool up = slots_[i]->state == Slot::State::kUp && !slots_[i]->link->lost();
    list.push_back({static_cast<int>(i),
                    up,
                    slots_[i]->name,
                    up ? slots_[i]->link->Describe() : "",
                    slots_[i]->endpoint.kind != Endpoint::Kind::kFabric,
                    up ? slots_[i]->link->line() : LinkLine(),
                    slots_[i]->description,
                    {}});
    if (slots_[i]->home != nullptr) list.back().cores = slots_[i]->home->options().cores;
  }
  return list;
}

std::string Homes::Describe() const {
  std::string text;
  for (const Info& info : List()) {
    const HomeDescription& d = info.description;
    text += absl::StrFormat(
        "home %d: %s, %s, %d thread(s), %s, %d pages of %d bytes (%d tokens), read with %.1f GB/s, %s\n", info.index,
        info.name, d.isa, d.threads, d.memory, d.pages, d.page_bytes, d.pages * kPageTokens, d.read_mb_per_s * 1e-3,
        info.up ? info.link : "lost");
  }
  return text;
}

// RequestDesk thread: the pipeline has let go of the link.
void Homes::OnHomeDrained(int home, uint64_t hops_posted) {
  {
    std::lock_guard lock(mutex_);
    Slot& slot = *slots_[home];
    slot.loss = slot.link->lost_cause();
    slot.was_asked = hops_posted > slot.hops_posted;
    slot.hops_posted = hops_posted;
    slot.state = Slot::State::kDrained;
  }
  if (options_.logger != nullptr) options_.logger->Warning(DescribeLoss(home));
  changed_.notify_all();
}

std::string Homes::Name(int home) { return absl::StrFormat("home %d (%s)", home, slots_[home]->name); }

std::string Homes::DescribeLoss(int home) {
  std::lock_guard lock(mutex_);
  return LossOf(home);
}

// REQUIRES: the mutex is held.
std::string Homes::LossOf(int home) {
  const Slot& slot = *slots_[home];
  const std::string cause = slot.state == Slot::State::kUp ? slot.link->lost_cause() : slot.loss;
  return absl::StrFormat("%s was lost: %s", Name(home), cause.empty() ? "unknown cause" : cause);
}

std::string Homes::DescribeNoRoom(uint32_t tokens) {
  uint64_t most_pages = 0;
  std::string losses;
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = *slots_[i];
    if (slot.state == Slot::State::kUp && !slot.link->lost()) {
      most_pages = std::max(most_pages, slot.description.pages);
    } else {
      absl::StrAppend(&losses, "; ", LossOf(static_cast<int>(i)));
    }
  }
  if (most_pages == 0) return absl::StrCat("no living home is left", losses);
  const uint64_t most = PageCounts(options_.shape.attention()).TokensIn(most_pages);
  if (most >= tokens) return "no living home could hold this request; one that can has come back since";
  return absl::StrFormat("no living home can hold this request: it needs room for %d tokens, the largest has %d%s",
                         tokens, most, losses);
}

void Homes::ControlLoop() {
  // Each sweep begins behind the home that was tried last: it may have put off those that follow, and would again.
  size_t first = 0;
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    bool down = false;
    const size_t begin = first;
    for (size_t i = 0; i < slots_.size() && !stopping_; ++i) {
      const size_t index = (begin + i) % slots_.size();
      Slot& slot = *slots_[index];
      if (slot.state == Slot::State::kUp) continue;
      down = true;
      lock.unlock();
      if (slot.link != nullptr) LetGo(index);
      if (slot.retry.IsDue(NowNs()) && slot.lives.IsDue(NowNs())) {
        TakeBack(index);
        first = index + 1;
      }
      lock.lock();
    }
    if (stopping_) return;
    const auto lost = [this] {
      if (stopping_) return true;
      for (const auto& slot : slots_) {
        if (slot->state == Slot::State::kDrained) return true;
      }
      return false;
    };
    if (down) {
      changed_.wait_for(lock, std::chrono::nanoseconds(RetrySchedule::kPauseNs), lost);
    } else {
      changed_.wait(lock, lost);
    }
  }
}

// The slot is not kUp, so that only this thread touches its link and home.
void Homes::LetGo(size_t index) {
  Slot& slot = *slots_[index];
  std::unique_ptr<EngineLink> old;
  {
    std::lock_guard lock(mutex_);
    old = std::move(slot.link);
    slot.state = Slot::State::kDown;
  }
  JudgeLife(index, old->AttendsInStage());
  UnregisterAreas(*old);
  monitor_.Quarantine(std::move(old), "given up by the engine");
}

// A link can be made where it cannot be used: over a fabric whose packets are filtered, to a worker that dies of its
// first hop. Back at once, such a home would have the most room each time, and draw all new sequences to their end.
// A link over which nothing was asked tells neither way.
void Homes::JudgeLife(size_t index, bool attends_in_stage) {
  Slot& slot = *slots_[index];
  const uint64_t now_ns = NowNs();
  if (attends_in_stage || replies_(static_cast<int>(index)) > slot.replies_before ||
      now_ns - slot.up_ns > kLongLifeNs) {
    slot.lives = RetrySchedule(kLongLifeNs);
    return;
  }
  if (!slot.was_asked) return;
  if (slot.lives.Fail(absl::AbortedError("no reply"), /*dear=*/true, now_ns) && options_.logger != nullptr) {
    options_.logger->Info(
        absl::StrFormat("%s gave no reply before it was lost; until it does, it is taken back less and less often",
                        Name(static_cast<int>(index))));
  }
}

// One attempt. REQUIRES: the slot's link was let go of.
void Homes::TakeBack(size_t index) {
  Slot& slot = *slots_[index];
  if (slot.home != nullptr) slot.home->Detach();
  const uint64_t start_ns = NowNs(), holds_before = holds_.load(std::memory_order_relaxed);
  absl::StatusOr<Made> made = AttachAgain(index);
  if (!made.ok()) {
    const uint64_t now_ns = NowNs();
    const bool held_steps = holds_.load(std::memory_order_relaxed) != holds_before;
    const bool slow = now_ns - start_ns > RetrySchedule::kPauseNs;
    if (slot.retry.Fail(made.status(), held_steps || slow, now_ns) && options_.logger != nullptr) {
      options_.logger->Info(
          absl::StrFormat("home %d (%s) is not back yet: %s", index, slot.name, made.status().message()));
    }
    if (slow && absl::IsDeadlineExceeded(made.status())) PutOffOthersAt(slot);
    return;
  }
  slot.retry = RetrySchedule();
  slot.up_ns = NowNs();
  slot.replies_before = replies_(static_cast<int>(index));
  {
    std::lock_guard lock(mutex_);
    PutUp(slot, *std::move(made));
  }
  LogLink(slot);
  if (options_.logger != nullptr) options_.logger->Info(absl::StrFormat("home %d (%s) is back", index, slot.name));
  Announce(index);
}

// Nobody is to wait for a silent worker once for each of its homes. One that refuses, however slowly, speaks for one
// home alone.
void Homes::PutOffOthersAt(const Slot& slot) {
  if (slot.endpoint.of_this_process()) return;
  std::lock_guard lock(mutex_);
  for (const std::unique_ptr<Slot>& other : slots_) {
    if (other->state != Slot::State::kUp && other->endpoint == slot.endpoint) other->retry = slot.retry;
  }
}

}  // namespace fastdecode
