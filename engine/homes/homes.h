#ifndef FASTDECODE_ENGINE_HOMES_HOMES_H_
#define FASTDECODE_ENGINE_HOMES_HOMES_H_

#include <array>
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/homes/retry_schedule.h"
#include "engine/pipeline/home_keeper.h"
#include "engine/pipeline/sequence.h"
#include "engine/pipeline/statistics.h"
#include "engine/rpart/home.h"
#include "engine/rpart/messages.h"
#include "engine/spart/spart.h"
#include "numa/core_plan.h"
#include "numa/log.h"
#include "numa/pinned_thread.h"
#include "rdma/bootstrap.h"
#include "rdma/endpoint.h"
#include "rdma/fault_link.h"
#include "rdma/link.h"
#include "rdma/link_monitor.h"

namespace fastdecode {

struct HomesOptions {
  std::vector<Endpoint> endpoints;
  int homes_min = 0;     // of the endpoints, so many with a home must be there at the start; 0: all, with all homes
  int recover_ms = 0;    // for the text of requests that have waited so long for a home
  FabricOptions fabric;  // of links to other hosts; with a GPU, the S-Part's is that one, and hold_gpu is set here
  CorePlan plan;         // of the homes of this process
  RPartShape shape;
  Isa isa = Isa::kNone;
  PollMode poll = PollMode::kSpin;
  bool park = true;
  bool one_team = false;  // the S-Part's threads attend to the homes of this process, as plan.home_threads says
  uint32_t sequences_max = 1 << 16;  // of one such home
  bool gpu_home = false;             // one of the endpoints is the S-Part's GPU
  int engine_node = -1;              // where the receive regions lie
  uint64_t engine_id = 0;
  std::optional<FaultOptions> fault;  // wraps every link
  Logger* logger = nullptr;
};

// The homes that an engine uses: those of this process and those of workers, their links, their return after a loss,
// and those that come after the start. Owns: local homes, the engine's ends of all links, the monitor, the control
// thread. Thread: any. The control thread takes lost and late homes in; it never holds the mutex while it connects.
// Bounded: kMaxHomes.
class Homes : public HomeKeeper {
 public:
  // Connects to all workers side by side, which takes milliseconds; local homes have places, but no memory yet. A
  // worker that says nothing is waited for for 10 s, with homes_min for 1 s once enough others are there; one that has
  // said hello has 10 s. With homes_min, a worker that is not there has one place, and comes when it can. Errors name
  // the endpoints that are at fault.
  static absl::StatusOr<std::unique_ptr<Homes>> Create(HomesOptions options);
  ~Homes() override;

  // Makes the local homes, and has the S-Part know every link's areas. `spart`: whose stages use these; null: nobody's.
  // `kv_bytes`: of each home of this process. Once, before Start.
  absl::Status MakeOwn(SPart* spart, const std::vector<uint64_t>& kv_bytes);

  // From now on homes that are up are announced: command(kAddHome) for each, at once and after each return; and those
  // that have not come yet: command(kExpectHome).
  // `replies`: of a home, all that the pipeline has ever had. Any thread.
  void Start(std::function<void(const PipelineCommand&)> command, std::function<uint64_t(int home)> replies);
  // No home is taken back any more. Links stay until the destructor.
  void Stop();

  // The largest home's pages, of those that are there by now; what a single sequence can have.
  uint64_t pages_max() const;
  std::string Describe() const;
  // Those that are not there, and why: "; home 1 (HOST:PORT) has not come yet: CAUSE". Empty: all are.
  std::string DescribeAbsent() const;
  struct Info {
    int index;
    bool up;
    bool draining;     // up, and its worker has said that it ends soon
    std::string name;  // "local, node 0" or "HOST:PORT, home 1"; "HOST:PORT" of a worker that has never been there
    std::string link;  // what it stands on; empty while it is down
    bool same_host;    // as this process: its clock is ours
    LinkLine line;     // what carries the link
    HomeDescription description;
    std::vector<int> cores;  // of a home of this process, else empty
    std::string absence;     // "was lost: CAUSE" or the like; empty while it is up
  };
  std::vector<Info> List() const;
  // What counters say of one home: it makes no text, and waits for no home.
  struct Glance {
    const char* name;  // Info's; lives as long as this
    bool up;
    uint64_t pages;   // 0 while it is not up
    uint64_t losses;  // so far
  };
  // It grows when a worker comes that has more than the one place that was kept for it. Indexes stay.
  size_t count() const { return count_.load(std::memory_order_acquire); }
  Glance Look(size_t index) const;  // REQUIRES: index < count()

  void OnHomeDraining(int home) override;
  void OnHomeLost(int home, uint64_t hops_posted, uint32_t paused) override;
  std::string Name(int home) override;
  std::string DescribeNoRoom(uint32_t tokens) override;

 private:
  static constexpr uint64_t kConnectTimeoutNs = 10'000'000'000;
  // So long a worker may take to say hello where others wait behind it: one that is silent because it is stopped, or
  // takes its memory, is not waited for any longer. One that has said hello works on the link, and has
  // kConnectTimeoutNs: cut short it would begin anew with each attempt, and might never come to the end.
  static constexpr uint64_t kHelloTimeoutNs = 1'000'000'000;

