#ifndef FASTDECODE_ENGINE_PIPELINE_STATISTICS_H_
#define FASTDECODE_ENGINE_PIPELINE_STATISTICS_H_

#include <array>
#include <atomic>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace fastdecode {

inline constexpr int kMaxHomes = 64;

// A counter that one thread writes and any may read. Relaxed: a reader sees some recent value, which orders
// nothing.
class Counter {
 public:
  void Add(uint64_t n) { value_.store(value_.load(std::memory_order_relaxed) + n, std::memory_order_relaxed); }
  uint64_t value() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

// Durations in log-linear buckets: 16 per octave, so a percentile read back is right within 6.25 %.
// Thread: one writer, any readers. Bounded: fixed memory.
class DurationHistogram {
 public:
  static constexpr int kSubBits = 4;
  static constexpr size_t kBuckets = (64 - kSubBits + 1) << kSubBits;
  using Counts = std::array<uint64_t, kBuckets>;

  void Add(uint64_t ns) { buckets_[BucketOf(ns)].Add(1); }
  Counts Read() const {
    Counts counts;
    for (size_t i = 0; i < kBuckets; ++i) counts[i] = buckets_[i].value();
    return counts;
  }

  static size_t BucketOf(uint64_t ns) {
    if (ns < (1u << kSubBits)) return ns;
    const int shift = std::bit_width(ns) - 1 - kSubBits;
    return ((size_t{static_cast<unsigned>(shift)} + 1) << kSubBits) + ((ns >> shift) & ((1u << kSubBits) - 1));
  }
  // The middle of a bucket, ns.
  static double ValueOf(size_t bucket) {
    if (bucket < (1u << kSubBits)) return static_cast<double>(bucket);
    const int shift = static_cast<int>(bucket >> kSubBits) - 1;
    const double low = static_cast<double>((uint64_t{1} << kSubBits) + (bucket & ((1u << kSubBits) - 1)));
    return (low + 0.5) * static_cast<double>(uint64_t{1} << shift);
  }

 private:
  std::array<Counter, kBuckets> buckets_;
};

// What a home said last of its pages. Thread: one writer, any readers.
class HomePages {
 public:
  struct Counts {
    uint32_t used = 0;     // by this engine
    uint32_t held = 0;     // of the whole home: free ones that are kept behind sequences of any engine
    uint64_t said_ns = 0;  // NowNs, when they were read
  };

  // Release: who sees the time sees these counts, or later ones.
  void Store(Counts counts) {
    counts_.store(uint64_t{counts.used} << 32 | counts.held, std::memory_order_relaxed);
    said_ns_.store(counts.said_ns, std::memory_order_release);
  }
  void Forget() { said_ns_.store(0, std::memory_order_relaxed); }
  // Nothing: the home has said nothing yet.
  std::optional<Counts> Read() const {
    const uint64_t said_ns = said_ns_.load(std::memory_order_acquire);
    if (said_ns == 0) return std::nullopt;
    const uint64_t counts = counts_.load(std::memory_order_relaxed);
    return Counts{static_cast<uint32_t>(counts >> 32), static_cast<uint32_t>(counts), said_ns};
  }

 private:
  std::atomic<uint64_t> counts_{0};  // both at one moment, hence one word
  std::atomic<uint64_t> said_ns_{0};
};

// What the pipeline thread counts. Written by it alone, read by anyone, from the engine's start on.
struct PipelineStatistics {
  Counter steps;
  Counter rows;  // query tokens through all layers
  Counter sampled_tokens;
  Counter hops;  // per (micro-batch, layer, home)
  Counter preemptions;
  Counter pushed_bytes;       // K and V sent home in bulk segments
  Counter s_busy_ns;          // in S-Part stages, in several at once only once
  Counter layer_stages;       // stages that are a whole layer: all but a step's first and last, and...
  Counter layer_stage_ns;     // ...how long they took
  Counter stage_attend_ns;    // the S-Part's threads attended to sequences of homes without threads
  Counter hop_overhead_ns;    // of answered hops: post -> reply seen, without the home's work
  Counter rounds;             // from the end of a micro-batch's step to that of its next one, without prompt chunks,...
  Counter rounds_ns;          // ...how long they took...
  Counter rounds_foretold_ns; // ...and how long by the step model
  std::atomic<float> s_cost_factor{1};  // by how much the S-Part takes longer than its calibration says, and...
  std::array<std::atomic<float>, kMaxHomes> home_cost_factor{};  // ...homes do; 0: nothing is known
  Counter kv_bytes_attended;  // stored KV bytes that the rows' attention had to read, all layers
  Counter kv_bytes_hopped;    // those of them at homes that hops go to
  Counter parks;
  Counter recoveries;  // sequences whose home was lost, each time, and...
  Counter recovered;   // ...those that are again where they were
  DurationHistogram recovery_ns;        // from the loss until then
  DurationHistogram recovery_queue_ns;  // of that, until it had a home again
  DurationHistogram loss_detection_ns;  // a home's last sign of life, with something open -> its loss
  DurationHistogram stage_ns;                             // one S-Part stage
  DurationHistogram hop_ns;                               // post -> reply seen
  DurationHistogram step_ns;                              // one micro-batch's: composed -> last stage over
  std::array<Counter, kMaxHomes> r_busy_ns;               // per home, as the replies report
  std::array<Counter, kMaxHomes> home_posts;              // hops sent...
  std::array<Counter, kMaxHomes> home_hops;               // ...and answered
  std::array<DurationHistogram, kMaxHomes> home_work_ns;  // hop seen at the home -> last thread finished
  std::array<std::atomic<uint32_t>, kMaxHomes> home_pages_used{};  // that sequences need, as the batcher counts them
  std::array<std::atomic<uint64_t>, kMaxHomes> home_pages_cached{};  // besides, pages that only ended sequences have
  Counter prefix_tokens;  // of prompts that were looked up when their sequence came to its first home, and...
  std::array<Counter, kMaxHomes> home_cached_tokens;  // ...those of them that were stored at this home
  std::atomic<uint64_t> last_step_ns{0};                           // when a step ended last; 0: none has
  std::array<std::atomic<uint64_t>, kMaxHomes> home_last_reply_ns{};  // when a home's last reply was seen; 0: none
  std::atomic<uint32_t> active_sequences{0};
  std::atomic<uint32_t> ready_sequences{0};  // taken over, not in a micro-batch yet
  std::array<HomePages, kMaxHomes> home_pages;  // as the homes count them
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_PIPELINE_STATISTICS_H_
