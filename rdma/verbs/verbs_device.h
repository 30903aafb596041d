#ifndef FASTDECODE_RDMA_VERBS_VERBS_DEVICE_H_
#define FASTDECODE_RDMA_VERBS_VERBS_DEVICE_H_

#include <infiniband/verbs.h>

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rdma/fabric_options.h"
#include "rdma/link.h"
#include "rdma/verbs/verbs_calls.h"

namespace fastdecode {

// The port of an RDMA device that one link end uses, opened for it alone: what happens to it concerns this link only.
// Owns: the context. Thread: one.
struct VerbsDevice {
  VerbsHandle<ibv_context> context;
  std::string name;  // mlx5_0
  int node = -1;     // NUMA node of the device; -1: the kernel does not say (Soft-RoCE has none)
  uint8_t port = 1;
  double gbit_per_s = 0;  // of the port, as sysfs has it (of Soft-RoCE, its network interface's); 0: not known
  ibv_port_attr port_attributes = {};
  ibv_device_attr attributes = {};
  ibv_gid_entry gid = {};   // gid_index says which of the port's
  uint16_t pkey_index = 0;  // of the port's partition keys

  bool ethernet() const { return port_attributes.link_layer == IBV_LINK_LAYER_ETHERNET; }
  // "mlx5_0 port 1, GID 3 ::ffff:10.0.0.1 (RoCE v2)": where, for messages.
  std::string Name() const;
  // Name() and what else was chosen, for the log: NUMA node, link layer, active MTU.
  std::string Describe() const;
  LinkLine Line() const;
};

// NotFound, with what to do about it, if there is no libibverbs.
absl::Status CheckLibrary(const VerbsCalls& calls);

// Opens the device that the options name, else of those for InfiniBand or RoCE the one with an active port that is
// nearest to NUMA node `node` (-1: the first), and chooses port and GID.
// Errors: that of CheckLibrary; NotFound if there is no device, none of that name, no active port or no such GID;
// FailedPrecondition for a device of another transport; InvalidArgument for options out of range; those of the calls.
// Each says what to check.
absl::StatusOr<VerbsDevice> OpenVerbsDevice(const VerbsCalls& calls, const FabricOptions& options, int node);

// 256 to 4096, and back; 0 and false for what is none.
int MtuBytes(ibv_mtu mtu);
bool MtuFromBytes(int bytes, ibv_mtu* mtu);

// "10.0.0.1" for IPv4 in IPv6, else as IPv6 is written.
std::string FormatGid(const ibv_gid& gid);

// For a call of libibverbs that failed: "ibv_create_qp on mlx5_0: Cannot allocate memory (12); `advice`".
absl::Status VerbsError(const std::string& device, const char* call, int error, const std::string& advice);

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_VERBS_VERBS_DEVICE_H_
