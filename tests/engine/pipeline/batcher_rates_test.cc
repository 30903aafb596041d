// What comes of placements and plans: tokens a second of a machine of which nothing counts but what it reads. With all
// homes it gives hardly less than with the better kind of them alone, whatever the rates and the load.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <queue>
#include <utility>
#include <vector>

#include "engine/pipeline/batcher.h"

namespace fastdecode {
namespace {

constexpr int kLayers = 8;
constexpr double kPageBytes = 1 << 20;

struct Machine {
  int micro_batches = 2;
  double weight_bytes = 4.6e9;
  double near_mb_per_s = 4.2e6;
  uint32_t near_pages = 4096;
  std::vector<double> far_mb_per_s = {80e3};
  uint32_t far_pages = 1 << 20;
  bool near_first = true;  // a GPU's
  bool adapts = false;     // as many micro-batches are used as are fastest, by what steps cost...
  bool learns = false;     // ...which is not known before
};

struct Load {
  uint32_t prompt_tokens = 2048;
  uint32_t output_tokens = 128;
  int requests = 256;   // at first
  bool closed = true;   // each is followed by the next
  double seconds = 10;  // of a closed loop, as much again before
};

enum class Homes { kNear, kFar, kBoth };

// Steps of micro-batches, layer after layer: the GPU reads weights and then KV of its own, and meanwhile far homes read
// theirs; each serves one after another.
class Simulation {
 public:
  Simulation(const Machine& machine, const Load& load, Homes homes)
      : machine_(machine), load_(load), costs_(CostsOf(machine)), batcher_(LimitsOf(load)) {
    const auto rate = [](double mb_per_s) { return static_cast<uint32_t>(mb_per_s); };
    if (homes != Homes::kFar) {
      batcher_.AddHome(0, machine.near_pages, rate(machine.near_mb_per_s), PushRole::kNothing, /*near=*/true);
    }
    for (size_t i = 0; homes != Homes::kNear && i < machine.far_mb_per_s.size(); ++i) {
      batcher_.AddHome(static_cast<int>(i) + 1, machine.far_pages, rate(machine.far_mb_per_s[i]));
    }
    free_us_.resize(machine.far_mb_per_s.size() + 1);
    batches_.resize(static_cast<size_t>(machine.micro_batches));
    for (int i = 0; i < load.requests; ++i) Add();
  }

  // Of a second half of the time in a closed loop; else until all have ended.
  double TokensPerSecond() {
    const double until_us = load_.closed ? 2e6 * load_.seconds : 1e12;
    BeginIdle(0);
    double now_us = 0;
    uint64_t before = 0;
    bool half = false;
    while (!events_.empty() && now_us < until_us) {
      const auto [at_us, m] = events_.top();
      events_.pop();
      now_us = at_us;
      if (!half && now_us > until_us / 2) {
        half = true;
        before = tokens_;
      }
      Layer(now_us, m);
      BeginIdle(now_us);
    }
    if (!load_.closed) return static_cast<double>(tokens_) / now_us * 1e6;
    return static_cast<double>(tokens_ - before) / (now_us - until_us / 2) * 1e6;
  }

 private:
  using Event = std::pair<double, int>;
  struct MicroBatch {
    bool idle = true;
    int layer = 0;
    std::vector<double> bytes;  // [home] of a layer
    MicroBatchLoad load;
  };

  BatchLimits LimitsOf(const Load& load) const {
    const auto sequences = static_cast<uint32_t>(load.requests);
    return {.micro_batches = machine_.micro_batches,
            .rows_max = sequences + 16,
            .sequences_max = sequences,
            .chunk_tokens_max = 16,
            .ready_max = sequences + 1,
            .near_first = machine_.near_first,
            .adapts = machine_.adapts,
            .active_max = sequences,
            .layers = machine_.adapts ? kLayers : 1,
            .weight_bytes = static_cast<uint64_t>(machine_.weight_bytes),
            .page_bytes = static_cast<uint64_t>(kPageBytes),
            .calibrated = machine_.adapts && !machine_.learns ? &costs_ : nullptr};
  }

  static StepCosts CostsOf(const Machine& machine) {
    StepCosts costs;
    costs.stage = CostCurve::Constant(machine.weight_bytes / kLayers / machine.near_mb_per_s);
    for (size_t i = 0; i < machine.far_mb_per_s.size(); ++i) {
      costs.homes[i + 1].token_us = kPageBytes / kLayers / kPageTokens / machine.far_mb_per_s[i];
    }
    return costs;
  }

