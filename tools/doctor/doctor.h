#ifndef FASTDECODE_TOOLS_DOCTOR_DOCTOR_H_
#define FASTDECODE_TOOLS_DOCTOR_DOCTOR_H_

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "kernels/isa.h"
#include "numa/topology.h"
#include "tools/doctor/sys_root.h"

namespace fastdecode {

enum class CheckStatus {
  kOk,
  kUnknown,  // could not be read or tested from here; the advice says how to find out
  kWarning,  // works, but slower or less surely than it could
  kError,    // RDMA cannot work
};

// "ok", "unknown", "warning", "error".
const char* StatusName(CheckStatus status);

// One thing that was looked at.
struct Check {
  std::string group;  // "CPU", "memory", "fabric", "GPU"
  std::string name;   // what was looked at: "governor", "mlx5_0 port 1 MTU"
  CheckStatus status = CheckStatus::kOk;
  std::string found;
  std::string advice;  // what to do; "" if ok
};

// The checks of a run, in order.
class CheckList {
 public:
  void BeginGroup(std::string group) { group_ = std::move(group); }
  void Ok(const std::string& name, const std::string& found) { Add(name, CheckStatus::kOk, found, ""); }
  void Unknown(const std::string& name, const std::string& found, const std::string& advice) {
    Add(name, CheckStatus::kUnknown, found, advice);
  }
  void Warning(const std::string& name, const std::string& found, const std::string& advice) {
    Add(name, CheckStatus::kWarning, found, advice);
  }
  void Error(const std::string& name, const std::string& found, const std::string& advice) {
    Add(name, CheckStatus::kError, found, advice);
  }
  void Add(const std::string& name, CheckStatus status, const std::string& found, const std::string& advice) {
    checks_.push_back({group_, name, status, found, status == CheckStatus::kOk ? std::string() : advice});
  }

  const std::vector<Check>& checks() const { return checks_; }

 private:
  std::string group_;
  std::vector<Check> checks_;
};

// The host that is looked at.
struct DoctorHost {
  SysRoot root;
  Isa isa = Isa::kNone;              // what our kernels choose
  bool amx = false;                  // the CPU has what its kernels take, whether or not we may use it
  bool openmp_binds = false;         // OpenMP's runtime was told to bind threads
  std::optional<Topology> topology;  // none: it could not be discovered
  std::string verbs_missing;         // why libibverbs cannot be used; "": it can
  std::string verbs_advice;          // what to do about it
  bool places_memory = true;         // the kernel lets this process say on which node its memory shall be
  std::string pinning_refused;       // what the kernel says when a thread shall be pinned to a core; "": it is
  std::string affinity_refused;      // what it says when asked for the cores of a thread; "": these

  static DoctorHost ThisOne();
};

// All checks. It looks and changes nothing; no file that is missing makes it fail.
std::vector<Check> ExamineHost(const DoctorHost& host);

// The parts of it.
void ExamineCpu(const DoctorHost& host, CheckList* list);
void ExamineMemory(const DoctorHost& host, CheckList* list);
void ExamineFabric(const DoctorHost& host, CheckList* list);
void ExamineGpu(const DoctorHost& host, CheckList* list);

// For people: groups, aligned columns, lines of at most 110 characters; `colours` for a terminal.
std::string FormatChecks(const std::vector<Check>& checks, bool colours);
// One JSON object: {"checks": [{"group", "name", "status", "found", "advice"}, ...]}.
std::string FormatChecksAsJson(const std::vector<Check>& checks);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_DOCTOR_DOCTOR_H_
