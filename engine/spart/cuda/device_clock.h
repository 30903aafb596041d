#ifndef FASTDECODE_ENGINE_SPART_CUDA_DEVICE_CLOCK_H_
#define FASTDECODE_ENGINE_SPART_CUDA_DEVICE_CLOCK_H_

#include <algorithm>
#include <cstdint>

namespace fastdecode {

// What a device's clock says as NowNs. It learns from pairs of moments of which it is known that one came before the
// other: the host lets a stage go on before the device sees it, and the device publishes one before the host sees that.
// Between the two bounds lies the difference of the clocks; its middle is taken, and is off by half of their distance
// (error_ns) at most, as long as the clocks drift by less than kDrift. Thread: one.
class DeviceClock {
 public:
  // Clocks of GPUs and hosts are off by tens of parts in a million.
  static constexpr double kDrift = 200e-6;

  // The device's moment `after_device` came after the host's `before_host`, and its moment `before_device` before the
  // host's `after_host`. REQUIRES: moments of one call are seconds apart at most.
  void Learn(uint64_t before_host, uint64_t after_device, uint64_t before_device, uint64_t after_host) {
    const int64_t least = Difference(before_host, after_device), most = Difference(after_host, before_device);
    const auto drift = static_cast<int64_t>(kDrift * static_cast<double>(after_host - learnt_ns_));
    const int64_t least_before = least_ - drift, most_before = most_ + drift;
    const bool fits = learnt_ns_ != 0 && least <= most_before && least_before <= most;
    least_ = fits ? std::max(least, least_before) : least;  // else one of the clocks was set
    most_ = fits ? std::min(most, most_before) : most;
    learnt_ns_ = after_host;
  }

  uint64_t ToHost(uint64_t device) const { return device + static_cast<uint64_t>(least_ + (most_ - least_) / 2); }
  uint64_t error_ns() const { return static_cast<uint64_t>(std::max<int64_t>(0, most_ - least_)) / 2; }

 private:
  static int64_t Difference(uint64_t host, uint64_t device) { return static_cast<int64_t>(host - device); }

  uint64_t learnt_ns_ = 0;  // NowNs; 0: nothing yet
  int64_t least_ = 0, most_ = 0;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_SPART_CUDA_DEVICE_CLOCK_H_
