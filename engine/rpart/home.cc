#include "engine/rpart/home.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <future>
#include <random>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/rpart/read_rate.h"
#include "engine/rpart/rpart_shape.h"
#include "numa/check.h"
#include "numa/clock.h"
#include "numa/memory_limit.h"
#include "numa/pinning.h"
#include "numa/topology.h"

namespace fastdecode {

namespace {

constexpr double kMiB = 1 << 20;

// Cut to what fits; always ends with a zero byte.
template <size_t kBytes>
void CopyText(const std::string& text, char (&out)[kBytes]) {
  const size_t bytes = std::min(text.size(), kBytes - 1);
  std::memcpy(out, text.data(), bytes);
  std::memset(out + bytes, 0, kBytes - bytes);
}

absl::Status ChooseIsa(Isa* isa) {
  const Isa best = DetectIsa();
  if (best == Isa::kNone) return absl::FailedPreconditionError("this CPU has no AVX2 with FMA and F16C");
  if (*isa == Isa::kNone) *isa = best;
  if (*isa <= best) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat("isa %s: this CPU has %s at most", IsaName(*isa), IsaName(best)));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Home>> Home::Create(HomeOptions options) {
  if (options.cores.empty()) return absl::InvalidArgumentError(absl::StrCat(options.name, ": no cores given"));
  if (options.peers < 1 || options.peers > kPeersMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: %d peers, allowed is 1 to %d", options.name, options.peers, kPeersMax));
  }
  if (absl::Status status = ChooseIsa(&options.isa); !status.ok()) return status;
  ArenaOptions memory;
  memory.bytes = options.kv_bytes;
  memory.node = options.node;
  // Unpinned teams touch their memory from the calling thread.
  std::copy_if(options.cores.begin(), options.cores.end(), std::back_inserter(memory.prefault_cores),
               [](int core) { return core >= 0; });
  absl::StatusOr<Arena> arena = Arena::Create(memory);
  if (!arena.ok()) {
    const char* option = absl::IsResourceExhausted(arena.status()) ? "--kv-gib: " : "";
    return absl::Status(arena.status().code(), absl::StrCat(option, std::string(arena.status().message())));
  }
  if (arena->placement() == ArenaPlacement::kRefused && !NodeMemory::IsOnlyOne(options.node) &&
      options.logger != nullptr) {
    options.logger->Warning(absl::StrFormat(
        "%s: %s: its KV memory may be on any node, far from its cores; in a container, --cap-add SYS_NICE",
        options.name, arena->refusal()));
  }
  if (!arena->huge_refusal().empty() && options.logger != nullptr) {
    options.logger->Warning(absl::StrFormat("%s: %s: its KV memory may lie in small pages, which are slower to read",
                                            options.name, arena->huge_refusal()));
  }
  TickClock::Get();  // calibrates, which takes 10 ms
  return std::unique_ptr<Home>(new Home(std::move(options), *std::move(arena)));
}

Home::Home(HomeOptions options, Arena arena)
    : options_(std::move(options)),
      arena_(std::move(arena)),
      memory_(arena_.Describe()),
      read_rate_(MeasureReadRate({reinterpret_cast<const std::byte*>(arena_.data()), arena_.bytes()}, options_.cores)),
      id_(std::random_device()() | uint64_t{std::random_device()()} << 32) {}

Home::~Home() { Detach(); }

absl::Status Home::CheckShape(const RPartShape& shape) const {
  if (absl::Status status = ValidateShape(shape); !status.ok()) return status;
  const size_t page_bytes = KvPool::PageBytesAllLayers(shape.attention(), static_cast<int>(shape.layers));
  if (page_bytes <= arena_.bytes()) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrFormat(
      "%s: %.4g MiB of KV memory hold not even one page: %d tokens of %d layers are %.4g MiB", options_.name,
      static_cast<double>(arena_.bytes()) / kMiB, kPageTokens, shape.layers, static_cast<double>(page_bytes) / kMiB));
}

HomeDescription Home::Describe(const RPartShape& shape) const {
  HomeDescription description;
  description.node = options_.node;
  description.threads = static_cast<uint32_t>(options_.cores.size());
  description.page_bytes = KvPool::PageBytesAllLayers(shape.attention(), static_cast<int>(shape.layers));
  description.pages = arena_.bytes() / description.page_bytes;
  description.read_mb_per_s = static_cast<uint32_t>(read_rate_ * 1e-6);
  description.id = id_;
  CopyText(IsaName(options_.isa), description.isa);
  CopyText(memory_, description.memory);
  return description;
}

absl::StatusOr<HomeDescription> Home::Offer(const RPartShape& shape, const PeerRequest& peer) const {
  HomeDescription description = Describe(shape);
  const uint64_t total = description.pages;
  uint64_t reserved = 0;
  uint32_t count = 0;
  std::string served, difference;
  for (const std::unique_ptr<PeerSession>& session : sessions_) {
    if (session->ended()) continue;
    difference = DescribePageDifference(session->shape(), shape);  // to all of them the same
    reserved += session->pages();
    absl::StrAppend(&served, count == 0 ? "" : "; ", session->peer().Describe());
    ++count;
  }
  if (count >= options_.peers) {
    return absl::FailedPreconditionError(absl::StrFormat("already serves %d engine%s (--peers %d): %s", count,
                                                         count == 1 ? "" : "s", options_.peers, served));
  }
  if (!difference.empty()) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "serves another model: what it serves (here) and this engine's (there), %s; served: %s", difference, served));
  }
  const uint64_t wanted = peer.pages_wanted > 0 ? peer.pages_wanted : std::max<uint64_t>(total / options_.peers, 1);
  description.pages = std::min(wanted, total - reserved);
  if (description.pages > 0) return description;
  return absl::ResourceExhaustedError(
      absl::StrFormat("has no pages left to reserve: %d asked for, 0 of %d free; served: %s", wanted, total, served));
}

