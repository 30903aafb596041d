#include "engine/text/jinja/budget.h"

#include <time.h>

#include <algorithm>
#include <string>

#include "engine/text/jinja/failure.h"

namespace fastdecode::jinja {
namespace {

constexpr uint64_t kStepsBetweenChecks = 4096;

uint64_t ThreadCpuNs() {
  timespec now = {};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

thread_local Budget* current = nullptr;

[[noreturn]] void Exceeded(const std::string& what) {
  throw Failure{.message = "the template uses more than " + what, .kind = Failure::Kind::kLimit};
}

}  // namespace

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
  bytes_ += bytes;
  if (bytes_ > limits_.bytes) Exceeded(std::to_string(limits_.bytes >> 20) + " MiB of memory");
  Step(1 + bytes / 256);
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

void RequireSize(size_t bytes) {
  if (current != nullptr) current->CheckSize(bytes);
}

Nesting::Nesting() {
  if (current != nullptr) current->Enter();
}

Nesting::~Nesting() {
  if (current != nullptr) current->Leave();
}

}  // namespace fastdecode::jinja
