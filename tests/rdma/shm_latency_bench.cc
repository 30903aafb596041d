// What a hop costs besides its payload: the round trip of a header-only hop between two threads, next to a bare
// cache-line ping-pong between the same two cores in the same run; and what waking a parked home adds: post, ring,
// reply from a leader that slept in the kernel for longer than a core needs to doze off. A figure, not a test.
//
//   rdma_shm_latency_bench [CORE CORE]     default: the first two cores that this process may use

#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "numa/cache_line.h"
#include "numa/clock.h"
#include "numa/pinned_thread.h"
#include "numa/spin.h"
#include "rdma/shm/local_link.h"

namespace fastdecode {
namespace {

constexpr int kWarmUp = 10'000;
constexpr int kSamples = 4'000;  // a round of each kind
constexpr int kTrips = 16;       // a sample: some clocks tick only every 10 ns
constexpr int kWakes = 200;      // a round
constexpr std::chrono::milliseconds kNap(3);
constexpr int kRounds = 5;  // alternating, so that both see the same machine

using Samples = std::vector<uint64_t>;  // ticks of a sample

// Calls trip(n) for n from 1 on, and keeps the time of each kTrips of them.
template <class Trip>
void Sample(Samples* samples, Trip&& trip) {
  uint64_t n = 0;
  while (n < kWarmUp) trip(++n);
  for (int i = 0; i < kSamples; ++i) {
    const uint64_t start = NowTicks();
    for (int k = 0; k < kTrips; ++k) trip(++n);
    samples->push_back(NowTicks() - start);
  }
}

// Two lines, as a link has: each side writes one and polls the other.
void MeasureLine(int core_far, Samples* samples) {
  static CacheAligned<std::atomic<uint64_t>> there, back;
  there.value.store(0);
  back.value.store(0);
  constexpr uint64_t kAll = kWarmUp + uint64_t{kSamples} * kTrips;
  PinnedThread far("far", core_far, [] {
    for (uint64_t n = 1; n <= kAll; ++n) {
      while (there.value.load(std::memory_order_acquire) != n) CpuRelax();
      back.value.store(n, std::memory_order_release);
    }
  });
  Sample(samples, [](uint64_t n) {
    there.value.store(n, std::memory_order_release);
    while (back.value.load(std::memory_order_acquire) != n) CpuRelax();
  });
}

ReplyHeader ReplyTo(const HopHeader& hop) {
  ReplyHeader reply;
  reply.step = hop.step;
  reply.layer = hop.layer;
  reply.micro_batch = hop.micro_batch;
  return reply;
}

void MeasureHop(int slots, int core_far, Samples* samples) {
  LinkSize size;
  size.slots = slots;
  absl::StatusOr<LocalLink> link = MakeLocalLink(size, -1, -1, 1);
  if (!link.ok()) std::abort();
  HomeLink* const home = link->home.get();
  PinnedThread far("far", core_far, [home] {
    HopHeader hop;
    const std::byte* payload;
    LinkPoll outcome;
    while ((outcome = home->PollHop(&hop, &payload)) != LinkPoll::kLost) {
      if (outcome == LinkPoll::kEmpty) {
        CpuRelax();
        continue;
      }
      home->PostReply(ReplyTo(hop));
    }
  });
  EngineLink* const engine = link->engine.get();
  HopHeader hop;
  hop.rows = 1;
  ReplyHeader reply;
  Sample(samples, [&](uint64_t n) {
    hop.step = n;
    hop.micro_batch = static_cast<uint8_t>(n % static_cast<unsigned>(slots));
    engine->PostHop(hop);
    while (engine->PollReply(&reply) == LinkPoll::kEmpty) CpuRelax();
  });
  link->engine.reset();
}

// Every hop finds the leader asleep: it parks as a home does (arm, look once more, sleep).
void MeasureWake(int core_far, Samples* samples) {
  absl::StatusOr<LocalLink> link = MakeLocalLink(LinkSize(), -1, -1, 1);
  if (!link.ok()) std::abort();
  HomeLink* const home = link->home.get();
  std::atomic<int> sleeps{0};
  PinnedThread far("far", core_far, [home, &sleeps] {
    HopHeader hop;
    const std::byte* payload;
    while (true) {
      LinkPoll outcome = home->PollHop(&hop, &payload);
      if (outcome == LinkPoll::kEmpty) {
        home->Arm();
        outcome = home->PollHop(&hop, &payload);
        if (outcome == LinkPoll::kEmpty) {
          sleeps.fetch_add(1, std::memory_order_relaxed);
          home->Sleep(1'000'000'000);
          continue;
        }
        home->Disarm();
      }
      if (outcome == LinkPoll::kLost) return;
      home->PostReply(ReplyTo(hop));
    }
  });
  EngineLink* const engine = link->engine.get();
  HopHeader hop;
  hop.rows = 1;
  ReplyHeader reply;
  for (int n = 1; n <= kWakes; ++n) {
    std::this_thread::sleep_for(kNap);
    const int sleeps_before = sleeps.load(std::memory_order_relaxed);
    const uint64_t start = NowTicks();
    hop.step = static_cast<uint64_t>(n);
    engine->PostHop(hop);
    engine->RingHome();
    while (engine->PollReply(&reply) == LinkPoll::kEmpty) CpuRelax();
    const uint64_t end = NowTicks();
    if (sleeps_before >= n) samples->push_back(end - start);  // it did sleep before this one
  }
  link->engine.reset();
}

// Of a trip, each sample being of `trips`.
double PercentileNs(Samples* samples, double share, int trips) {
  const size_t at = static_cast<size_t>(share * static_cast<double>(samples->size() - 1));
  std::nth_element(samples->begin(), samples->begin() + at, samples->end());
  return static_cast<double>(TickClock::Get().ToNs((*samples)[at])) / trips;
}

void Print(const char* name, Samples* samples, int trips, double baseline_ns) {
  const double p50 = PercentileNs(samples, 0.5, trips);
  std::printf("%-28s %8.0f %8.0f %8.0f %8.0f", name, PercentileNs(samples, 0, trips), p50,
              PercentileNs(samples, 0.9, trips), PercentileNs(samples, 0.99, trips));
  if (baseline_ns > 0) std::printf("   %.2f x", p50 / baseline_ns);
  std::printf("\n");
}

std::string CpuName() {
  std::ifstream cpuinfo("/proc/cpuinfo");
  for (std::string line; std::getline(cpuinfo, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown CPU";
}

int Run(int argc, char** argv) {
  std::vector<int> cores;
  cpu_set_t allowed;
  sched_getaffinity(0, sizeof(allowed), &allowed);
  for (int core = 0; core < CPU_SETSIZE; ++core) {
    if (CPU_ISSET(core, &allowed)) cores.push_back(core);
  }
  if (argc == 3) cores = {std::atoi(argv[1]), std::atoi(argv[2])};
  if (cores.size() < 2) {
    std::fprintf(stderr, "two cores are needed\n");
    return 1;
  }
  if (!PinCallingThread("near", cores[0])) return 1;
  TickClock::Get();

  Samples line, one_slot, two_slots, wake;
  for (int round = 0; round < kRounds; ++round) {
    MeasureLine(cores[1], &line);
    MeasureHop(1, cores[1], &one_slot);
    MeasureHop(2, cores[1], &two_slots);
    MeasureWake(cores[1], &wake);
  }
  std::printf("%s, cores %d and %d, %d x %d samples of %d round trips each\n", CpuName().c_str(), cores[0], cores[1],
              kRounds, kSamples, kTrips);
  std::printf("%-28s %8s %8s %8s %8s\n", "round trip [ns]", "min", "p50", "p90", "p99");
  Print("cache line", &line, kTrips, 0);
  const double baseline_ns = PercentileNs(&line, 0.5, kTrips);
  Print("header-only hop, 1 slot", &one_slot, kTrips, baseline_ns);
  Print("header-only hop, 2 slots", &two_slots, kTrips, baseline_ns);
  Print("the same, home parked", &wake, 1, 0);
  return 0;
}

}  // namespace
}  // namespace fastdecode

int main(int argc, char** argv) { return fastdecode::Run(argc, argv); }
