#include "tools/process.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string>

namespace fastdecode {
namespace {

// Ends by a SIGBUS as the kernel would send it.
void EndBy(int code) {
  PrepareProcess();
  siginfo_t info = {};
  info.si_signo = SIGBUS;
  info.si_code = code;
  syscall(SYS_rt_sigqueueinfo, getpid(), SIGBUS, &info);
  std::_Exit(0);
}

void ReadBehindTheEnd() {
  PrepareProcess();
  const int file = memfd_create("model", 0);
  if (ftruncate(file, 1) != 0) std::_Exit(0);
  const auto* const byte = static_cast<const volatile char*>(mmap(nullptr, 1, PROT_READ, MAP_SHARED, file, 0));
  if (ftruncate(file, 0) != 0) std::_Exit(0);
  std::_Exit(*byte);
}

const auto kFails = testing::ExitedWithCode(1);

TEST(ProcessDeathTest, MappedMemoryThatIsGone) {
  EXPECT_EXIT(
      ReadBehindTheEnd(), kFails,
      "^fastdecode: error: mapped memory is gone: a file, such as a model's safetensors, was truncated while it "
      "was read, or no reserved huge page was left\n$");
}

TEST(ProcessDeathTest, MemoryThatFails) {
  const std::string message =
      "^fastdecode: error: memory failed: a hardware error, see the kernel's log \\(dmesg\\)\n$";
  EXPECT_EXIT(EndBy(BUS_MCEERR_AR), kFails, message);
  EXPECT_EXIT(EndBy(BUS_MCEERR_AO), kFails, message);
}

TEST(ProcessDeathTest, AnyOtherSigbus) {
  EXPECT_EXIT(EndBy(SI_USER), kFails, "^fastdecode: error: ended by SIGBUS\n$");
  EXPECT_EXIT(EndBy(BUS_ADRALN), kFails, "^fastdecode: error: ended by SIGBUS\n$");
}

}  // namespace
}  // namespace fastdecode
