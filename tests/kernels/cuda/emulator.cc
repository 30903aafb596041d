#include "tests/kernels/cuda/emulator.h"

#include <immintrin.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <utility>

#include "numa/check.h"

namespace fastdecode::simt_internal {

using simt::kWarp;
using simt::Site;

constinit thread_local Runner* running = nullptr;

namespace {

constexpr char kSameSync[] = "every thread of a block comes to the same SyncBlock";
constexpr char kSameShuffle[] = "every lane of a warp comes to the same shuffle";
constexpr char kReturns[] = "no thread returns while others synchronise";

bool Same(Site a, Site b) { return a.line() == b.line() && a.file_name() == b.file_name(); }

}  // namespace

void Run(const Launch& launch, const EmulatorOptions& options) { Emulator::OfThisThread().Run(launch, options); }

Emulator::~Emulator() {
  stopping_ = true;
  for (const std::unique_ptr<Runner>& runner : runners_) main_.SwitchTo(&runner->fiber);
}

void Emulator::Run(const Launch& launch, const EmulatorOptions& options) {
  const LaunchShape& shape = launch.shape;
  FD_CHECK(running == nullptr, "a kernel launches none");
  FD_CHECK(shape.blocks_x > 0 && shape.blocks_y > 0 && shape.blocks_y <= 65535, "a launch has blocks");
  FD_CHECK(shape.threads == 1 || (shape.threads > 0 && shape.threads % kWarp == 0), "a block is one thread, or warps");
  FD_CHECK(shape.threads <= Block::kThreadsMax && shape.shared_bytes <= 99 * 1024, "every GPU can have such blocks");
  launch_ = &launch;
  options_ = &options;
  before_is_over_ = false;
  lots_ = Lots(options.seed);
  constexpr uint32_t kLotsOneIn[] = {1, 4, 32, 128};
  lots_one_in_ = kLotsOneIn[lots_.Below(std::size(kLotsOneIn))];
  blocks_left_.resize(size_t{shape.blocks_x} * shape.blocks_y);
  for (size_t i = 0; i < blocks_left_.size(); ++i) blocks_left_[i] = static_cast<uint32_t>(i);
  while (open_.size() < options.blocks_in_flight && !blocks_left_.empty()) OpenBlock();
  GoOn();  // comes back when all threads have returned
}

void Emulator::OpenBlock() {
  std::swap(blocks_left_[lots_.Below(static_cast<uint32_t>(blocks_left_.size()))], blocks_left_.back());
  if (spare_.empty()) spare_.push_back(blocks_.emplace_back(std::make_unique<Block>()).get());
  Block* const block = spare_.back();
  spare_.pop_back();
  block->Begin(launch_->shape, blocks_left_.back());
  blocks_left_.pop_back();
  open_.push_back(block);
  unstarted_ += launch_->shape.threads;
}

// ---- Who runs

void Emulator::RunThreads(void* self) {
  Emulator& emulator = *static_cast<Emulator*>(self);
  Runner* const runner = running;
  while (!emulator.stopping_) {
    emulator.launch_->run(emulator.launch_->work);
    emulator.ThreadReturned();
    emulator.idle_.push_back(runner);
    emulator.GoOn();
  }
}

void Emulator::ThreadReturned() {
  Block& block = *running->block;
  Warp& warp = block.warps[running->thread / kWarp];
  if (!block.waiting.empty()) Fail(kReturns, block.site, "others wait at this SyncBlock");
  if (warp.arrived > 0) Fail(kReturns, warp.site, "others of its warp wait at this shuffle");
  if (!running->copies.none()) Fail("a thread waits for its copies", running->site, "it returns and has not");
  CheckAwaited(running->site);
  ++warp.returned;
  if (++block.returned == launch_->shape.threads) {
    CheckShared(running->site);
    std::swap(*std::find(open_.begin(), open_.end(), &block), open_.back());
    open_.pop_back();
    spare_.push_back(&block);
    if (!blocks_left_.empty()) OpenBlock();
  }
  running->block = nullptr;
}

// The runner that is to go on: one of those that may, or one for a thread that has not begun; the one that became ready
// last, unless by lot. Null: the launch is over.
Runner* Emulator::Next(bool by_lot) {
  const auto ready = static_cast<uint32_t>(ready_.size());
  if (ready + unstarted_ == 0) {
    if (!open_.empty()) ReportDeadlock();
    return nullptr;
  }
  const uint32_t ticket = ready > 0 && !by_lot ? ready - 1 : lots_.Below(ready + unstarted_);
  if (ticket >= ready) return StartThread(ticket - ready);
  Runner* const next = std::exchange(ready_[ticket], ready_.back());
  ready_.pop_back();
  return next;
}

Runner* Emulator::StartThread(unsigned ticket) {
  if (idle_.empty()) {
    idle_.push_back(
        runners_.emplace_back(std::make_unique<Runner>(static_cast<unsigned>(runners_.size()), &RunThreads, this))
            .get());
  }
  Runner* const runner = idle_.back();
  idle_.pop_back();
  size_t b = 0;
  for (; ticket >= open_[b]->unstarted.size(); ++b) ticket -= static_cast<unsigned>(open_[b]->unstarted.size());
  std::vector<uint16_t>& unstarted = open_[b]->unstarted;
  runner->block = open_[b];
  runner->waits_at = nullptr;
  runner->awaited = false;
  runner->site = {};
  runner->thread = std::exchange(unstarted[ticket], unstarted.back());
  unstarted.pop_back();
  --unstarted_;
  return runner;
}

void Emulator::SwitchTo(Runner* next) {
  Runner* const self = running;
  if (next == self) return;
  running = next;
  (self == nullptr ? main_ : self->fiber).SwitchTo(next == nullptr ? &main_ : &next->fiber);
}

void Emulator::MaybePreempt() {
  constexpr uint32_t kOneIn = 4;
  if (ready_.size() + unstarted_ > 0 && lots_.Below(kOneIn) == 0) LetOthersGoOn();
}

void Emulator::LetOthersGoOn() {
  ready_.push_back(running);
  SwitchTo(Next(/*by_lot=*/true));
}

void Emulator::Pause() {
  constexpr uint64_t kYieldEvery = 64;  // what it waits for may be another thread of the host
  _mm_pause();
  if (++pauses_ % kYieldEvery == 0) std::this_thread::yield();
  LetOthersGoOn();
}

// ---- The kernel before

void Emulator::AwaitKernelBefore() {
  running->awaited = true;
  if (before_is_over_) return;
  before_is_over_ = true;
  if (options_->kernel_before) options_->kernel_before();
}

void Emulator::CheckAwaited(Site here) const {
  if (options_->awaits && !running->awaited) Fail("a thread awaits the kernel before", here, "it has not");
}

// ---- Synchronisation

void Emulator::SyncBlock(Site here) {
  Block& block = *running->block;
  running->waits_at = "SyncBlock";
  running->site = here;
  if (block.returned > 0) Fail(kReturns, here, std::to_string(block.returned) + " of its block have");
  if (block.waiting.empty()) block.site = here;
  if (!Same(block.site, here)) Fail(kSameSync, here, "others wait at " + PlaceOf(block.site));
  block.waiting.push_back(running);
  if (block.waiting.size() == launch_->shape.threads) {
    CheckShared(here);
    ready_.insert(ready_.end(), block.waiting.begin(), block.waiting.end());
    block.waiting.clear();
  }
  GoOn();
}

void Emulator::Meet(void* given, void (*together)(void* const* given), const char* what, Site here) {
  Runner* const self = running;
  Warp& warp = self->block->warps[self->thread / kWarp];
  self->waits_at = what;
  self->site = here;
  if (launch_->shape.threads % kWarp != 0) Fail(kSameShuffle, here, "its warp has one lane only");
  if (warp.returned > 0) Fail(kReturns, here, std::to_string(warp.returned) + " of its warp have");
  if (warp.arrived == 0) warp.site = here;
  if (!Same(warp.site, here)) Fail(kSameShuffle, here, "others wait at " + PlaceOf(warp.site));
  warp.given[self->thread % kWarp] = given;
  warp.lanes[warp.arrived++] = self;
  if (warp.arrived == kWarp) {
    together(warp.given);
    ready_.insert(ready_.end(), std::begin(warp.lanes), std::end(warp.lanes));
    warp.arrived = 0;
  }
  GoOn();
}

}  // namespace fastdecode::simt_internal
