// What a kernel did wrong, and where its threads stood.
#include <cxxabi.h>

#include <cstdlib>
#include <map>
#include <memory>
#include <string>

#include "numa/check.h"
#include "tests/kernels/cuda/emulator.h"

namespace fastdecode::simt_internal {

using simt::Site;

namespace {

std::string Demangled(const std::type_info& type) {
  const std::unique_ptr<char, void (*)(void*)> name(abi::__cxa_demangle(type.name(), nullptr, nullptr, nullptr),
                                                    std::free);
  return name == nullptr ? type.name() : name.get();
}

}  // namespace

void Emulator::CheckShared(Site here) const {
  if (!running->block->shared.intact()) {
    Fail("a block stays within its shared memory", here, "found here, or where it returned: the damage came before");
  }
}

void Emulator::Fail(const char* rule, Site here, const std::string& what) const {
  const LaunchShape& shape = launch_->shape;
  const auto number = [](unsigned n) { return std::to_string(n); };
  const std::string message = "kernel of " + Demangled(*launch_->args) + ", block (" + number(running->block->x) +
                              ", " + number(running->block->y) + ") of (" + number(shape.blocks_x) + ", " +
                              number(shape.blocks_y) + "), thread " + number(running->thread) + " of " +
                              number(shape.threads) + ": " + what;
  CheckFailed(here.file_name(), static_cast<int>(here.line()), rule, message.c_str());
}

// Nobody may go on. Where the threads of one block are, as a thread of it.
void Emulator::ReportDeadlock() const {
  std::map<std::string, unsigned> places;
  const Block* const block = open_.front();
  for (const std::unique_ptr<Runner>& runner : runners_) {
    if (runner->block != block) continue;
    ++places[std::string(runner->waits_at) + " at " + PlaceOf(runner->site)];
    running = runner.get();
  }
  std::string what = std::to_string(block->returned) + " threads of its block have returned";
  for (const auto& [place, threads] : places) what += ", " + std::to_string(threads) + " wait for ever: " + place;
  Fail("somebody can go on", running->site, what);
}

}  // namespace fastdecode::simt_internal
