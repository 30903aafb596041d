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

#include "numa/check.h"

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

// A CPU set with room for so many cores; any number that a kernel may have. Owns: its memory.
class CpuSet {
 public:
  explicit CpuSet(int cores) : bytes_(CPU_ALLOC_SIZE(cores)), set_(CPU_ALLOC(cores)) {
    FD_CHECK(set_ != nullptr, "out of memory");
    CPU_ZERO_S(bytes_, set_);
  }
  ~CpuSet() { CPU_FREE(set_); }
  CpuSet(const CpuSet&) = delete;
  CpuSet& operator=(const CpuSet&) = delete;

  size_t bytes() const { return bytes_; }
  cpu_set_t* get() { return set_; }

 private:
  size_t bytes_;
  cpu_set_t* set_;
};

// False if the kernel refuses these cores.
bool StartOn(CpuSet* cores, StartArgs* args, pthread_t* thread) {
  pthread_attr_t attributes;
  FD_CHECK(pthread_attr_init(&attributes) == 0, "cannot make thread attributes");
  const bool started = pthread_attr_setaffinity_np(&attributes, cores->bytes(), cores->get()) == 0 &&
                       pthread_create(thread, &attributes, &RunBody, args) == 0;
  pthread_attr_destroy(&attributes);
  return started;
}

// Starts a thread whose first instruction runs on `core`.
bool StartOnCore(int core, StartArgs* args, pthread_t* thread) {
  CpuSet cores(core + 1);
  CPU_SET_S(core, cores.bytes(), cores.get());
  args->pinned = true;
  const bool started = StartOn(&cores, args, thread);
  if (!started) args->pinned = false;
  return started;
}

// Starts a thread where the main thread may run, for one that is pinned and would hand that on.
bool StartOnAny(StartArgs* args, pthread_t* thread) {
  for (int most = CPU_SETSIZE; most <= 1 << 20; most *= 2) {
    CpuSet cores(most);
    if (sched_getaffinity(getpid(), cores.bytes(), cores.get()) == 0) return StartOn(&cores, args, thread);
    if (errno != EINVAL) break;  // else there are more cores
  }
  return false;
}

}  // namespace

PinnedThread::PinnedThread(std::string name, int core, std::function<void()> body) {
  name.resize(std::min(name.size(), kThreadNameCharsMax));
  auto args = std::make_unique<StartArgs>(StartArgs{std::move(name), std::move(body), false});
  pinned_ = core >= 0 && StartOnCore(core, args.get(), &thread_);
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
    : thread_(other.thread_), joinable_(std::exchange(other.joinable_, false)), pinned_(other.pinned_) {}

PinnedThread& PinnedThread::operator=(PinnedThread&& other) noexcept {
  if (this == &other) return *this;
  Join();
  thread_ = other.thread_;
  joinable_ = std::exchange(other.joinable_, false);
  pinned_ = other.pinned_;
  return *this;
}

void PinnedThread::Join() {
  if (!std::exchange(joinable_, false)) return;
  FD_CHECK(pthread_join(thread_, nullptr) == 0, "cannot join a thread");
}

bool PinCallingThread(const std::string& name, int core) {
  pthread_setname_np(pthread_self(), name.substr(0, kThreadNameCharsMax).c_str());
  if (core < 0) return false;
  CpuSet cores(core + 1);
  CPU_SET_S(core, cores.bytes(), cores.get());
  const bool moved = sched_setaffinity(0, cores.bytes(), cores.get()) == 0;
  calling_thread_is_pinned |= moved;
  return moved;
}

}  // namespace fastdecode
