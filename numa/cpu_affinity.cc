#include "numa/cpu_affinity.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "numa/check.h"

namespace fastdecode {

namespace {

constexpr int kCoresMax = 1 << 20;  // of a kernel

// "0-3,8" as /proc writes it.
std::vector<int> ParseCpuList(absl::string_view text) {
  std::vector<int> cores;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> ends = absl::StrSplit(part, absl::MaxSplits('-', 1));
    int first, last;
    if (!absl::SimpleAtoi(ends.front(), &first) || !absl::SimpleAtoi(ends.back(), &last)) continue;
    for (int core = first; core <= std::min(last, kCoresMax); ++core) cores.push_back(core);
  }
  return cores;
}

// What a status file of /proc says; empty: nothing.
std::vector<int> ReadStatus(const char* path) {
  std::ifstream status(path);
  for (std::string line; std::getline(status, line);) {
    absl::string_view list = line;
    if (absl::ConsumePrefix(&list, "Cpus_allowed_list:")) return ParseCpuList(absl::StripAsciiWhitespace(list));
  }
  return {};
}

CpuAffinity ReadAffinity(pid_t thread, const char* status) {
  CpuAffinity affinity;
  for (int most = CPU_SETSIZE; most <= kCoresMax; most *= 2) {
    CpuSet cores(most);
    if (sched_getaffinity(thread, cores.bytes(), cores.get()) == 0) {
      for (int core = 0; core < most; ++core) {
        if (CPU_ISSET_S(static_cast<size_t>(core), cores.bytes(), cores.get())) affinity.cores.push_back(core);
      }
      return affinity;
    }
    affinity.refusal = errno;
    if (errno != EINVAL) break;  // else there are more cores
  }
  affinity.cores = ReadStatus(status);
  return affinity;
}

}  // namespace

CpuSet::CpuSet(int cores) : bytes_(CPU_ALLOC_SIZE(cores)), set_(CPU_ALLOC(cores)) {
  FD_CHECK(set_ != nullptr, "out of memory");
  CPU_ZERO_S(bytes_, set_);
}

CpuSet::CpuSet(const std::vector<int>& cores) : CpuSet(*std::max_element(cores.begin(), cores.end()) + 1) {
  for (const int core : cores) CPU_SET_S(static_cast<size_t>(core), bytes_, set_);
}

CpuAffinity CpuAffinity::OfThisThread() { return ReadAffinity(0, "/proc/thread-self/status"); }

CpuAffinity CpuAffinity::OfMainThread() { return ReadAffinity(getpid(), "/proc/self/status"); }

}  // namespace fastdecode
