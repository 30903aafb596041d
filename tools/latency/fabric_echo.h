#ifndef FASTDECODE_TOOLS_LATENCY_FABRIC_ECHO_H_
#define FASTDECODE_TOOLS_LATENCY_FABRIC_ECHO_H_

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
inline constexpr char kEchoShape[] = "fastdecode latency fabric 2";

// Answers every hop at once with as many bytes as it asks for, and frees every bulk segment, until the link is lost or
// *stop. `touch`: reads what came and writes what goes, as a home would. Thread: the home's.
void EchoHops(HomeLink* link, bool touch, const std::atomic<bool>* stop);

struct EchoPoint {
  size_t bytes = 0;        // engine -> home
  size_t reply_bytes = 0;  // home -> engine
};

// Both throw Error if the link is lost. `touch`: as above, within the time measured. Thread: the engine's.
// Round trips in ns, in the order in which they happened.
std::vector<uint64_t> MeasureEcho(EngineLink* link, const EchoPoint& point, int warm_up, int rounds, bool touch);

// A window of segments is sent as fast as the far end frees them: ns of each of `windows` windows.
inline constexpr int kBulkWindow = 64;
std::vector<uint64_t> MeasureBulk(EngineLink* link, size_t bytes, int windows, bool touch);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_FABRIC_ECHO_H_