  // One home that the command line asks for. Its index is the pipeline's index of it.
  struct Slot {
    enum class State { kUp, kLost, kDown, kGivenUp };
    std::string place;           // its endpoint: what it is called before its worker has come for the first time
    std::string name;            // set once, by then; others may have pointers to either
    Endpoint endpoint;           // of the worker; or of this process
    uint32_t home_index = 0;     // at the worker
    std::unique_ptr<Home> home;  // of this process...
    size_t ordinal = 0;          // ...and its number among these
    State state = State::kDown;
    std::unique_ptr<EngineLink> link;
    bool has_come = false;          // has been up
    bool areas_registered = false;  // the link's, with the S-Part
    HomeDescription description;
    bool draining = false;                 // its worker has said that it ends soon
    uint64_t losses = 0;                   // how often its link was lost while it had sequences, or was not draining
    std::string loss;                      // why the last link was lost
    std::shared_ptr<RetrySchedule> retry;  // of attempts to get it back; that of all homes of its worker
    uint64_t attempt = 0;                  // the last one's number, of all attempts
    uint64_t replies_before = 0;           // when its link was made
    std::string failure;                   // of the last attempt to get it; changes with the mutex held
    uint64_t hops_posted = 0;              // ever, when the last link was lost...
    bool was_asked = false;                // ...some over that link

    const std::string& called() const { return name.empty() ? place : name; }
    std::string NameAtWorker() const { return place + ", home " + std::to_string(home_index); }
  };
  struct Unwatch {
    LinkMonitor* monitor;
    void operator()(LinkEnd* link) const { monitor->Remove(link); }
  };
  struct Made {
    std::unique_ptr<EngineLink> link;
    HomeDescription description;
    uint32_t homes_at_worker = 0;
    // The monitor keeps a worker's link alive until the home is put up, since registering its areas may take as long as
    // a step, and others may be waited for.
    std::unique_ptr<LinkEnd, Unwatch> watched = {};
  };
  // What came of asking a worker for each of its homes: for one at least, unless the endpoint is of this process.
  using Asked = std::vector<absl::StatusOr<Made>>;

  explicit Homes(HomesOptions options);
  std::vector<Asked> AskWorkers();
  Asked AskWorker(const Endpoint& endpoint, uint64_t hello_timeout_ns);
  size_t CountThere(const std::vector<Asked>& asked) const;  // endpoints with a home
  absl::Status CheckEnough(const std::vector<Asked>& asked) const;
  static Slot WorkersPlace(const Endpoint& endpoint, uint32_t home_index);
  absl::Status MakePlaces(const Endpoint& endpoint, Asked asked);
  absl::Status MakeOwnPlaces(const Endpoint& endpoint);
  absl::Status MakeLocalHome(Slot& slot, int ordinal, uint64_t kv_bytes);
  absl::StatusOr<Made> Connect(const Endpoint& endpoint, uint32_t home_index, uint64_t hello_timeout_ns);
  absl::StatusOr<Made> AttachLocal(size_t index);
  absl::StatusOr<Made> AttachInStages(size_t index);
  absl::StatusOr<Made> AttachGpu(size_t index);
  absl::StatusOr<Made> AttachAgain(size_t index);
  absl::Status CheckNew(const Slot& slot, const Made& made) const;
  absl::Status AddPlace(Slot slot);
  AreaRegistry* RegistryFor(const EngineLink& link);
  absl::Status RegisterAreas(EngineLink& link);
  void UnregisterAreas(EngineLink& link);
  void PutUp(Slot& slot, Made made);
  void LogLink(const Slot& slot);
  std::string NameOf(size_t index) const;
  std::string AbsenceOf(const Slot& slot) const;
  void Announce(size_t index);
  void ControlLoop();
  void LetGo(size_t index);
  void LetGoOfLost();
  bool TryDueHomes();
  bool IsNextOfItsWorker(size_t index) const;
  void TakeBack(size_t index);
  void Fail(size_t index, const absl::Status& status);
  void GiveUp(size_t index, Made made, const absl::Status& why);
  void AddSiblings(const Slot& first, uint32_t homes);
  void Expect(size_t index);

  HomesOptions options_;
  SPart* spart_ = nullptr;  // from MakeOwn on
  LinkMonitor monitor_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  // The first count_ are there, and stay. The thread in Create adds some, then the control thread does: a slot is
  // filled in before count_ is released, so that whoever acquires it sees the slot.
  std::array<std::unique_ptr<Slot>, kMaxHomes> slots_;
  std::atomic<size_t> count_ = 0;
  std::function<void(const PipelineCommand&)> command_;
  std::function<uint64_t(int)> replies_;
  std::atomic<uint64_t> next_epoch_ = 1;
  uint64_t attempts_ = 0;  // to get homes back; control thread
  bool stopping_ = false;
  PinnedThread control_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_HOMES_HOMES_H_
