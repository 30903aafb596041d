#ifndef FASTDECODE_TESTS_THREAD_LIMIT_H_
#define FASTDECODE_TESTS_THREAD_LIMIT_H_

namespace fastdecode {

// While it lives, only so many more threads can be started in this program; then the kernel seems to have none left,
// as at the limit of a user or a cgroup. Who links thread_limit.cc has pthread_create replaced for the whole program.
// Thread: one at a time.
class ThreadLimit {
 public:
  explicit ThreadLimit(int more);
  ~ThreadLimit();
  ThreadLimit(const ThreadLimit&) = delete;
  ThreadLimit& operator=(const ThreadLimit&) = delete;

  // Whether a thread was refused.
  bool reached() const;
};

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_THREAD_LIMIT_H_
