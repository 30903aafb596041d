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
  if (options_.fabric.gpu < 0) return;
  // Before there is an S-Part no steps run.
  options_.fabric.hold_gpu = [this]() -> std::shared_ptr<void> {
    AreaRegistry* const areas = spart_ == nullptr ? nullptr : spart_->areas();
    return areas == nullptr ? std::make_shared<int>() : areas->HoldSteps();  // null: the GPU is given up
  };
}

absl::StatusOr<std::unique_ptr<Homes>> Homes::Create(HomesOptions options) {
  std::unique_ptr<Homes> homes(new Homes(std::move(options)));
  for (const Endpoint& endpoint : homes->options_.endpoints) {
    if (absl::Status bad = homes->MakePlaces(endpoint); !bad.ok()) return bad;
  }
  return homes;
}

Homes::~Homes() {
  Stop();
  for (const std::unique_ptr<Slot>& slot : slots_) {
    if (slot->link != nullptr) {
      monitor_.Remove(slot->link.get());
      if (slot->areas_registered) UnregisterAreas(*slot->link);
    }
    slot->link.reset();
    if (slot->home != nullptr) slot->home->Detach();
  }
}

absl::Status Homes::MakePlaces(const Endpoint& endpoint) {
  if (!endpoint.of_this_process()) return ConnectWorker(endpoint);
  Slot slot;
  slot.endpoint = endpoint;
  if (endpoint.kind == Endpoint::Kind::kGpu) {
    slot.name = "gpu";
    return AddPlace(std::move(slot));
  }
  for (const int node : options_.plan.home_nodes) {
    Slot local;
    local.endpoint = endpoint;
    local.name = absl::StrFormat("local, node %d", node);
    if (absl::Status bad = AddPlace(std::move(local)); !bad.ok()) return bad;
  }
  return absl::OkStatus();
}

absl::Status Homes::MakeOwn(SPart* spart, const std::vector<uint64_t>& kv_bytes) {
  spart_ = spart;
  int locals = 0;
  for (size_t i = 0; i < slots_.size(); ++i) {
    Slot& slot = *slots_[i];
    if (slot.link != nullptr) {  // a worker's
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
  home_options.logger = options_.logger;
  absl::StatusOr<std::unique_ptr<Home>> home = Home::Create(home_options);
  if (!home.ok()) {
    return absl::Status(home.status().code(), absl::StrFormat("home %d (local, node %d): %s", ordinal,
                                                              home_options.node, home.status().message()));
  }
  slot.home = *std::move(home);
  const absl::Status bad = slot.home->CheckShape(options_.shape);
  const char* option = absl::IsResourceExhausted(bad) ? "--kv-gib: " : "";
  return bad.ok() ? bad : absl::Status(bad.code(), absl::StrCat(option, std::string(bad.message())));
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
  // A path or host may have several names, of which a worker knows nothing: the later link has cost the earlier one.
  for (const std::unique_ptr<Slot>& other : slots_) {
    if (made.description.id == 0 || made.description.id != other->description.id) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("--homes: '%s' and '%s' are the same home", other->name, slot.name));
  }
  return absl::OkStatus();
}

absl::Status Homes::AddSlot(Slot slot, Made made) {
  if (absl::Status bad = CheckNew(slot, made); !bad.ok()) return bad;
  if (absl::Status bad = AddPlace(std::move(slot)); !bad.ok()) return bad;
  PutUp(*slots_.back(), std::move(made));
  LogLink(*slots_.back());
  return absl::OkStatus();
}

absl::Status Homes::AddPlace(Slot slot) {
  if (slots_.size() == kMaxHomes) {
    return absl::InvalidArgumentError(absl::StrFormat("--homes: more than %d homes in all", kMaxHomes));
  }
  for (const std::unique_ptr<Slot>& other : slots_) {
    if (!slot.endpoint.of_this_process() && other->endpoint == slot.endpoint) slot.retry = other->retry;
  }
  if (slot.retry == nullptr) slot.retry = std::make_shared<RetrySchedule>();
  slots_.push_back(std::make_unique<Slot>(std::move(slot)));
  return absl::OkStatus();
}

absl::StatusOr<Homes::Made> Homes::AttachLocal(Home& home) {
  absl::StatusOr<LocalLink> link = MakeLocalLink(LinkSizeFor(options_.shape, options_.gpu_home), home.options().node,
                                                 options_.engine_node, next_epoch_++);
  if (!link.ok()) return link.status();
  if (absl::Status attached = home.Attach(options_.shape, std::move(link->home)); !attached.ok()) return attached;
  if (absl::Status bad = RegisterAreas(*link->engine); !bad.ok()) return bad;
  return Made{std::move(link->engine), home.Describe(options_.shape), 1};
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
  for (size_t i = 0; i < slots_.size(); ++i) Announce(i);
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
                    up && slots_[i]->draining,
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

Homes::Glance Homes::Look(size_t index) const {
  std::lock_guard lock(mutex_);
  const Slot& slot = *slots_[index];
  const bool up = slot.state == Slot::State::kUp && !slot.link->lost();
  return {slot.name.c_str(), up, up ? slot.description.pages : 0, slot.losses};
}

std::string Homes::Describe() const {
  std::string text;
  for (const Info& info : List()) {
    const HomeDescription& d = info.description;
    text += absl::StrFormat(
        "home %d: %s, %s, %d thread(s), %s, %d pages of %d bytes (%d tokens), read with %.1f GB/s, %s\n", info.index,
        info.name, d.isa, d.threads, d.memory, d.pages, d.page_bytes, d.pages * kPageTokens, d.read_mb_per_s * 1e-3,
        !info.up ? "lost" : absl::StrCat(info.link, info.draining ? ", draining" : ""));
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
void Homes::OnHomeDrained(int home, uint64_t hops_posted, uint32_t paused) {
  std::string loss;
  bool was_planned = false;
  {
    std::lock_guard lock(mutex_);
    Slot& slot = *slots_[home];
    if (!slot.draining) ++slot.losses;
    slot.loss = slot.link->lost_cause();
    slot.was_asked = hops_posted > slot.hops_posted;
    slot.hops_posted = hops_posted;
    slot.state = Slot::State::kDrained;
    was_planned = slot.draining;
    loss = LossOf(home);
  }
  if (!was_planned || paused > 0) absl::StrAppend(&loss, "; sequences that are computed again: ", paused);
  if (options_.logger != nullptr) options_.logger->Log(was_planned ? LogLevel::kInfo : LogLevel::kWarning, loss);
  changed_.notify_all();
}

std::string Homes::Name(int home) { return absl::StrFormat("home %d (%s)", home, slots_[home]->name); }

// Which home, and why it was lost or takes nothing. REQUIRES: the mutex is held.
std::string Homes::LossOf(int home) {
  const Slot& slot = *slots_[home];
  const std::string cause = slot.state == Slot::State::kUp ? slot.link->lost_cause() : slot.loss;
  if (slot.draining && cause.empty()) return Name(home) + " is draining";
  const char* const what = slot.draining ? "has ended" : "was lost";
  return absl::StrFormat("%s %s: %s", Name(home), what, cause.empty() ? "unknown cause" : cause);
}

std::string Homes::DescribeNoRoom(uint32_t tokens) {
  uint64_t most_pages = 0;
  std::string losses;
  std::lock_guard lock(mutex_);
  for (size_t i = 0; i < slots_.size(); ++i) {
    const Slot& slot = *slots_[i];
    if (slot.state == Slot::State::kUp && !slot.link->lost() && !slot.draining) {
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

}  // namespace fastdecode
