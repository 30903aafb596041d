#ifndef FASTDECODE_TOOLS_LATENCY_MACHINE_PROVENANCE_H_
#define FASTDECODE_TOOLS_LATENCY_MACHINE_PROVENANCE_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "nlohmann/json.hpp"
#include "tools/doctor/sys_root.h"

namespace fastdecode {

// What one must know of a measurement to believe its figures, and to make it again.

// What no file says.
struct ProvenanceInput {
  std::string version;       // of FastDecode
  std::string command_line;  // "": that of this process
  std::string hypervisor;    // "": what the processor says of it is not known
  int64_t time_s = 0;        // since 1970, UTC

  // Of this process, now.
  static ProvenanceInput Now(std::string version);
};

// As JSON, null where something could not be read:
//   time, version, command_line, host, product, kernel {release, version, parameters},
//   cpu {model, microcode, online, allowed, smt, governor, frequency_driver, boost, isolated, nohz_full, hypervisor},
//   idle {driver, governor, states: [{name, latency_us, disabled}]},
//   clock {source, invariant_tsc},
//   memory {bytes, transparent_huge_pages, numa_balancing, nodes: [{node, cpus, bytes, huge_2m, huge_1g}]},
//   network: [{name, type, driver, firmware, interface, node, ports: [{port, state, link_layer, rate, mtu}]}],
//   gpu {driver, devices: [{address, model}]}, load {minutes: [1, 5, 15], running, threads}.
// Never fails. It looks and changes nothing.
nlohmann::json ReadProvenance(const SysRoot& root, const ProvenanceInput& input);

// The same for people: what it is, and what was found. Takes any JSON, as from files: what is not as above is "not
// readable".
std::vector<std::pair<std::string, std::string>> DescribeProvenance(const nlohmann::json& provenance);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_MACHINE_PROVENANCE_H_
