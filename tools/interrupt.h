#ifndef FASTDECODE_TOOLS_INTERRUPT_H_
#define FASTDECODE_TOOLS_INTERRUPT_H_

#include <array>
#include <csignal>
#include <exception>

namespace fastdecode {

// What SIGINT (Ctrl-C), SIGTERM and SIGHUP (the terminal has gone) do. One that the process was told to ignore (nohup)
// stays ignored.
inline constexpr std::array kEndingSignals = {SIGINT, SIGTERM, SIGHUP};

// What main does first: from now on they end the program at once, with "fastdecode: interrupted" and the exit code
// 128 + signal, unless somebody catches them.
void EndAtSignals();

// What the program is doing, for that message: "interrupted while the model was being loaded".
// Thread: one, and one object at a time.
class Doing {
 public:
  // `what` must outlive the object.
  explicit Doing(const char* what);
  ~Doing();
  Doing(const Doing&) = delete;
  Doing& operator=(const Doing&) = delete;
};

// While one exists, the first of these signals is only noted, for the command to end in good order. Those that come
// within a second of it are taken for the same one (`timeout` sends SIGTERM to its child, and then to the whole group;
// a logout sends several), also once the object is gone. A SIGINT or SIGTERM that comes later ends the program at once.
// Thread: one, and one object at a time.
class InterruptGuard {
 public:
  // `said`: what the first signal says at once, behind "fastdecode: ", as there may be much to wait for; null: nothing.
  // `on_first`: called by the handler of the first, which may do little; null: nothing. Both outlive the object.
  explicit InterruptGuard(const char* said = nullptr, void (*on_first)() = nullptr);
  ~InterruptGuard();
  InterruptGuard(const InterruptGuard&) = delete;
  InterruptGuard& operator=(const InterruptGuard&) = delete;

  // The signal that came; 0: none.
  static int Signal();
  // Ends the program as a second one would, saying why. REQUIRES: one came.
  [[noreturn]] static void EndNow(const char* why);

 private:
  std::array<struct sigaction, kEndingSignals.size()> old_;
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

// Throws Interrupted if a signal came.
void ThrowIfInterrupted();

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_INTERRUPT_H_