  void Add() {
    auto sequence = std::make_unique<Sequence>();
    sequence->id = ++last_id_;
    sequence->prompt_tokens = sequence->length = load_.prompt_tokens;
    sequence->fill_tokens = load_.prompt_tokens - 1;
    // So that they do not all end together.
    const uint32_t output = load_.output_tokens / 2 + static_cast<uint32_t>(last_id_ * 7919 % load_.output_tokens);
    sequence->length_max = load_.prompt_tokens + std::max(1u, output);
    batcher_.Enqueue(sequence.get());
    sequences_.push_back(std::move(sequence));
  }

  void BeginIdle(double now_us) {
    for (int m = 0; m < machine_.micro_batches; ++m) {
      if (batches_[static_cast<size_t>(m)].idle) Begin(now_us, m);
    }
  }

  void Begin(double now_us, int m) {
    MicroBatch& batch = batches_[static_cast<size_t>(m)];
    batcher_.DropLeavers(m, &changes_);
    batcher_.Rearrange(m, &changes_);
    batcher_.TakeIn(m, &changes_, static_cast<uint64_t>(now_us * 1e3));
    batch.idle = batcher_.ComposeRows(m, &changes_) == 0;
    changes_.Clear();
    if (batch.idle) return;
    batch.layer = 0;
    batch.bytes.assign(free_us_.size(), 0);
    batch.load = {};
    for (const Sequence* sequence : batcher_.Members(m)) {
      if (sequence->rows == 0) continue;
      const double pages = batcher_.ledger().pages(sequence->seat.holder);
      const auto home = static_cast<size_t>(sequence->seat.home);
      batch.bytes[home] += pages * kPageBytes / kLayers;
      batch.load.rows += 1;
      batch.load.homes[home].sequences += 1;
      batch.load.homes[home].tokens += pages * kPageTokens;
    }
    events_.emplace(now_us, m);
  }

  void Layer(double now_us, int m) {
    MicroBatch& batch = batches_[static_cast<size_t>(m)];
    if (batch.layer++ == kLayers) return Finish(now_us, m);
    const double start_us = std::max(now_us, free_us_[0]);
    const double sent_us = start_us + machine_.weight_bytes / kLayers / machine_.near_mb_per_s;
    double end_us = free_us_[0] = sent_us + batch.bytes[0] / machine_.near_mb_per_s;
    for (size_t home = 1; home < free_us_.size(); ++home) {
      if (batch.bytes[home] == 0) continue;
      free_us_[home] = std::max(sent_us, free_us_[home]) + batch.bytes[home] / machine_.far_mb_per_s[home - 1];
      end_us = std::max(end_us, free_us_[home]);
    }
    events_.emplace(end_us, m);
  }

  void Finish(double now_us, int m) {
    if (machine_.learns) Learn(m);
    std::vector<Sequence*> ended;
    for (Sequence* sequence : batcher_.Members(m)) {
      if (sequence->rows == 0) continue;
      ++tokens_;
      sequence->computed = sequence->length++;
      if (sequence->length == sequence->length_max) ended.push_back(sequence);
    }
    for (Sequence* sequence : ended) {
      batcher_.Remove(sequence, &changes_);
      changes_.Clear();
      if (load_.closed) Add();
    }
    Begin(now_us, m);
  }

  void Learn(int m) {
    const MicroBatch& batch = batches_[static_cast<size_t>(m)];
    MeasuredStep took = {.stage_us = machine_.weight_bytes / kLayers / machine_.near_mb_per_s};
    for (size_t home = 1; home < free_us_.size(); ++home) {
      took.home_us[home] = batch.bytes[home] / machine_.far_mb_per_s[home - 1];
    }
    batcher_.costs().Note(m, batch.load, took);
  }

