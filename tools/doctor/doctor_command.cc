// fastdecode doctor: what this host has for RDMA and NUMA memory, and what to do about what is missing.
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <vector>

#include <fastdecode/fastdecode.hpp>
#include "tools/commands.h"
#include "tools/doctor/doctor.h"
#include "tools/output.h"

namespace fastdecode {

void AddDoctor(CLI::App& program) {
  CLI::App* command = program.add_subcommand(
      "doctor", "Say what this host has for RDMA and NUMA memory, and what to do about what is missing");
  const auto json = std::make_shared<bool>(false);
  command->add_flag("--json", *json, "print one JSON object: checks, each with group, name, status, found, advice");
  command->callback([json] {
    const std::vector<Check> checks = ExamineHost(DoctorHost::ThisOne());
    WriteOut(*json ? FormatChecksAsJson(checks) : FormatChecks(checks, isatty(STDOUT_FILENO) != 0));
    if (std::any_of(checks.begin(), checks.end(), [](const Check& c) { return c.status == CheckStatus::kError; })) {
      throw Error(FD_FAILED_PRECONDITION, "RDMA cannot work on this host: see what doctor marks as error");
    }
  });
}

}  // namespace fastdecode
