#ifndef FASTDECODE_TOOLS_EXIT_CODE_H_
#define FASTDECODE_TOOLS_EXIT_CODE_H_

#include <exception>

namespace fastdecode {

// Thrown by a command that did all it was asked to, and whose answer is a verdict: the program ends with this code and
// says no more.
class ExitCode : public std::exception {
 public:
  // Of commands that judge: 0 is "yes", 1 that something went wrong.
  static constexpr int kVerdictNo = 2;

  explicit ExitCode(int code) : code_(code) {}
  int code() const { return code_; }
  const char* what() const noexcept override { return "a verdict"; }

 private:
  int code_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_EXIT_CODE_H_
