#include "numa/pinned_thread.h"

#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include "numa/check.h"
#include "numa/cpu_affinity.h"

namespace fastdecode {

namespace {

constexpr size_t kThreadNameCharsMax = 15;

struct StartArgs {
  std::string name;
  std::function<void()> body;
  bool pinned = false;
};

thread_local bool calling_thread_is_pinned = false;  // by what is here

// All but those that tell a thread of what itself did, and a profiler's.
void BlockSignals() {
  sigset_t blocked;
  sigfillset(&blocked);
  for (const int own : {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGPIPE, SIGPROF, SIGSEGV, SIGSYS, SIGTRAP})
    sigdelset(&blocked, own);
  FD_CHECK(pthread_sigmask(SIG_BLOCK, &blocked, nullptr) == 0, "cannot block signals");
}

// The first version of struct sched_attr of the kernel, which glibc 2.36 does not declare.
struct SchedulingAttributes {
  uint32_t size, policy;
  uint64_t flags;
  int32_t nice;
  uint32_t priority;
  uint64_t runtime_ns, deadline_ns, period_ns;
};

// Asks the scheduler for the shortest time slice that it gives. Since Linux 6.18 a thread that calls sched_yield loses
// the rest of its slice: with a slice of 3 ms, threads that poll and yield beside a busy process nearly stand still.
// Kernels before 6.12 ignore the request, and the thread runs on if the kernel refuses it.
void RequestShortTimeSlice() {
  SchedulingAttributes attributes = {};
  if (syscall(SYS_sched_getattr, 0, &attributes, sizeof(attributes), 0) != 0) return;
  if (attributes.policy != SCHED_OTHER && attributes.policy != SCHED_BATCH) return;  // others have no such slice
  attributes.runtime_ns = 100'000;
  syscall(SYS_sched_setattr, 0, &attributes, 0);
}

void* RunBody(void* raw_args) {
  BlockSignals();
  RequestShortTimeSlice();
  const std::unique_ptr<StartArgs> args(static_cast<StartArgs*>(raw_args));
  pthread_setname_np(pthread_self(), args->name.c_str());
  calling_thread_is_pinned = args->pinned;
  args->body();
  return nullptr;
}

// 0, or the errno with which the kernel refuses these cores, or a thread at all.
int StartOn(CpuSet* cores, StartArgs* args, pthread_t* thread) {
  pthread_attr_t attributes;
  FD_CHECK(pthread_attr_init(&attributes) == 0, "cannot make thread attributes");
  int error = pthread_attr_setaffinity_np(&attributes, cores->bytes(), cores->get());
  if (error == 0) error = pthread_create(thread, &attributes, &RunBody, args);
  pthread_attr_destroy(&attributes);
  return error;
}

// Starts a thread whose first instruction runs on `core`. 0 or an errno.
int StartOnCore(int core, StartArgs* args, pthread_t* thread) {
  CpuSet cores(std::vector<int>{core});
  args->pinned = true;
  const int error = StartOn(&cores, args, thread);
  if (error != 0) args->pinned = false;  // else they are the thread's, which may have ended
  return error;
}

// Starts a thread where the main thread may run, for one that is pinned and would hand that on.
bool StartOnAny(StartArgs* args, pthread_t* thread) {
  const std::vector<int> of_main = CpuAffinity::OfMainThread().cores;
  if (of_main.empty()) return false;
  CpuSet cores(of_main);
  return StartOn(&cores, args, thread) == 0;
}

}  // namespace

PinnedThread::PinnedThread(std::string name, int core, std::function<void()> body) {
  name.resize(std::min(name.size(), kThreadNameCharsMax));
  auto args = std::make_unique<StartArgs>(StartArgs{std::move(name), std::move(body), false});
  if (core >= 0) pin_error_ = StartOnCore(core, args.get(), &thread_);
  pinned_ = core >= 0 && pin_error_ == 0;
  if (!pinned_ && !(calling_thread_is_pinned && StartOnAny(args.get(), &thread_))) {
    const int error = pthread_create(&thread_, nullptr, &RunBody, args.get());
    if (error != 0) {
      throw std::system_error(error, std::generic_category(), "cannot start a thread (limits: ulimit -u, pids.max)");
    }
  }
  args.release();  // the thread owns them
  joinable_ = true;
}

PinnedThread::PinnedThread(PinnedThread&& other) noexcept
    : thread_(other.thread_), joinable_(std::exchange(other.joinable_, false)), pinned_(other.pinned_),
      pin_error_(other.pin_error_) {}

PinnedThread& PinnedThread::operator=(PinnedThread&& other) noexcept {
  if (this == &other) return *this;
  Join();
  thread_ = other.thread_;
  joinable_ = std::exchange(other.joinable_, false);
  pinned_ = other.pinned_;
  pin_error_ = other.pin_error_;
  return *this;
}

void PinnedThread::Join() {
  if (!std::exchange(joinable_, false)) return;
  FD_CHECK(pthread_join(thread_, nullptr) == 0, "cannot join a thread");
}

bool PinCallingThread(const std::string& name, int core) {
  pthread_setname_np(pthread_self(), name.substr(0, kThreadNameCharsMax).c_str());
  if (core < 0) return false;
  CpuSet cores(std::vector<int>{core});
  const bool moved = sched_setaffinity(0, cores.bytes(), cores.get()) == 0;
  calling_thread_is_pinned |= moved;
  return moved;
}

}  // namespace fastdecode
