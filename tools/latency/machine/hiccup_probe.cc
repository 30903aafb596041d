#include "tools/latency/machine/hiccup_probe.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <functional>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "numa/clock.h"
#include "numa/pinned_thread.h"
#include "tools/latency/machine/interrupt_mark.h"
#include "tools/latency/machine/interruptions.h"

namespace fastdecode {

namespace {

constexpr uint64_t kStartDelayNs = 5'000'000;
// Handlers, with the softirqs behind them, take less.
constexpr uint64_t kInterruptNsMax = 200'000;

uint64_t CountPreemptions() {
  rusage usage = {};
  getrusage(RUSAGE_THREAD, &usage);
  return static_cast<uint64_t>(usage.ru_nivcsw);
}

// One core's thread, and what it has seen.
// Thread: Run() its own; the rest whoever made it, outside Measure().
class Probe {
 public:
  struct Gap {
    uint64_t start, ticks;
    bool marked;  // an interrupt returned meanwhile
    bool preempted;
  };

  Probe(int core, uint64_t threshold_ticks) : core_(core), threshold_(threshold_ticks) {}

  // Measures from `begin` on, which is given once all are ready; then stays, so that its counters can be read.
  void Run(const std::atomic<uint64_t>* begin, uint64_t duration_ticks, bool (*stop)(),
           const std::atomic<bool>* release) {
    tid_.store(gettid(), std::memory_order_relaxed);
    gaps_.resize(kHiccupsMax);  // touched here, on this core's node
    ready_.store(true, std::memory_order_release);
    ready_.notify_all();
    begin->wait(0, std::memory_order_acquire);
    const uint64_t start = begin->load(std::memory_order_acquire);
    while (NowTicks() < start) {
    }
    Measure(duration_ticks, stop);
    done_.store(true, std::memory_order_release);
    done_.notify_all();
    release->wait(false, std::memory_order_acquire);
  }

  void AwaitReady() const { ready_.wait(false, std::memory_order_acquire); }
  void AwaitDone() const { done_.wait(false, std::memory_order_acquire); }
  int core() const { return core_; }
  int tid() const { return tid_.load(std::memory_order_relaxed); }
  void FillIn(uint64_t start_ticks, HiccupCore* out) const;

 private:
  void Measure(uint64_t duration_ticks, bool (*stop)()) {
    uint64_t preemptions = CountPreemptions();
    bool late_mark = false;
    InterruptMark::Set();
    first_ = NowTicks();
    const uint64_t end = first_ + duration_ticks;  // whole, also of a thread that was woken late
    uint64_t last = first_;
    while (last < end && !stop()) {
      const uint64_t now = NowTicks();
      ++turns_;
      if (now - last > threshold_) {
        const bool marked = InterruptMark::Gone();
        const uint64_t then = std::exchange(preemptions, CountPreemptions());
        Note({last, now - last, marked, preemptions != then});
        InterruptMark::Set();
        late_mark = false;
        last = NowTicks();  // the noting is nobody's hiccup
        continue;
      }
      // An interrupt between the reading of the clock and this belongs to the next reading, so the mark may be gone for
      // one turn. If none comes, it was shorter than a hiccup.
      if (InterruptMark::Gone()) {
        if (late_mark) InterruptMark::Set();
        late_mark = !late_mark;
      }
      last = now;
    }
    last_ = last;
    InterruptMark::Clear();
  }

  void Note(const Gap& gap) {
    lost_ += gap.ticks;
    if (count_ < gaps_.size()) gaps_[count_] = gap;
    ++count_;
  }

