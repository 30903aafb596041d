#ifndef FASTDECODE_TOOLS_FABRIC_ECHO_H_
#define FASTDECODE_TOOLS_FABRIC_ECHO_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "rdma/link.h"

namespace fastdecode {

// The measurement behind `fastdecode latency fabric`: hops over a bare link, with nothing but an echo at its other end.

// What a link of it must carry.
LinkSize EchoLinkSize(size_t bytes_max);
// Goes with the proposal in place of a model's shape, so that a worker and an echo do not take each other's peers.
inline constexpr char kEchoShape[] = "fastdecode latency fabric 1";

// Answers every hop at once with as many bytes as it asks for, until the link is lost or *stop. `touch`: reads what
// came and writes what goes, as a home would. Thread: the home's.
void EchoHops(HomeLink* link, bool touch, const std::atomic<bool>* stop);

struct EchoPoint {
  size_t bytes = 0;        // engine -> home
  size_t reply_bytes = 0;  // home -> engine
};

// Round trips in ns, in the order in which they happened. `touch`: as above, within the time measured.
// Throws Error if the link is lost. Thread: the engine's.
std::vector<uint64_t> MeasureEcho(EngineLink* link, const EchoPoint& point, int warm_up, int rounds, bool touch);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_FABRIC_ECHO_H_
