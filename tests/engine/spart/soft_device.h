#ifndef FASTDECODE_TESTS_ENGINE_SPART_SOFT_DEVICE_H_
#define FASTDECODE_TESTS_ENGINE_SPART_SOFT_DEVICE_H_

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "engine/spart/cuda/spart_device.h"

namespace fastdecode {

// A thread that does what it is given. Thread: one that gives.
class SideThread {
 public:
  SideThread() : thread_([this] { Run(); }) {}
  ~SideThread();
  // Comes back when it is done.
  void Do(const std::function<void()>& work);

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable changed_;
  const std::function<void()>* work_ = nullptr;  // null: done
  bool stop_ = false;
  std::thread thread_;
};

// A GPU in software: streams are threads, kernels run on emulated ones (tests/kernels/cuda/simt_emulator.h), memory is
// the host's. Strict where a GPU may be lucky: kernels may touch nothing but memory that was allocated or registered
// (checked for the areas), kernels may begin before the one before them, as far as they do not await it, pinned memory
// that is freed is filled with garbage, calls that may wait for all that was launched do so, an upload sees whether its
// source stayed as it was until it was awaited, and whatever breaks a rule of SPartDevice ends the process. Owns: all
// memory and threads. Thread: as SPartDevice.
class SoftDevice : public SPartDevice {
 public:
  struct Options {
    uint64_t seed = 1;  // of the order in which emulated threads run
    uint64_t memory_bytes = uint64_t{1} << 32;
    double read_rate = 0;  // what it says of its memory; bytes a second
    int queues = 0;        // which streams share; 0: each has its own
    bool launches_wait = false;
    size_t launch_room = SIZE_MAX;  // works of a graph; launching more waits, as where CUDA's queue is full
    bool begins_nothing = false;    // of what is launched
  };

  explicit SoftDevice(const Options& options);
  ~SoftDevice() override;

  std::string Describe() const override { return "software GPU"; }
  uint64_t free_bytes() const override;
  absl::StatusOr<std::byte*> Allocate(size_t bytes) override;
  absl::StatusOr<std::byte*> AllocatePinned(size_t bytes) override;
  void FreePinned(std::byte* memory) override;
  absl::Status Register(std::byte* memory, size_t bytes) override;
  void Unregister(std::byte* memory) override;
  absl::StatusOr<UploadHandle> BeginUpload(std::byte* to, const std::byte* pinned, size_t bytes) override;
  absl::Status AwaitUpload(UploadHandle upload) override;
  absl::StatusOr<double> MeasureReadRate() override { return options_.read_rate; }
  absl::StatusOr<Stream> MakeStream() override;
  absl::Status BeginGraph(Stream stream, const std::string& name) override;
  absl::Status Add(const DeviceWork& work) override;
  absl::StatusOr<Graph> EndGraph() override;
  void Launch(Graph graph) override;
  absl::Status Check() override;
  absl::Status Synchronize() override;

  // Whether work i may begin before the one before it, and whether it does in a graph's run of that number: of two runs
  // one after another, all that may.
  static bool MayOvertake(const std::vector<DeviceWork>& works, size_t i);
  static bool Overtakes(const std::vector<DeviceWork>& works, size_t i, uint64_t run);

  // How many works have begun before the one before them.
  uint64_t overtaken() const;

  // From now on the device is broken: work that is launched is not done, and Check says this.
  void Break(const std::string& why);
  // From now on it does nothing and says nothing, and whoever waits for it ends the process.
  void Hang();

 private:
  struct Piece {
    std::unique_ptr<std::byte[]> memory;
    size_t bytes = 0;
  };
  struct PendingUpload {
    std::byte* to = nullptr;
    const std::byte* pinned = nullptr;
    size_t bytes = 0;
  };
  struct StreamThread {
    std::deque<Graph> launched;  // under mutex_
    bool busy = false;
    const WaitArgs* wait = nullptr;  // what it does now, if that is waiting
    std::thread thread;
  };
  struct RecordedGraph {
    Stream stream = 0;
    std::vector<DeviceWork> works;
    uint64_t runs = 0;
  };

  absl::StatusOr<std::byte*> AllocateFrom(std::map<std::byte*, Piece>* pieces, size_t bytes);
  bool Holds(const std::map<std::byte*, Piece>& pieces, const std::byte* memory, size_t bytes) const;
  static bool Waits(const StreamThread& stream);
  bool Idle() const;
  void AwaitIdle(std::unique_lock<std::mutex>* lock);
  void RunStream(StreamThread* stream);
  void RunGraph(RecordedGraph* graph, StreamThread* stream, SideThread* side, std::unique_lock<std::mutex>* lock);

  const Options options_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::byte*, Piece> device_, pinned_;
  std::map<std::byte*, size_t> registered_;
  std::map<UploadHandle, PendingUpload> uploads_;
  uintptr_t uploads_begun_ = 0;
  uint64_t allocated_bytes_ = 0;
  std::vector<std::unique_ptr<StreamThread>> streams_;
  std::deque<RecordedGraph> graphs_;  // addresses stay
  int recording_ = -1;                // graph, or -1
  std::string broken_;
  bool hangs_ = false;
  uint64_t overtaken_ = 0;
  int waiting_calls_ = 0;  // in AwaitIdle
  bool stop_ = false;
};

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_ENGINE_SPART_SOFT_DEVICE_H_