  const int core_;
  const uint64_t threshold_;
  std::vector<Gap> gaps_;
  uint64_t count_ = 0, lost_ = 0, turns_ = 0, first_ = 0, last_ = 0;
  std::atomic<int> tid_{0};
  std::atomic<bool> ready_{false}, done_{false};
};

void Probe::FillIn(uint64_t start_ticks, HiccupCore* out) const {
  const TickClock& clock = TickClock::Get();
  out->core = core_;
  out->elapsed_ns = clock.ToNs(last_ - first_);
  out->lost_ns = clock.ToNs(lost_);
  const size_t kept = static_cast<size_t>(std::min<uint64_t>(count_, gaps_.size()));
  out->not_kept = count_ - kept;
  const uint64_t quiet_turns = turns_ - std::min(count_, turns_);
  const uint64_t quiet_ns = out->elapsed_ns - std::min(out->lost_ns, out->elapsed_ns);
  out->turn_ns = quiet_turns > 0 ? static_cast<double>(quiet_ns) / static_cast<double>(quiet_turns) : 0;
  out->hiccups.reserve(kept);
  for (size_t i = 0; i < kept; ++i) {
    const Gap& gap = gaps_[i];
    Hiccup hiccup;
    hiccup.start_ns = clock.ToNs(gap.start - std::min(start_ticks, gap.start));
    hiccup.length_ns = clock.ToNs(gap.ticks);
    hiccup.cause = gap.preempted ? HiccupCause::kThreads : gap.marked ? HiccupCause::kInterrupt : HiccupCause::kBelow;
    out->hiccups.push_back(hiccup);
  }
}

// What the marks alone do not tell.
void RefineCauses(bool hypervisor, HiccupCore* core) {
  const bool marks_go = std::any_of(core->hiccups.begin(), core->hiccups.end(),
                                    [](const Hiccup& hiccup) { return hiccup.cause == HiccupCause::kInterrupt; });
  const bool interrupted = Total(core->counters.interrupts) > core->preemptions;
  for (Hiccup& hiccup : core->hiccups) {
    if (hiccup.cause == HiccupCause::kBelow && interrupted && !marks_go) hiccup.cause = HiccupCause::kUnknown;
    // After a pause of the hypervisor's the timer's interrupt is due, so that it leaves its mark too.
    const bool is_long = hiccup.length_ns > kInterruptNsMax;
    if (hiccup.cause == HiccupCause::kInterrupt && hypervisor && is_long) hiccup.cause = HiccupCause::kEither;
  }
}

std::optional<uint64_t> ReadMigrations(const SysRoot& root, int tid) {
  const std::optional<std::string> text =
      root.Field(absl::StrCat("/proc/self/task/", tid, "/sched"), "se.nr_migrations");
  uint64_t count;
  if (!text || !absl::SimpleAtoi(*text, &count)) return std::nullopt;
  return count;
}

// What the kernel counts, before or after.
struct Counts {
  MachineSnapshot machine;
  std::vector<std::optional<uint64_t>> migrations;  // [probe]
  std::vector<absl::StatusOr<uint64_t>> smis;       // [probe]
};

Counts ReadCounts(const std::vector<std::unique_ptr<Probe>>& probes) {
  const SysRoot root;
  Counts counts;
  for (const auto& probe : probes) {
    counts.migrations.push_back(ReadMigrations(root, probe->tid()));
    counts.smis.push_back(ReadSmiCount(root, probe->core()));
  }
  counts.machine = TakeSnapshot(root, 0);
  return counts;
}

const ThreadCounters* FindThread(const MachineSnapshot& machine, int tid) {
  for (const ThreadCounters& thread : machine.threads) {
    if (thread.tid == tid) return &thread;
  }
  return nullptr;
}

void FillInCounts(const Counts& before, const Counts& after, size_t probe, int tid, HiccupCore* out) {
  const MachineCounters added = Since(before.machine.cores, after.machine.cores);
  const auto counters = added.find(out->core);
  if (counters != added.end()) out->counters = counters->second;
  const ThreadCounters* first = FindThread(before.machine, tid);
  const ThreadCounters* last = FindThread(after.machine, tid);
  if (first != nullptr && last != nullptr) {
    out->timed = last->timed;
    out->waited_ns = last->waited_ns - std::min(first->waited_ns, last->waited_ns);
    out->preemptions = last->preemptions - std::min(first->preemptions, last->preemptions);
  }
  if (before.migrations[probe] && after.migrations[probe]) {
    out->migrations = *after.migrations[probe] - std::min(*before.migrations[probe], *after.migrations[probe]);
  }
  if (before.smis[probe].ok() && after.smis[probe].ok()) {
    out->smis = *after.smis[probe] - *before.smis[probe];
  } else {
    out->smi_note = std::string(after.smis[probe].status().message());
  }
}

}  // namespace

const char* HiccupCauseName(HiccupCause cause) {
  switch (cause) {
    case HiccupCause::kThreads:
      return "other threads";
    case HiccupCause::kInterrupt:
      return "interrupt";
    case HiccupCause::kEither:
      return "interrupt or hypervisor";
    case HiccupCause::kBelow:
      return "hypervisor or firmware";
    case HiccupCause::kUnknown:
      break;
  }
  return "not known";
}

double HiccupCore::WaitNs(double share) const {
  // Who comes in the middle of a hiccup waits for its end: those that wait for longer than x are the time within
  // hiccups, x from their ends.
  const double allowed_ns = (1 - share) * static_cast<double>(elapsed_ns);
  std::vector<uint64_t> lengths;
  for (const Hiccup& hiccup : hiccups) lengths.push_back(hiccup.length_ns);
  std::sort(lengths.begin(), lengths.end(), std::greater<>());
  // With the longest n above x, sum - n x is beyond it.
  double sum = 0;
  for (size_t n = 0; n < lengths.size(); ++n) {
    const double length = static_cast<double>(lengths[n]);
    if (sum - static_cast<double>(n) * length >= allowed_ns) return (sum - allowed_ns) / static_cast<double>(n);
    sum += length;
  }
  return sum > allowed_ns ? (sum - allowed_ns) / static_cast<double>(lengths.size()) : 0;
}

std::vector<HiccupCore> MeasureHiccups(const HiccupOptions& options, bool (*stop)()) {
  const TickClock& clock = TickClock::Get();
  std::atomic<uint64_t> begin{0};
  std::atomic<bool> release{false};
  std::vector<std::unique_ptr<Probe>> probes;
  std::vector<PinnedThread> threads;
  const uint64_t duration = clock.ToTicks(options.duration_ns);
  for (const int core : options.cores) {
    probes.push_back(std::make_unique<Probe>(core, clock.ToTicks(options.threshold_ns)));
    threads.emplace_back("fd-hiccup", core,
                         [&, probe = probes.back().get()] { probe->Run(&begin, duration, stop, &release); });
  }
  for (const auto& probe : probes) probe->AwaitReady();
  const Counts before = ReadCounts(probes);
  const uint64_t start = NowTicks() + clock.ToTicks(kStartDelayNs);
  begin.store(start, std::memory_order_release);
  begin.notify_all();
  for (const auto& probe : probes) probe->AwaitDone();
  const Counts after = ReadCounts(probes);
  release.store(true, std::memory_order_release);
  release.notify_all();
  std::vector<HiccupCore> cores(probes.size());
  for (size_t i = 0; i < probes.size(); ++i) {
    threads[i].Join();
    probes[i]->FillIn(start, &cores[i]);
    cores[i].pinned = threads[i].pinned();
    FillInCounts(before, after, i, probes[i]->tid(), &cores[i]);
    RefineCauses(options.hypervisor, &cores[i]);
  }
  return cores;
}

absl::StatusOr<uint64_t> ReadSmiCount(const SysRoot& root, int core) {
  constexpr off_t kSmiCountRegister = 0x34;
  const std::string vendor = root.Field("/proc/cpuinfo", "vendor_id").value_or("");
  if (vendor != "GenuineIntel") {
    return absl::NotFoundError(
        absl::StrCat("no such counter on ", vendor == "AuthenticAMD" ? "AMD" : "this processor"));
  }
  const std::string path = absl::StrCat("/dev/cpu/", core, "/msr");
  const int fd = open((root.prefix() + path).c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 && (errno == EACCES || errno == EPERM)) {
    return absl::PermissionDeniedError(absl::StrCat("no permission to read ", path));
  }
  if (fd < 0)
    return absl::NotFoundError(absl::StrCat(path, ": ", std::generic_category().message(errno), " (modprobe msr)"));
  uint64_t count = 0;
  const ssize_t bytes = pread(fd, &count, sizeof(count), kSmiCountRegister);
  const int error = errno;
  close(fd);
  if (bytes == sizeof(count)) return count & 0xffff'ffff;
  return absl::NotFoundError(
      absl::StrCat(path, ": ", bytes < 0 ? std::generic_category().message(error) : "no counter of SMIs"));
}

}  // namespace fastdecode
