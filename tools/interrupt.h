#ifndef FASTDECODE_TOOLS_INTERRUPT_H_
#define FASTDECODE_TOOLS_INTERRUPT_H_

#include <array>
#include <csignal>
#include <exception>

namespace fastdecode {

// While one exists, the first Ctrl-C (SIGINT), SIGTERM or SIGHUP (the terminal has gone) is only noted, for the command
// to end in good order. A second one ends the process as ever. One that the process was told to ignore stays ignored.
// Thread: one, and one object at a time.
class InterruptGuard {
 public:
  InterruptGuard();
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  // The signal that came; 0: none.
  static int Signal();

 private:
  static constexpr std::array kSignals = {SIGINT, SIGTERM, SIGHUP};

  std::array<struct sigaction, kSignals.size()> old_;
};

// Thrown by a command that has ended in good order after a signal. The program's exit code is 128 + signal, as a shell
// would say it.
class Interrupted : public std::exception {
 public:
  explicit Interrupted(int signal) : signal_(signal) {}
  int signal() const { return signal_; }
  const char* what() const noexcept override { return "interrupted"; }

 private:
  int signal_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_INTERRUPT_H_
