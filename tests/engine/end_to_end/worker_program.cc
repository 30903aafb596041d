#include "tests/engine/end_to_end/worker_program.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <thread>
#include <utility>

namespace fastdecode {

namespace {
constexpr int kListenPolls = 6000;
constexpr std::chrono::milliseconds kListenPause(10);
}  // namespace

WorkerProgram::WorkerProgram(const std::string& log_path, std::vector<std::string> arguments) : log_path_(log_path) {
  arguments.insert(arguments.begin(), {FASTDECODE_PROGRAM, "worker"});
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  const int log = open(log_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  EXPECT_GE(log, 0);
  const pid_t parent = getpid();
  pid_ = fork();
  if (pid_ == 0) {
    // Between fork and exec of a process with threads: system calls only.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(126);
    dup2(log, STDERR_FILENO);
    execv(argv[0], argv.data());
    _exit(127);
  }
  EXPECT_GT(pid_, 0);
  close(log);
}

WorkerProgram::~WorkerProgram() {
  Signal(SIGKILL);
  Wait();
}

bool WorkerProgram::WaitUntilListening() {
  for (int i = 0; i < kListenPolls; ++i) {
    if (Messages().find("listening on ") != std::string::npos) return true;
    if (Ended()) return false;
    std::this_thread::sleep_for(kListenPause);
  }
  return false;
}

void WorkerProgram::Signal(int signal) const {
  if (exit_code_ < 0) kill(pid_, signal);
}

bool WorkerProgram::Ended() {
  int status = 0;
  if (exit_code_ < 0 && waitpid(pid_, &status, WNOHANG) == pid_) {
    exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }
  return exit_code_ >= 0;
}

int WorkerProgram::Wait() {
  while (!Ended()) std::this_thread::sleep_for(kListenPause);
  return exit_code_;
}

std::string WorkerProgram::Messages() const {
  std::ifstream in(log_path_, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
}

}  // namespace fastdecode
