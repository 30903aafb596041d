#include "tools/interrupt.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <ctime>

namespace fastdecode {

namespace {

constexpr int64_t kSameSignalNs = 1'000'000'000;

// What the guard that there is, or the last one, has noted.
volatile std::sig_atomic_t noted_signal = 0;
std::atomic<int64_t> noted_ns = 0;  // when it came; 0: none came
std::atomic<const char*> said_at_first = nullptr;
std::atomic<void (*)()> called_at_first = nullptr;
static_assert(std::atomic<int64_t>::is_always_lock_free && std::atomic<const char*>::is_always_lock_free);

std::atomic<const char*> doing = nullptr;

int64_t MonotonicNs() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// A line on stderr, put together by what signal handlers may call. A reader that does not read gets none of it, for it
// may be what the program is ended for.
class SafeLine {
 public:
  SafeLine& Add(const char* text) {
    const size_t bytes = std::min(std::strlen(text), sizeof(text_) - bytes_);
    std::memcpy(text_ + bytes_, text, bytes);
    bytes_ += bytes;
    return *this;
  }
  void Write() const {
    pollfd writable = {STDERR_FILENO, POLLOUT, 0};
    if (poll(&writable, 1, 0) != 1 || (writable.revents & POLLOUT) == 0) return;
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text_, bytes_);
  }

 private:
  char text_[256];
  size_t bytes_ = 0;
};

[[noreturn]] void EndAtOnce(int signal) {
  const char* const what = doing.load();
  SafeLine line;
  line.Add("fastdecode: interrupted");
  if (what != nullptr) line.Add(" while ").Add(what);
  line.Add("\n").Write();
  _exit(128 + signal);
}

void Note(int signal) {
  const int error = errno;
  const int64_t now_ns = MonotonicNs();
  int64_t first_ns = 0;
  if (noted_ns.compare_exchange_strong(first_ns, now_ns)) {
    noted_signal = signal;
    if (const char* said = said_at_first.load(); said != nullptr)
      SafeLine().Add("fastdecode: ").Add(said).Add("\n").Write();
    if (void (*call)() = called_at_first.load(); call != nullptr) call();
  } else if (signal != SIGHUP && now_ns - first_ns >= kSameSignalNs) {
    EndAtOnce(signal);
  }
  errno = error;
}

// Leaves alone what is ignored.
void Handle(int signal, void (*handler)(int), struct sigaction* old) {
  sigaction(signal, nullptr, old);
  if (old->sa_handler == SIG_IGN) return;
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  for (const int other : kEndingSignals) sigaddset(&action.sa_mask, other);
  sigaction(signal, &action, nullptr);
}

}  // namespace

void EndAtSignals() {
  struct sigaction old;
  for (const int signal : kEndingSignals) Handle(signal, &EndAtOnce, &old);
}

Doing::Doing(const char* what) { doing = what; }

Doing::~Doing() { doing = nullptr; }

InterruptGuard::InterruptGuard(const char* said, void (*on_first)()) {
  noted_signal = 0;
  noted_ns = 0;
  said_at_first = said;
  called_at_first = on_first;
  for (size_t i = 0; i < kEndingSignals.size(); ++i) Handle(kEndingSignals[i], &Note, &old_[i]);
}

// What comes within a second of a signal belongs to it for as long as the program takes to end, too.
InterruptGuard::~InterruptGuard() {
  if (noted_signal != 0) return;
  for (size_t i = 0; i < kEndingSignals.size(); ++i) sigaction(kEndingSignals[i], &old_[i], nullptr);
}

int InterruptGuard::Signal() { return noted_signal; }

void InterruptGuard::EndNow(const char* why) {
  SafeLine().Add("fastdecode: interrupted: ").Add(why).Add("\n").Write();
  _exit(128 + noted_signal);
}

void ThrowIfInterrupted() {
  if (const int signal = InterruptGuard::Signal(); signal != 0) throw Interrupted(signal);
}

}  // namespace fastdecode
