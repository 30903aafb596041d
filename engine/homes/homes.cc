#include "engine/homes/homes.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/rpart/page_counts.h"
#include "engine/rpart/rpart_shape.h"
#include "numa/check.h"
#include "numa/clock.h"
#include "rdma/shm/local_link.h"

namespace fastdecode {

Homes::Homes(HomesOptions options) : options_(std::move(options)) {
  if (options_.fabric.gpu < 0) return;
  // Before there is an S-Part no steps run.
  options_.fabric.hold_gpu = [this]() -> std::shared_ptr<void> {
    AreaRegistry* const areas = spart_ == nullptr ? nullptr : spart_->areas();
    return areas == nullptr ? std::make_shared<int>() : areas->HoldSteps();  // null: the GPU is given up
  };
}

Homes::~Homes() {
  Stop();
  for (size_t i = 0; i < count(); ++i) {
    Slot& slot = *slots_[i];
    if (slot.link != nullptr) {
      monitor_.Remove(slot.link.get());
      if (slot.areas_registered) UnregisterAreas(*slot.link);
    }
    slot.link.reset();
    if (slot.home != nullptr) slot.home->Detach();
  }
}

absl::Status Homes::MakeOwn(SPart* spart, const std::vector<uint64_t>& kv_bytes) {
  spart_ = spart;
  int locals = 0;
  for (size_t i = 0; i < count(); ++i) {
    Slot& slot = *slots_[i];
    if (!slot.endpoint.of_this_process()) {
      if (slot.link == nullptr) continue;  // it has not come
      if (absl::Status bad = RegisterAreas(*slot.link); !bad.ok()) return bad;
      slot.areas_registered = true;
      continue;
    }
    if (slot.endpoint.kind == Endpoint::Kind::kLocal) {
      const absl::Status made = MakeLocalHome(slot, locals, kv_bytes[static_cast<size_t>(locals)]);
      if (!made.ok()) return made;
      ++locals;
    }
    absl::StatusOr<Made> made = AttachAgain(i);
    if (!made.ok()) return made.status();
    PutUp(slot, *std::move(made));
    LogLink(slot);
  }
  return absl::OkStatus();
}

// `ordinal`: among the homes of this process.
absl::Status Homes::MakeLocalHome(Slot& slot, int ordinal, uint64_t kv_bytes) {
  HomeOptions home_options;
  home_options.name = absl::StrFormat("home%d", ordinal);
  home_options.node = options_.plan.home_nodes[static_cast<size_t>(ordinal)];
  home_options.cores = options_.plan.home_cores[static_cast<size_t>(ordinal)];
  home_options.kv_bytes = kv_bytes;
  home_options.poll = options_.poll;
  home_options.park = options_.park;
  home_options.isa = options_.isa;
  if (options_.one_team) home_options.sequences_max = options_.sequences_max;
  home_options.logger = options_.logger;
  absl::StatusOr<std::unique_ptr<Home>> home = Home::Create(home_options);
  if (!home.ok()) {
    return absl::Status(home.status().code(), absl::StrFormat("home %d (local, node %d): %s", ordinal,
                                                              home_options.node, home.status().message()));
  }
  slot.home = *std::move(home);
  slot.ordinal = static_cast<size_t>(ordinal);
  const absl::Status bad = slot.home->CheckShape(options_.shape);
  const char* option = absl::IsResourceExhausted(bad) ? "--kv-gib: " : "";
  return bad.ok() ? bad : absl::Status(bad.code(), absl::StrCat(option, std::string(bad.message())));
}

absl::StatusOr<Homes::Made> Homes::AttachLocal(size_t index) {
  Home& home = *slots_[index]->home;
  absl::StatusOr<LocalLink> link = MakeLocalLink(LinkSizeFor(options_.shape, options_.gpu_home), home.options().node,
                                                 options_.engine_node, next_epoch_++);
  if (!link.ok()) return link.status();
  if (absl::Status attached = home.Attach(options_.shape, std::move(link->home)); !attached.ok()) return attached;
  if (absl::Status bad = RegisterAreas(*link->engine); !bad.ok()) return bad;
  return Made{std::move(link->engine), home.Describe(options_.shape), 1};
}

absl::StatusOr<Homes::Made> Homes::AttachInStages(size_t index) {
  Slot& slot = *slots_[index];
  StageHomes* const stages = spart_->stage_homes();
  FD_CHECK(stages != nullptr, "the S-Part was made to attend to homes");
  const std::vector<int>& threads = options_.plan.home_threads[slot.ordinal];
  absl::StatusOr<std::unique_ptr<EngineLink>> link =
      slot.home->AttachInStages(options_.shape, stages->team(), static_cast<int>(threads.size()));
  if (!link.ok()) return link.status();
  stages->Put(static_cast<int>(index), slot.home->stage_home(), threads);
  return Made{*std::move(link), slot.home->Describe(options_.shape), 1};
}

absl::StatusOr<Homes::Made> Homes::AttachGpu(size_t index) {
  DeviceHome* const device_home = spart_->device_home();
  if (device_home == nullptr) {
    return absl::FailedPreconditionError("the S-Part has no memory for KV of its own");
  }
  absl::StatusOr<DeviceHome::Attached> own = device_home->Attach(static_cast<int>(index));
  if (!own.ok()) return own.status();
  return Made{std::move(own->link), own->description, 1};
}

absl::StatusOr<Homes::Made> Homes::AttachAgain(size_t index) {
  Slot& slot = *slots_[index];
  if (slot.home != nullptr) return options_.one_team ? AttachInStages(index) : AttachLocal(index);
  if (slot.endpoint.kind == Endpoint::Kind::kGpu) return AttachGpu(index);
  return Connect(slot.endpoint, slot.home_index, kHelloTimeoutNs);
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
  monitor_.Add(made.link.get());
  made.watched = {made.link.get(), Unwatch{&monitor_}};
  if (absl::Status bad = RegisterAreas(*made.link); !bad.ok()) return bad;
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

// Who must know of a link's areas; null: nobody.
AreaRegistry* Homes::RegistryFor(const EngineLink& link) {
  return spart_ == nullptr || link.AreasOnGpu() ? nullptr : spart_->areas();
}

absl::Status Homes::RegisterAreas(EngineLink& link) {
  AreaRegistry* const areas = RegistryFor(link);
  if (areas == nullptr) return absl::OkStatus();
  const std::shared_ptr<void> hold = areas->HoldSteps();  // once for both
  const std::span<std::byte> send = SendPages(link), receive = ReceivePages(link);
  if (absl::Status bad = areas->RegisterAreas(send.data(), send.size()); !bad.ok()) return bad;
  absl::Status bad = areas->RegisterAreas(receive.data(), receive.size());
  if (!bad.ok()) areas->UnregisterAreas(send.data());
  return bad;
}

void Homes::UnregisterAreas(EngineLink& link) {
  AreaRegistry* const areas = RegistryFor(link);
  if (areas == nullptr) return;
  const std::shared_ptr<void> hold = areas->HoldSteps();  // once for both
  areas->UnregisterAreas(SendPages(link).data());
  areas->UnregisterAreas(ReceivePages(link).data());
}

void Homes::PutUp(Slot& slot, Made made) {
  made.watched.reset();
  slot.link = std::move(made.link);
  slot.areas_registered = spart_ != nullptr;
  if (options_.fault && !slot.link->AttendsInStage())
    slot.link = std::make_unique<FaultLink>(std::move(slot.link), *options_.fault);
  slot.description = made.description;
  // The peer's text fields end somewhere inside.
  slot.description.isa[sizeof(slot.description.isa) - 1] = 0;
  slot.description.memory[sizeof(slot.description.memory) - 1] = 0;
  slot.state = Slot::State::kUp;
  slot.draining = false;
  slot.has_come = true;
  if (slot.name.empty()) slot.name = slot.NameAtWorker();
  monitor_.Add(slot.link.get());
}

// Not with mutex_ held: the log's sink may ask for this engine's homes.
void Homes::LogLink(const Slot& slot) {
  if (options_.logger == nullptr) return;
  options_.logger->Info(absl::StrCat("link to ", slot.called(), ": ", slot.link->Describe()));
}

void Homes::Start(std::function<void(const PipelineCommand&)> command, std::function<uint64_t(int home)> replies) {
  command_ = std::move(command);
  replies_ = std::move(replies);
  for (size_t i = 0; i < count(); ++i) slots_[i]->has_come ? Announce(i) : Expect(i);
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
  // Beside a near home. Among others a rate of a few milliseconds says as much of what else ran meanwhile.
  const auto is_worker = [](const Endpoint& endpoint) { return !endpoint.of_this_process(); };
  const bool has_workers = std::any_of(options_.endpoints.begin(), options_.endpoints.end(), is_worker);
  const bool beside_near = options_.gpu_home || (options_.one_team && has_workers);
  if (beside_near) command.read_mb_per_s = slots_[index]->description.read_mb_per_s;
  command_(command);
}

// It is not there yet, and requests that only it could hold may wait for it.
void Homes::Expect(size_t index) {
  PipelineCommand command;
  command.kind = PipelineCommand::Kind::kExpectHome;
  command.home = static_cast<int>(index);
  command_(command);
}

uint64_t Homes::pages_max() const {
  std::lock_guard lock(mutex_);
  uint64_t pages = 0;
  for (size_t i = 0; i < count(); ++i) pages = std::max(pages, slots_[i]->description.pages);
  return pages;
}

std::vector<Homes::Info> Homes::List() const {
  std::lock_guard lock(mutex_);
  std::vector<Info> list;
  for (size_t i = 0; i < count(); ++i) {
    const Slot& slot = *slots_[i];
    const bool up = slot.state == Slot::State::kUp && !slot.link->lost();
    list.push_back({static_cast<int>(i),
                    up,
                    up && slot.draining,
                    slot.called(),
                    up ? slot.link->Describe() : "",
                    slot.endpoint.kind != Endpoint::Kind::kFabric,
                    up ? slot.link->line() : LinkLine(),
                    slot.description,
                    {},
                    up ? "" : AbsenceOf(slot)});
    if (slot.home != nullptr) list.back().cores = slot.home->options().cores;
  }
  return list;
}

Homes::Glance Homes::Look(size_t index) const {
  std::lock_guard lock(mutex_);
  const Slot& slot = *slots_[index];
  const bool up = slot.state == Slot::State::kUp && !slot.link->lost();
  return {slot.called().c_str(), up, up ? slot.description.pages : 0, slot.losses};
}

std::string Homes::Describe() const {
  std::string text;
  for (const Info& info : List()) {
    const HomeDescription& d = info.description;
    absl::StrAppend(&text, "home ", info.index, ": ", info.name);
    if (d.pages > 0) {
      absl::StrAppendFormat(&text, ", %s, %d thread(s), %s, %d pages of %d bytes (%d tokens), read with %.1f GB/s",
                            d.isa, d.threads, d.memory, d.pages, d.page_bytes, d.pages * kPageTokens,
                            d.read_mb_per_s * 1e-3);
    }
    absl::StrAppend(&text, ", ", info.up ? info.link : info.absence, info.draining ? ", draining" : "", "\n");
  }
  return text;
}

std::string Homes::DescribeAbsent() const {
  std::string text;
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < count(); ++i) {
    const Slot& slot = *slots_[i];
    const bool is_made_later = slot.endpoint.of_this_process() && !slot.has_come;
    if (slot.state == Slot::State::kUp || is_made_later) continue;
    absl::StrAppend(&text, "; ", NameOf(i), " ", AbsenceOf(slot));
  }
  return text;
}

// RequestDesk thread, as the next one.
void Homes::OnHomeDraining(int home) {
  {
    std::lock_guard lock(mutex_);
    slots_[home]->draining = true;
  }
  if (options_.logger == nullptr) return;
  options_.logger->Info(Name(home) + " is draining: what it computes ends there, and new sequences go to others");
}

// The pipeline has let go of the link.
void Homes::OnHomeLost(int home, uint64_t hops_posted, uint32_t paused) {
  std::string loss;
  bool was_planned = false;
  {
    std::lock_guard lock(mutex_);
    Slot& slot = *slots_[home];
    slot.loss = slot.link->lost_cause();
    slot.was_asked = hops_posted > slot.hops_posted;
    slot.hops_posted = hops_posted;
    slot.state = Slot::State::kLost;
    was_planned = slot.draining && paused == 0;
    if (!was_planned) ++slot.losses;
    loss = absl::StrCat(NameOf(home), " ", AbsenceOf(slot));
  }
  if (!was_planned) absl::StrAppend(&loss, "; sequences that are computed again: ", paused);
  if (options_.logger != nullptr) options_.logger->Log(was_planned ? LogLevel::kInfo : LogLevel::kWarning, loss);
  changed_.notify_all();
}

std::string Homes::Name(int home) {
  std::lock_guard lock(mutex_);
  return NameOf(static_cast<size_t>(home));
}

// REQUIRES: the mutex is held, or this is the control thread.
std::string Homes::NameOf(size_t index) const {
  return absl::StrFormat("home %d (%s)", index, slots_[index]->called());
}

// Why a home is not there, or takes nothing. REQUIRES: the mutex is held, or this is the control thread.
std::string Homes::AbsenceOf(const Slot& slot) const {
  if (slot.state == Slot::State::kGivenUp) return absl::StrCat("is not used: ", slot.failure);
  if (!slot.has_come) return absl::StrCat("has not come yet: ", slot.failure);
  const std::string cause = slot.state == Slot::State::kUp ? slot.link->lost_cause() : slot.loss;
  if (slot.draining && cause.empty()) return "is draining";
  return absl::StrCat(slot.draining ? "has ended: " : "was lost: ", cause.empty() ? "unknown cause" : cause);
}

std::string Homes::DescribeNoRoom(uint32_t tokens) {
  uint64_t most_pages = 0;
  bool waited = false;
  std::string absent;
  {
    std::lock_guard lock(mutex_);
    for (size_t i = 0; i < count(); ++i) {
      const Slot& slot = *slots_[i];
      if (slot.state == Slot::State::kUp && !slot.link->lost() && !slot.draining) {
        most_pages = std::max(most_pages, slot.description.pages);
        continue;
      }
      waited |= slot.state != Slot::State::kGivenUp;
      absl::StrAppend(&absent, "; ", NameOf(i), " ", AbsenceOf(slot));
    }
  }
  if (waited) {
    absl::StrAppendFormat(
        &absent, "; none that could hold it came within --recover-ms %d: start their workers, or give it more time",
        options_.recover_ms);
  }
  if (most_pages == 0) return absl::StrCat("no living home is left", absent);
  const uint64_t most = PageCounts(options_.shape.attention()).TokensIn(most_pages);
  if (most >= tokens) return "no living home could hold this request; one that can has come back since";
  return absl::StrFormat("no living home can hold this request: it needs room for %d tokens, the largest has %d%s",
                         tokens, most, absent);
}

}  // namespace fastdecode
