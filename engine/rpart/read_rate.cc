#include "engine/rpart/read_rate.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <thread>

#include "kernels/memory_stream.h"
#include "numa/clock.h"
#include "numa/pinned_thread.h"

namespace fastdecode {

namespace {

constexpr size_t kPieceBytes = 256 << 10;
constexpr uint64_t kDurationNs = 5'000'000;

// Bytes that were read until `end_ns`, piece after piece, over and over.
uint64_t ReadUntil(std::span<const std::byte> part, uint64_t end_ns, std::atomic<uint64_t>* sum) {
  uint64_t bytes = 0, seen = 0;
  size_t at = 0;
  while (NowNs() < end_ns) {
    const size_t piece = std::min(kPieceBytes, part.size() - at);
    seen += ReadStream(part.data() + at, piece);
    bytes += piece;
    at = at + piece < part.size() ? at + piece : 0;
  }
  sum->fetch_add(seen, std::memory_order_relaxed);  // what is read is used
  return bytes;
}

}  // namespace

double MeasureReadRate(std::span<const std::byte> memory, const std::vector<int>& cores) {
  const size_t part_bytes = memory.size() / cores.size() / kPieceBytes * kPieceBytes;
  if (part_bytes == 0) return 0;
  std::atomic<uint64_t> bytes{0}, sum{0};
  std::atomic<size_t> ready{0};
  std::vector<PinnedThread> threads;
  const auto start = [&](int core, std::span<const std::byte> part) {
    threads.emplace_back("fd-read-rate", core, [&, part] {
      // All begin when all are there: they share what the memory gives.
      ready.fetch_add(1);
      while (ready.load() < cores.size()) std::this_thread::yield();
      bytes.fetch_add(ReadUntil(part, NowNs() + kDurationNs, &sum));
    });
  };
  try {
    for (size_t i = 0; i < cores.size(); ++i) start(cores[i], memory.subspan(i * part_bytes, part_bytes));
  } catch (...) {
    ready.fetch_add(cores.size());  // nobody waits for those who do not come
    throw;
  }
  threads.clear();  // joins
  return static_cast<double>(bytes.load()) / (kDurationNs * 1e-9);
}

}  // namespace fastdecode
