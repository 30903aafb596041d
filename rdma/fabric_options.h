#ifndef FASTDECODE_RDMA_FABRIC_OPTIONS_H_
#define FASTDECODE_RDMA_FABRIC_OPTIONS_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

namespace fastdecode {

// How often a process tells its peers that it lives, and how far it is.
inline constexpr uint64_t kHeartbeatNs = 100'000'000;

// How links over a fabric (HOST:PORT, provider verbs) are made; links on this host need none of it.
struct FabricOptions {
  std::string secret_file = {};   // what both ends know; readable by its owner alone
  std::string device = {};        // RDMA device, such as mlx5_0; "" = the active one nearest to the NUMA node
  int port = 0;                   // of the device; 0 = the first that is active
  int gid_index = -1;             // -1 = look for one: RoCE v2 over IPv4, IPv6, link-local IPv6, then the port's first
  int mtu = 0;                    // bytes, 256 to 4096; 0 = the smaller of both ends' active MTU
  int traffic_class = 0;          // of the GRH (DSCP << 2 | ECN)
  int service_level = 0;
  int gpu = -1;                   // engine: q, k, v and o lie in memory of this GPU; -1 = of the host
  uint64_t heartbeat_timeout_ns = 1'000'000'000;  // a peer process that is silent for so long is lost

  // With gpu: called before memory is made for it or freed, which may wait for what runs there; nothing runs from its
  // return until what it returned is gone. Null: the GPU is given up, since it hangs: no memory of it is made any more,
  // and what there is stays to the end of the process. Any thread. Empty: nothing runs there that waits for this process.
  std::function<std::shared_ptr<void>()> hold_gpu = {};
};

}  // namespace fastdecode

#endif  // FASTDECODE_RDMA_FABRIC_OPTIONS_H_
