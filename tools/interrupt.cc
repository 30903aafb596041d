#include "tools/interrupt.h"

namespace fastdecode {

namespace {

volatile std::sig_atomic_t noted_signal = 0;

void Note(int signal) { noted_signal = signal; }

void HandleOnce(int signal, struct sigaction* old) {
  sigaction(signal, nullptr, old);
  if (old->sa_handler == SIG_IGN) return;
  struct sigaction action = {};
  action.sa_handler = &Note;
  // The handler goes with the first signal: the next one has its usual effect.
  action.sa_flags = static_cast<int>(SA_RESETHAND | SA_RESTART);
  sigaction(signal, &action, nullptr);
}

}  // namespace

InterruptGuard::InterruptGuard() {
  noted_signal = 0;
  for (size_t i = 0; i < kSignals.size(); ++i) HandleOnce(kSignals[i], &old_[i]);
}

InterruptGuard::~InterruptGuard() {
  for (size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &old_[i], nullptr);
}

int InterruptGuard::Signal() { return noted_signal; }

}  // namespace fastdecode
