#include "tools/bench/read_bandwidth.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <fastdecode/fastdecode.hpp>
#include <memory>
#include <numeric>
#include <string>
#include <thread>

#include "engine/bench/median.h"
#include "kernels/memory_stream.h"
#include "numa/arena.h"
#include "numa/clock.h"
#include "numa/pinned_thread.h"

namespace fastdecode {

namespace {

// Of all cores together: more than the last-level cache that they share.
constexpr size_t kBytesInAll = size_t{768} << 20;
constexpr size_t kBytesPerCoreMin = size_t{64} << 20;
constexpr std::chrono::milliseconds kWindow(120);
constexpr int kWindows = 5;  // of each way to read

struct ReadOrders {
  std::atomic<bool> stop{false};
  std::atomic<ReadStreams> streams{ReadStreams::kOne};
};

// Reads its own memory until told to stop. Owns: the memory and the thread, which only adds to `bytes_read`.
class Reader {
 public:
  Reader(int core, size_t bytes, const ReadOrders* orders) {
    ArenaOptions options;
    options.bytes = bytes;
    options.prefault_cores = {core};  // first touch puts it on the core's node
    absl::StatusOr<Arena> arena = Arena::Create(options);
    if (!arena.ok()) throw Error(FD_RESOURCE_EXHAUSTED, "read test: " + std::string(arena.status().message()));
    arena_ = *std::move(arena);
    thread_ = PinnedThread("read", core, [this, orders] { Read(orders); });
  }

  uint64_t bytes_read() const { return bytes_read_.load(std::memory_order_relaxed); }

 private:
  void Read(const ReadOrders* orders) {
    constexpr size_t kPiece = size_t{1} << 20;
    const std::byte* data = reinterpret_cast<const std::byte*>(arena_.data());
    uint64_t sum = 0, bytes_read = 0;
    for (size_t at = 0; !orders->stop.load(std::memory_order_relaxed);
         at = at + 2 * kPiece > arena_.bytes() ? 0 : at + kPiece) {
      sum ^= ReadStream(data + at, kPiece, orders->streams.load(std::memory_order_relaxed));
      bytes_read += kPiece;
      bytes_read_.store(bytes_read, std::memory_order_relaxed);
    }
    sum_.store(sum, std::memory_order_relaxed);  // somebody wants it
  }

  Arena arena_;
  std::atomic<uint64_t> bytes_read_{0};
  std::atomic<uint64_t> sum_{0};
  PinnedThread thread_;  // last: joined first
};

struct StopAtEnd {
  ReadOrders* orders;
  ~StopAtEnd() { orders->stop.store(true, std::memory_order_relaxed); }
};

double Sum(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

using Readers = std::vector<std::vector<std::unique_ptr<Reader>>>;  // [group]

// The median rate of each group.
std::vector<double> MeasureWindows(const Readers& readers) {
  std::vector<std::vector<double>> rates(readers.size());
  for (int window = 0; window < kWindows; ++window) {
    std::vector<uint64_t> before(readers.size());
    const auto total = [&](size_t g) {
      uint64_t sum = 0;
      for (const auto& reader : readers[g]) sum += reader->bytes_read();
      return sum;
    };
    const uint64_t start_ns = NowNs();
    for (size_t g = 0; g < readers.size(); ++g) before[g] = total(g);
    std::this_thread::sleep_for(kWindow);
    const uint64_t end_ns = NowNs();
    for (size_t g = 0; g < readers.size(); ++g) {
      rates[g].push_back(static_cast<double>(total(g) - before[g]) / static_cast<double>(end_ns - start_ns));
    }
  }
  std::vector<double> medians;
  for (const std::vector<double>& group : rates) medians.push_back(MedianOf(group));
  return medians;
}

}  // namespace

std::vector<double> MeasureReadBandwidth(const std::vector<CoreGroup>& groups) {
  size_t cores = 0;
  for (const CoreGroup& group : groups) cores += group.size();
  if (cores == 0) return std::vector<double>(groups.size());
  const size_t bytes = std::max(kBytesPerCoreMin, kBytesInAll / cores);

  ReadOrders orders;
  Readers readers(groups.size());
  const StopAtEnd stop_at_end{&orders};  // also if a reader cannot be made
  for (size_t g = 0; g < groups.size(); ++g) {
    for (const int core : groups[g]) readers[g].push_back(std::make_unique<Reader>(core, bytes, &orders));
  }
  std::vector<double> best(groups.size());
  for (const ReadStreams streams : {ReadStreams::kOne, ReadStreams::kFour}) {
    orders.streams.store(streams, std::memory_order_relaxed);
    const std::vector<double> medians = MeasureWindows(readers);
    if (Sum(medians) > Sum(best)) best = medians;
  }
  return best;
}

}  // namespace fastdecode
