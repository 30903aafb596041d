#ifndef FASTDECODE_NUMA_PINNED_THREAD_H_
#define FASTDECODE_NUMA_PINNED_THREAD_H_

#include <pthread.h>

#include <functional>
#include <string>

namespace fastdecode {

// A thread that runs `body` on one core from its first instruction, so that what it touches first lies on that node.
// Signals that are sent to the process go to its other threads: no handler takes a hot thread's time, or what it holds.
// Its time slice is the shortest that the kernel gives (0.1 ms), so that a poll that yields gives little away.
// Owns: the thread; destroying or assigning over a running one joins it first (the body must have been told to end).
// Thread: one owner.
class PinnedThread {
 public:
  PinnedThread() = default;

  // `name`: what ps, top and gdb show, cut to the kernel's 15 characters. `core`: OS number of a PU, -1 for not pinned.
  // A core that the process may not use leaves the thread unpinned, see pinned(): it then runs where the calling one may,
  // or, if that one was pinned here, where the process's main thread may. Throws std::system_error if the kernel has no
  // threads left.
  PinnedThread(std::string name, int core, std::function<void()> body);

  PinnedThread(PinnedThread&& other) noexcept;
  PinnedThread& operator=(PinnedThread&& other) noexcept;
  ~PinnedThread() { Join(); }

  // Waits for the body to return. Nothing to do if never started or already joined.
  void Join();

  bool joinable() const { return joinable_; }
  // Whether the core asked for was obtained.
  bool pinned() const { return pinned_; }
  // Why not, an errno of sched_setaffinity: EPERM or ENOSYS where a filter of the kernel refuses the call, EINVAL where
  // the process may not use the core. 0: it is pinned, or nobody asked.
  int pin_error() const { return pin_error_; }

 private:
  pthread_t thread_ = {};
  bool joinable_ = false;
  bool pinned_ = false;
  int pin_error_ = 0;
};

// Moves the calling thread to `core` and names it. False if the kernel refuses the core; the name is set anyway.
bool PinCallingThread(const std::string& name, int core);

}  // namespace fastdecode

#endif  // FASTDECODE_NUMA_PINNED_THREAD_H_