  const Machine machine_;
  const Load load_;
  const StepCosts costs_;
  Batcher batcher_;
  BoundaryChanges changes_{8192};
  std::vector<std::unique_ptr<Sequence>> sequences_;
  std::vector<MicroBatch> batches_;
  std::vector<double> free_us_;  // [home] when it has nothing more to do; 0: the GPU
  std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
  uint64_t last_id_ = 0;
  uint64_t tokens_ = 0;
};

struct Rates {
  double near = 0, far = 0, both = 0;
  double ratio() const { return both / std::max(near, far); }
};

Rates RatesOf(const Machine& machine, const Load& load) {
  return {Simulation(machine, load, Homes::kNear).TokensPerSecond(),
          Simulation(machine, load, Homes::kFar).TokensPerSecond(),
          Simulation(machine, load, Homes::kBoth).TokensPerSecond()};
}

// 60 sequences fit the GPU. One by one or all at once, few and many, short answers and such as double the KV.
TEST(BatcherRatesTest, BothKindsOfHomesGiveNoLessThanTheBetter) {
  for (const bool closed : {true, false}) {
    for (const double far : {80e3, 300e3, 1000e3}) {
      for (const int requests : {61, 256}) {
        for (const uint32_t output : {128u, 2000u}) {
          for (const int micro_batches : {1, 2, 3}) {
            Machine machine;
            machine.micro_batches = micro_batches;
            machine.far_mb_per_s = {far};
            Load load;
            load.requests = requests;
            load.output_tokens = output;
            load.closed = closed;
            load.seconds = output > 1000 ? 20 : 5;  // some may be placed far as nobody ended for long at first
            const Rates rates = RatesOf(machine, load);
            EXPECT_GE(rates.ratio(), 0.97)
                << (closed ? "a closed loop of " : "at once: ") << requests << " requests of " << output << " tokens, "
                << micro_batches << " micro-batches, far homes with " << far * 1e-3 << " GB/s: " << rates.near << ", "
                << rates.far << " and with both " << rates.both << " tokens/s";
          }
        }
      }
    }
  }
}

TEST(BatcherRatesTest, StrongFarHomesAddTheirs) {
  Machine machine;
  machine.far_mb_per_s = {300e3, 300e3, 300e3, 300e3};
  Load load;
  load.requests = 1000;
  EXPECT_GE(RatesOf(machine, load).ratio(), 1.3);
  load.closed = false;
  EXPECT_GE(RatesOf(machine, load).ratio(), 1.2);
}

// The near home has room for three.
TEST(BatcherRatesTest, ASmallNearHomeDoesNotHoldFarOnesBack) {
  Machine machine;
  machine.near_pages = 256;
  machine.far_mb_per_s = {300e3, 300e3};
  for (const int requests : {20, 256}) {
    Load load;
    load.requests = requests;
    const Rates rates = RatesOf(machine, load);
    EXPECT_GT(rates.far, rates.near);
    EXPECT_GE(rates.ratio(), 0.97) << requests;
  }
}

// One team of CPU cores beside workers that read as fast, half as fast and four times as fast: weights of a small model
// and of a large one, few sequences and many.
TEST(BatcherRatesTest, ANearHomeOnACpuAndWorkersGiveNoLessThanTheBetter) {
  double best = 0;
  for (const double weight_bytes : {0.1e9, 2e9}) {
    for (const double far : {30e3, 60e3, 240e3}) {
      for (const int requests : {1, 2, 8, 64}) {
        for (const uint32_t prompt : {64u, 2048u}) {
          Machine machine;
          machine.weight_bytes = weight_bytes;
          machine.near_mb_per_s = 60e3;
          machine.near_pages = 1 << 20;
          machine.far_mb_per_s = {far};
          machine.near_first = false;
          Load load;
          load.prompt_tokens = prompt;
          load.requests = requests;
          load.seconds = prompt < 1000 ? 10 : 40;
          const Rates rates = RatesOf(machine, load);
          EXPECT_GE(rates.ratio(), 0.97) << requests << " requests of " << prompt << " tokens, weights of "
                                         << weight_bytes * 1e-9 << " GB, a worker with " << far * 1e-3
                                         << " GB/s: " << rates.near << ", " << rates.far << " and with both "
                                         << rates.both << " tokens/s";
          best = std::max(best, rates.ratio());
        }
      }
    }
  }
  EXPECT_GE(best, 1.4) << "where both are as fast and KV is most of what is read";
}

// Two micro-batches read the weights twice, and one lets homes wait for the S-Part.
TEST(BatcherRatesTest, AsManyMicroBatchesAreUsedAsAreFastest) {
  bool one_was_best = false, two_were_best = false;
  for (const double far : {20e3, 100e3, 1000e3}) {
    for (const int requests : {1, 2, 16, 64, 256}) {
      Machine machine;
      machine.far_mb_per_s = {far};
      machine.near_mb_per_s = 400e3;
      Load load;
      load.requests = requests;
      load.seconds = 60;
      const auto rate = [&](int micro_batches, bool adapts) {
        machine.micro_batches = micro_batches;
        machine.adapts = adapts;
        return Simulation(machine, load, Homes::kFar).TokensPerSecond();
      };
      const double one = rate(1, false), two = rate(2, false), chosen = rate(2, true);
      machine.learns = true;
      EXPECT_GE(rate(2, true), 0.95 * std::max(one, two)) << requests << " requests, with costs that are learned";
      EXPECT_GE(chosen, 0.95 * std::max(one, two))
          << requests << " requests, homes with " << far * 1e-3 << " GB/s: " << one << " and " << two
          << " tokens/s with one and two micro-batches, " << chosen << " with as many as are fastest";
      one_was_best |= one > 1.2 * two;
      two_were_best |= two > 1.2 * one;
    }
  }
  EXPECT_TRUE(one_was_best && two_were_best);
}

}  // namespace
}  // namespace fastdecode
