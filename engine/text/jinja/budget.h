#ifndef FASTDECODE_ENGINE_TEXT_JINJA_BUDGET_H_
#define FASTDECODE_ENGINE_TEXT_JINJA_BUDGET_H_

#include <cstddef>
#include <cstdint>

namespace fastdecode::jinja {

// How much one rendering may use, with the reading of what it renders. What exceeds it is a Failure of kind kLimit.
struct Limits {
  uint64_t steps = 20'000'000;        // expressions and statements evaluated, and items walked through
  uint64_t bytes = 256ull << 20;      // of all texts and containers that are ever made
  size_t output_bytes = 32ull << 20;  // of the result, and of any one text
  uint32_t depth = 1000;              // of expressions, blocks and calls that are open at once
  uint64_t cpu_ns = 500'000'000;      // of the thread that renders
};

// Limits for an input of so many bytes. Steps and time grow with it: some templates walk through all messages for each.
Limits LimitsFor(size_t input_bytes);

// Counts what a rendering uses. Thread: the one that made it, whose CPU time it reads.
class Budget {
 public:
  explicit Budget(const Limits& limits);

  const Limits& limits() const { return limits_; }

  void Step(uint64_t count = 1) {
    steps_ += count;
    if (steps_ >= next_check_) Check();
  }
  // Memory for a text or a container is about to be taken.
  void Allocate(size_t bytes);
  void CheckSize(size_t bytes) const;
  void Enter();
  void Leave() { --depth_; }

 private:
  void Check();

  const Limits limits_;
  uint64_t steps_ = 0;
  uint64_t next_check_ = 0;
  uint64_t bytes_ = 0;
  uint32_t depth_ = 0;
  uint64_t end_ns_ = 0;
};

// While it lives, what this thread does counts for `budget`.
class Spending {
 public:
  explicit Spending(Budget* budget);
  ~Spending();
  Spending(const Spending&) = delete;
  Spending& operator=(const Spending&) = delete;

 private:
  Budget* const before_;
};

// Count for the rendering of this thread, if there is one.
void Spend(uint64_t steps);
// So many bytes are about to be searched or compared: steps, and no memory.
void SpendSearch(size_t bytes);
// Memory is about to be taken. What makes a Text, a Dict or a Value of several counts by itself.
void SpendBytes(size_t bytes);
// A text of `size` bytes is about to have `more`.
void SpendGrowth(size_t size, size_t more);
// A value or the output is about to have so many bytes: `count` times `bytes`.
void RequireSize(size_t bytes, size_t count = 1);

// One more level of depth while it lives.
class Nesting {
 public:
  Nesting();
  ~Nesting();
  Nesting(const Nesting&) = delete;
  Nesting& operator=(const Nesting&) = delete;
};

}  // namespace fastdecode::jinja

#endif  // FASTDECODE_ENGINE_TEXT_JINJA_BUDGET_H_
