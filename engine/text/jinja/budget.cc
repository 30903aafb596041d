#include "engine/text/jinja/budget.h"

#include <time.h>

#include <algorithm>
#include <string>

#include "engine/text/jinja/failure.h"

namespace fastdecode::jinja {
namespace {

constexpr uint64_t kStepsBetweenChecks = 4096;
constexpr size_t kBytesOfStep = 256;  // that are copied or searched

// 4 s for each MiB of input, up to 5 s: gpt-oss' template, which walks through the rest of a conversation for each of
// its calls, takes 0.8 s for 3,000 messages of 250 KiB, as it does in jinja2. A step takes 25 ns at the least.
constexpr uint64_t kCpuNsOfInputByte = 3800, kCpuNsMax = 5'000'000'000, kCpuNsOfStep = 25;

uint64_t ThreadCpuNs() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

thread_local Budget* current = nullptr;

[[noreturn]] void Exceeded(const std::string& what) {
  throw Failure{.message = "rendering takes more than " + what, .kind = Failure::Kind::kLimit};
}

}  // namespace

Limits LimitsFor(size_t input_bytes) {
  Limits limits;
  limits.cpu_ns += std::min<uint64_t>(input_bytes, kCpuNsMax / kCpuNsOfInputByte) * kCpuNsOfInputByte;
  limits.cpu_ns = std::min(limits.cpu_ns, kCpuNsMax);
  limits.steps = limits.cpu_ns / kCpuNsOfStep;
  return limits;
}

Budget::Budget(const Limits& limits)
    : limits_(limits), next_check_(kStepsBetweenChecks), end_ns_(ThreadCpuNs() + limits.cpu_ns) {}

void Budget::Check() {
  if (steps_ > limits_.steps) Exceeded(std::to_string(limits_.steps) + " steps");
  if (ThreadCpuNs() > end_ns_) Exceeded(std::to_string(limits_.cpu_ns / 1'000'000) + " ms of CPU time");
  next_check_ = steps_ + std::min(kStepsBetweenChecks, limits_.steps - steps_ + 1);
}

void Budget::CheckSize(size_t bytes) const {
  if (bytes > limits_.output_bytes) Exceeded(std::to_string(limits_.output_bytes >> 20) + " MiB in one value");
}

void Budget::Allocate(size_t bytes) {
  CheckSize(bytes);
  const uint64_t before = bytes_ / kBytesOfStep;
  bytes_ += bytes;
  if (bytes_ > limits_.bytes) Exceeded(std::to_string(limits_.bytes >> 20) + " MiB of memory");
  Step(bytes_ / kBytesOfStep - before);
}

void Budget::Enter() {
  Step();
  if (++depth_ > limits_.depth) {
    --depth_;
    Exceeded(std::to_string(limits_.depth) + " levels of expressions, blocks and calls");
  }
}

Spending::Spending(Budget* budget) : before_(current) { current = budget; }
Spending::~Spending() { current = before_; }

void Spend(uint64_t steps) {
  if (current != nullptr) current->Step(steps);
}

void SpendBytes(size_t bytes) {
  if (current != nullptr) current->Allocate(bytes);
}

void SpendSearch(size_t bytes) { Spend(1 + bytes / kBytesOfStep); }

void SpendGrowth(size_t size, size_t more) {
  if (current == nullptr) return;
  current->CheckSize(size + more);
  current->Allocate(more);
}

void RequireSize(size_t bytes, size_t count) {
  size_t total = 0;
  if (__builtin_mul_overflow(bytes, count, &total)) total = SIZE_MAX;
  if (current != nullptr) current->CheckSize(total);
}

Nesting::Nesting() {
  if (current != nullptr) current->Enter();
}

Nesting::~Nesting() {
  if (current != nullptr) current->Leave();
}

}  // namespace fastdecode::jinja
