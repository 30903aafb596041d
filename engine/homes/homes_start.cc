// The start of Homes: which workers are there, and a place for each home.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/homes/homes.h"
#include "numa/clock.h"

namespace fastdecode {

namespace {

template <class Asked>
bool IsThere(const Asked& asked) {
  for (const auto& made : asked) {
    if (made.ok()) return true;
  }
  return false;
}

// It may be there, and be busy or stopped.
template <class Asked>
bool IsSilent(const Asked& asked) {
  return !asked.empty() && absl::IsDeadlineExceeded(asked.front().status());
}

absl::Status TooMany() {
  return absl::InvalidArgumentError(absl::StrFormat("--homes: more than %d homes in all", kMaxHomes));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Homes>> Homes::Create(HomesOptions options) {
  std::unique_ptr<Homes> homes(new Homes(std::move(options)));
  const std::vector<Endpoint>& endpoints = homes->options_.endpoints;
  if (endpoints.size() > kMaxHomes) return TooMany();
  std::vector<Asked> asked = homes->AskWorkers();
  if (absl::Status bad = homes->CheckEnough(asked); !bad.ok()) return bad;
  for (size_t e = 0; e < endpoints.size(); ++e) {
    const absl::Status bad = endpoints[e].of_this_process() ? homes->MakeOwnPlaces(endpoints[e])
                                                            : homes->MakePlaces(endpoints[e], std::move(asked[e]));
    if (!bad.ok()) return bad;
  }
  return homes;
}

// [endpoints]. All at the same time, so that several silent ones take no longer than one. Where some may be missing,
// those that are silent are asked again only while too few of the others are there.
std::vector<Homes::Asked> Homes::AskWorkers() {
  const std::vector<Endpoint>& endpoints = options_.endpoints;
  std::vector<Asked> asked(endpoints.size());
  const uint64_t deadline_ns = NowNs() + kConnectTimeoutNs;
  const uint64_t hello_timeout_ns = options_.homes_min > 0 ? kHelloTimeoutNs : kConnectTimeoutNs;
  bool again = true;
  while (again) {
    std::vector<PinnedThread> asking;
    for (size_t e = 0; e < endpoints.size(); ++e) {
      if (endpoints[e].of_this_process() || (!asked[e].empty() && !IsSilent(asked[e]))) continue;
      asking.emplace_back("fd-connect", -1, [this, &asked, &endpoints, e, hello_timeout_ns] {
        asked[e] = AskWorker(endpoints[e], hello_timeout_ns);
      });
    }
    asking.clear();  // waits for them
    again = CountThere(asked) < static_cast<size_t>(options_.homes_min) && NowNs() < deadline_ns &&
            std::any_of(asked.begin(), asked.end(), IsSilent<Asked>);
  }
  return asked;
}

// Up to the first that is not there, or, where some may be missing, all homes of a worker whose first one is there.
// What a worker that has fallen silent would say of the rest is not waited for.
Homes::Asked Homes::AskWorker(const Endpoint& endpoint, uint64_t hello_timeout_ns) {
  Asked asked;
  uint32_t homes = 1;
  for (uint32_t i = 0; i < homes && i <= kMaxHomes; ++i) {
    if (i > 0 && absl::IsDeadlineExceeded(asked.back().status())) {
      asked.push_back(asked.back().status());
      continue;
    }
    asked.push_back(Connect(endpoint, i, hello_timeout_ns));
    if (asked.back().ok()) homes = asked.back()->homes_at_worker;
    if (!asked.back().ok() && options_.homes_min == 0) break;
  }
  return asked;
}

size_t Homes::CountThere(const std::vector<Asked>& asked) const {
  size_t there = 0;
  for (size_t e = 0; e < asked.size(); ++e) there += options_.endpoints[e].of_this_process() || IsThere(asked[e]);
  return there;
}

absl::Status Homes::CheckEnough(const std::vector<Asked>& asked) const {
  const size_t there = CountThere(asked);
  if (there >= static_cast<size_t>(options_.homes_min)) return absl::OkStatus();
  std::string absent;
  for (size_t e = 0; e < asked.size(); ++e) {
    const Endpoint& endpoint = options_.endpoints[e];
    if (endpoint.of_this_process() || IsThere(asked[e])) continue;
    absl::StrAppend(&absent, absent.empty() ? "" : "; ", FormatEndpoint(endpoint), " (",
                    std::string(asked[e].front().status().message()), ")");
  }
  return absl::UnavailableError(absl::StrFormat(
      "--homes-min: %d of --homes must be there, and %d of %d %s; not there: %s. Start these workers, or "
      "give a smaller --homes-min",
      options_.homes_min, there, asked.size(), there == 1 ? "is" : "are", absent));
}

absl::Status Homes::MakeOwnPlaces(const Endpoint& endpoint) {
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

Homes::Slot Homes::WorkersPlace(const Endpoint& endpoint, uint32_t home_index) {
  Slot slot;
  slot.place = FormatEndpoint(endpoint);
  slot.endpoint = endpoint;
  slot.home_index = home_index;
  return slot;
}

absl::Status Homes::MakePlaces(const Endpoint& endpoint, Asked asked) {
  for (uint32_t i = 0; i < asked.size(); ++i) {
    if (!asked[i].ok() && options_.homes_min == 0) return asked[i].status();
    Slot slot = WorkersPlace(endpoint, i);
    if (i > 0 || asked[i].ok()) slot.name = slot.NameAtWorker();
    if (asked[i].ok()) {
      if (absl::Status bad = CheckNew(slot, *asked[i]); !bad.ok()) return bad;
    } else {
      slot.failure = std::string(asked[i].status().message());
    }
    if (absl::Status bad = AddPlace(std::move(slot)); !bad.ok()) return bad;
    Slot& added = *slots_[count() - 1];
    if (asked[i].ok()) {
      PutUp(added, *std::move(asked[i]));
      LogLink(added);
      continue;
    }
    if (i == 0) added.retry->Fail(NowNs());
    if (options_.logger != nullptr) {
      options_.logger->Warning(absl::StrFormat("%s %s; this engine starts without it, and takes it in when it comes",
                                               NameOf(count() - 1), AbsenceOf(added)));
    }
  }
  return absl::OkStatus();
}

absl::Status Homes::CheckNew(const Slot& slot, const Made& made) const {
  // A path or host may have several names, of which a worker knows nothing: the later link has cost the earlier one.
  for (size_t i = 0; i < count(); ++i) {
    const Slot& other = *slots_[i];
    if (&other == &slot || made.description.id == 0 || made.description.id != other.description.id) continue;
    return absl::InvalidArgumentError(absl::StrFormat("--homes: '%s' and '%s' are the same home; name each worker once",
                                                      other.called(), slot.called()));
  }
  return absl::OkStatus();
}

absl::Status Homes::AddPlace(Slot slot) {
  const size_t index = count();
  if (index == kMaxHomes) return TooMany();
  for (size_t i = 0; i < index; ++i) {
    if (!slot.endpoint.of_this_process() && slots_[i]->endpoint == slot.endpoint) slot.retry = slots_[i]->retry;
  }
  if (slot.retry == nullptr) slot.retry = std::make_shared<RetrySchedule>();
  slots_[index] = std::make_unique<Slot>(std::move(slot));
  count_.store(index + 1, std::memory_order_release);
  return absl::OkStatus();
}

}  // namespace fastdecode
