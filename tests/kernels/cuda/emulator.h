#ifndef FASTDECODE_TESTS_KERNELS_CUDA_EMULATOR_H_
#define FASTDECODE_TESTS_KERNELS_CUDA_EMULATOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/cuda/simt.h"
#include "tests/kernels/cuda/emulated_block.h"
#include "tests/kernels/cuda/fiber.h"
#include "tests/kernels/cuda/simt_emulator.h"

namespace fastdecode::simt_internal {

// Who draws lots: cheap, and even enough.
class Lots {
 public:
  explicit Lots(uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u + 0xD1B54A32D192ED03u) {}
  uint32_t Below(uint32_t end) {
    state_ = state_ * 6364136223846793005u + 1442695040888963407u;
    return static_cast<uint32_t>((state_ >> 32) * end >> 32);
  }

 private:
  uint64_t state_;
};

// What this host thread runs now; null: no kernel.
// Read at every step: so in the static block, of which a library that is opened later may have a few words.
[[gnu::tls_model("initial-exec")]] extern constinit thread_local Runner* running;

// The kernels of one host thread: behind Emulate, and behind what simt.h declares.
class Emulator {
 public:
  static Emulator& OfThisThread() {
    thread_local Emulator emulator;
    return emulator;
  }
  ~Emulator();

  void Run(const Launch& launch, const EmulatorOptions& options);

  // What a thread of a kernel calls.
  void SyncBlock(simt::Site here);
  // The last lane of the warp to come does together(what each of them has given), before any goes on.
  void Meet(void* given, void (*together)(void* const* given), const char* what, simt::Site here);
  [[noreturn]] void Fail(const char* rule, simt::Site here, const std::string& what) const;  // emulator_reports.cc
  void AwaitKernelBefore();
  void CheckAwaited(simt::Site here) const;
  void MaybePreempt();
  void Pause();
  void Released(const uint64_t* word) const {
    if (options_->on_release) options_->on_release(word);
  }

 private:
  static void RunThreads(void* self);

  void OpenBlock();
  void ThreadReturned();
  Runner* StartThread(unsigned ticket);
  Runner* Next(bool by_lot);
  void GoOn() { SwitchTo(Next(lots_.Below(lots_one_in_) == 0)); }
  void LetOthersGoOn();
  void SwitchTo(Runner* next);

  // emulator_reports.cc
  void CheckShared(simt::Site here) const;
  [[noreturn]] void ReportDeadlock() const;

  const Launch* launch_ = nullptr;
  const EmulatorOptions* options_ = nullptr;
  bool before_is_over_ = false;
  Lots lots_{0};
  uint32_t lots_one_in_ = 1;  // else those go on who became ready last: a warp runs ahead, and stays in the caches
  std::vector<uint32_t> blocks_left_;
  std::vector<Block*> open_;
  unsigned unstarted_ = 0;      // threads of open blocks
  std::vector<Runner*> ready_;  // in the middle of a thread, may go on
  std::vector<Runner*> idle_;
  bool stopping_ = false;
  uint64_t pauses_ = 0;

  // Kept from launch to launch.
  Fiber main_;
  std::vector<std::unique_ptr<Runner>> runners_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<Block*> spare_;
};

inline std::string PlaceOf(simt::Site site) {
  return std::string(site.file_name()) + ":" + std::to_string(site.line());
}

}  // namespace fastdecode::simt_internal

#endif  // FASTDECODE_TESTS_KERNELS_CUDA_EMULATOR_H_