// All but what the loop adds.
PeerSessionOptions Home::SessionOptions() const {
  PeerSessionOptions session_options;
  session_options.home_name = options_.name;
  session_options.node = options_.node;
  session_options.threads = static_cast<int>(options_.cores.size());
  session_options.isa = options_.isa;
  session_options.sequences_max = options_.sequences_max;
  return session_options;
}

absl::StatusOr<TeamWorkspace> Home::MakeWorkspace(const RPartShape& shape) const {
  return PeerSession::MakeWorkspace(SessionOptions(), shape);
}

absl::Status Home::Attach(const RPartShape& shape, std::unique_ptr<HomeLink> link, const PeerRequest& peer) {
  if (absl::Status status = CheckShape(shape); !status.ok()) return status;
  absl::StatusOr<TeamWorkspace> workspace = MakeWorkspace(shape);
  if (!workspace.ok()) return workspace.status();
  return Attach(shape, std::move(link), peer, *std::move(workspace));
}

absl::Status Home::Attach(const RPartShape& shape, std::unique_ptr<HomeLink> link, const PeerRequest& peer,
                          TeamWorkspace workspace) {
  const auto lose = [&](absl::StatusCode code, const std::string& why) {
    link->MarkLost(why.c_str());  // a link that is only closed tells its peer nothing
    return absl::Status(code, why);
  };
  if (absl::Status bad = CheckLinkCarries(shape, link->size()); !bad.ok()) {
    return lose(bad.code(), std::string(bad.message()));
  }
  const absl::StatusOr<HomeDescription> offer = Offer(shape, peer);
  if (!offer.ok()) {
    return lose(offer.status().code(), absl::StrCat(options_.name, " ", std::string(offer.status().message())));
  }
  DetachEnded();
  try {
    if (loop_ == nullptr) StartLoop(shape);
  } catch (const std::system_error& error) {
    return lose(absl::StatusCode::kResourceExhausted, absl::StrCat(options_.name, ": ", error.what()));
  }
  PeerSessionOptions session_options = SessionOptions();
  session_options.pages = static_cast<uint32_t>(offer->pages);
  session_options.pool = loop_->pool();
  session_options.leader = loop_->word_for_wakers();
  try {
    sessions_.push_back(
        std::make_unique<PeerSession>(session_options, shape, peer, std::move(link), std::move(workspace)));
  } catch (const std::system_error& error) {  // the session has lost the link
    StopLoopIfUnused();
    return absl::ResourceExhaustedError(absl::StrCat(options_.name, ": ", error.what()));
  }
  loop_->Add(sessions_.back().get());
  if (options_.monitor != nullptr) options_.monitor->Add(&sessions_.back()->link());
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<EngineLink>> Home::AttachInStages(const RPartShape& shape, TicketTeam* team,
                                                                 int threads) {
  FD_CHECK(sessions_.empty() && stage_home_ == nullptr, "the home has a peer");
  StageHomeOptions stage_options;
  stage_options.session = SessionOptions();
  stage_options.session.threads = threads;
  stage_options.kv_memory = {reinterpret_cast<std::byte*>(arena_.data()), arena_.bytes()};
  stage_options.team = team;
  absl::StatusOr<std::unique_ptr<StageHome>> made = StageHome::Create(stage_options, shape);
  if (!made.ok()) return made.status();
  stage_home_ = *std::move(made);
  return stage_home_->TakeLink();
}

// Throws as PinnedThread does; there is no loop then.
void Home::StartLoop(const RPartShape& shape) {
  HomeLoopOptions loop_options;
  loop_options.name = options_.name;
  loop_options.cores = options_.cores;
  loop_options.poll = options_.poll;
  loop_options.park = options_.park;
  loop_options.peers = options_.peers;
  loop_options.kv_memory = {reinterpret_cast<std::byte*>(arena_.data()), arena_.bytes()};
  loop_options.page_shape = shape;
  auto loop = std::make_unique<HomeLoop>(loop_options);
  const auto ready = std::make_shared<std::promise<void>>();  // the leader's, too: it may be the last to let go of it
  leader_ = PinnedThread(options_.name, options_.cores[0], [loop = loop.get(), ready] {
    try {
      loop->MakeTeam();
    } catch (const std::system_error&) {
      ready->set_exception(std::current_exception());
      return;
    }
    ready->set_value();
    loop->Serve();
  });
  try {
    ready->get_future().get();
  } catch (const std::system_error&) {
    leader_.Join();
    throw;
  }
  loop_ = std::move(loop);
  WarnOfUnpinned();
}

// Not where the kernel pins no thread: that is said once, of all threads, when their cores are chosen.
void Home::WarnOfUnpinned() const {
  const int leader_error = leader_.pin_error();
  const int unpinned = loop_->team().unpinned_count() + (leader_error == 0 ? 0 : 1);
  const int error = leader_error == 0 ? loop_->team().pin_error() : leader_error;
  if (unpinned == 0 || PinningIsForbidden(error) || options_.logger == nullptr) return;
  options_.logger->Warning(absl::StrFormat("%s: %d of %d threads could not be pinned to their cores %s: %s",
                                           options_.name, unpinned, loop_->team().thread_count(),
                                           FormatCores(options_.cores), std::strerror(error)));
}

void Home::StopLoopIfUnused() {
  if (loop_ == nullptr || !sessions_.empty()) return;
  loop_->Stop();
  leader_.Join();
  loop_.reset();
}

bool Home::serving() const {
  return std::any_of(sessions_.begin(), sessions_.end(), [](const auto& session) { return !session->ended(); });
}

std::string Home::Detach(PeerSession* session) {
  const auto found =
      std::find_if(sessions_.begin(), sessions_.end(), [session](const auto& each) { return each.get() == session; });
  FD_CHECK(found != sessions_.end(), "the peer is not attached here");
  if (options_.monitor != nullptr) options_.monitor->Remove(&session->link());
  session->link().MarkLost("the home was stopped");
  loop_->AwaitEnd(*session);
  const std::string cause = session->end_cause();
  if (options_.logger != nullptr) {
    options_.logger->Debug(
        absl::StrFormat("%s: no longer serves the %s: %s", options_.name, session->link().peer_name(), cause));
  }
  sessions_.erase(found);
  StopLoopIfUnused();
  return cause;
}

std::string Home::Detach() {
  stage_home_.reset();
  // All at once: a parked leader then ends them in one turn.
  for (const std::unique_ptr<PeerSession>& session : sessions_) session->link().MarkLost("the home was stopped");
  std::string cause;
  while (!sessions_.empty()) cause = Detach(sessions_.front().get());
  return cause;
}

void Home::DetachEnded() {
  for (size_t i = sessions_.size(); i-- > 0;) {
    if (sessions_[i]->ended()) Detach(sessions_[i].get());
  }
}

}  // namespace fastdecode
