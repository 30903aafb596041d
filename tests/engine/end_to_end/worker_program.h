#ifndef FASTDECODE_TESTS_ENGINE_END_TO_END_WORKER_PROGRAM_H_
#define FASTDECODE_TESTS_ENGINE_END_TO_END_WORKER_PROGRAM_H_

#include <sys/types.h>

#include <string>
#include <vector>

namespace fastdecode {

// `fastdecode worker`, the built program, as a process of its own.
// Owns: the process, killed at the end (and by the kernel, should the test die first).
class WorkerProgram {
 public:
  // Its messages go to the file `log_path`. `arguments` follow "worker".
  WorkerProgram(const std::string& log_path, std::vector<std::string> arguments);
  WorkerProgram(const WorkerProgram&) = delete;
  WorkerProgram& operator=(const WorkerProgram&) = delete;
  ~WorkerProgram();

  // Whether it listens; false if it ends instead, or takes more than a minute.
  bool WaitUntilListening();
  void Signal(int signal) const;
  // The exit code, or 128 + the signal that ended it. Waits for the end.
  int Wait();
  // What it has said so far.
  std::string Messages() const;

 private:
  bool Ended();

  const std::string log_path_;
  pid_t pid_ = -1;
  int exit_code_ = -1;  // -1: runs
};

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_ENGINE_END_TO_END_WORKER_PROGRAM_H_
