#include "numa/pinned_thread.h"

#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "numa/check.h"

namespace fastdecode {

namespace {

constexpr size_t kThreadNameCharsMax = 15;

struct StartArgs {
  std::string name;
  std::function<void()> body;
};

// All but those that tell a thread of what itself did, and a profiler's.
void BlockSignals() {
  sigset_t blocked;
  sigfillset(&blocked);
  for (const int own : {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGPIPE, SIGPROF, SIGSEGV, SIGSYS, SIGTRAP})
    sigdelset(&blocked, own);
  FD_CHECK(pthread_sigmask(SIG_BLOCK, &blocked, nullptr) == 0, "cannot block signals");
}

void* RunBody(void* raw_args) {
  BlockSignals();
  const std::unique_ptr<StartArgs> args(static_cast<StartArgs*>(raw_args));
  pthread_setname_np(pthread_self(), args->name.c_str());
  args->body();
  return nullptr;
}

// A CPU set with one core; any core number that a kernel may have.
class OneCoreSet {
 public:
  explicit OneCoreSet(int core) : bytes_(CPU_ALLOC_SIZE(core + 1)), set_(CPU_ALLOC(core + 1)) {
    FD_CHECK(set_ != nullptr, "out of memory");
    CPU_ZERO_S(bytes_, set_);
    CPU_SET_S(core, bytes_, set_);
  }
  ~OneCoreSet() { CPU_FREE(set_); }
  OneCoreSet(const OneCoreSet&) = delete;
  OneCoreSet& operator=(const OneCoreSet&) = delete;

  size_t bytes() const { return bytes_; }
  const cpu_set_t* get() const { return set_; }

 private:
  size_t bytes_;
  cpu_set_t* set_;
};

// Starts a thread whose first instruction runs on `core`; false if the kernel refuses that core.
bool StartOn(int core, StartArgs* args, pthread_t* thread) {
  const OneCoreSet cores(core);
  pthread_attr_t attributes;
  FD_CHECK(pthread_attr_init(&attributes) == 0, "cannot make thread attributes");
  const bool started = pthread_attr_setaffinity_np(&attributes, cores.bytes(), cores.get()) == 0 &&
                       pthread_create(thread, &attributes, &RunBody, args) == 0;
  pthread_attr_destroy(&attributes);
  return started;
}

}  // namespace

PinnedThread::PinnedThread(std::string name, int core, std::function<void()> body) {
  name.resize(std::min(name.size(), kThreadNameCharsMax));
  auto args = std::make_unique<StartArgs>(StartArgs{std::move(name), std::move(body)});
  pinned_ = core >= 0 && StartOn(core, args.get(), &thread_);
  if (!pinned_) {
    FD_CHECK(pthread_create(&thread_, nullptr, &RunBody, args.get()) == 0, "cannot create a thread");
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
  const OneCoreSet cores(core);
  return sched_setaffinity(0, cores.bytes(), cores.get()) == 0;
}

}  // namespace fastdecode
