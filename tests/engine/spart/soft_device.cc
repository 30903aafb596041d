#include "tests/engine/spart/soft_device.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <utility>
#include <variant>

#include "absl/strings/str_format.h"
#include "numa/check.h"
#include "tests/engine/spart/soft_work.h"

namespace fastdecode {

SoftDevice::SoftDevice(const Options& options) : options_(options) {}

SoftDevice::~SoftDevice() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    FD_CHECK(uploads_.empty(), "an upload is not awaited");
    FD_CHECK(registered_.empty(), "memory is still registered");
    stop_ = true;
  }
  changed_.notify_all();
  for (const auto& stream : streams_) stream->thread.join();
}

uint64_t SoftDevice::free_bytes() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return options_.memory_bytes - allocated_bytes_;
}

absl::StatusOr<std::byte*> SoftDevice::AllocateFrom(std::map<std::byte*, Piece>* pieces, size_t bytes) {
  constexpr size_t kAlignment = 256;
  Piece piece{std::make_unique<std::byte[]>(bytes + kAlignment), bytes};
  const auto address = reinterpret_cast<uintptr_t>(piece.memory.get());
  std::byte* const aligned = piece.memory.get() + (kAlignment - address % kAlignment) % kAlignment;
  pieces->emplace(aligned, std::move(piece));
  return aligned;
}

absl::StatusOr<std::byte*> SoftDevice::Allocate(size_t bytes) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (bytes > options_.memory_bytes - allocated_bytes_) {
    return absl::ResourceExhaustedError(absl::StrFormat("the software GPU has no %d bytes left", bytes));
  }
  allocated_bytes_ += bytes;
  return AllocateFrom(&device_, bytes);
}

bool SoftDevice::Idle() const {
  return std::all_of(streams_.begin(), streams_.end(),
                     [](const auto& stream) { return stream->launched.empty() && !stream->busy; });
}

// For the pipeline thread to start its next stage.
bool SoftDevice::Waits(const StreamThread& stream) {
  if (stream.wait == nullptr) return false;
  StepState& state = *stream.wait->state;  // the board may be the next step's already
  if (std::atomic_ref<uint32_t>(state.gave_up).load() != 0 || state.all_here != 0) return false;
  const uint64_t word = std::atomic_ref<uint64_t>(stream.wait->board->release).load();
  return ReleasedStage(word) < state.first + stream.wait->stage;
}

// As CUDA may.
void SoftDevice::AwaitIdle(std::unique_lock<std::mutex>* lock) {
  FD_CHECK(!hangs_, "a call waits for a GPU that hangs");
  ++waiting_calls_;
  changed_.wait(*lock, [this] {
    for (const auto& stream : streams_) FD_CHECK(!Waits(*stream), "a call waits for a step that waits for its stage");
    return Idle();
  });
  --waiting_calls_;
}

absl::StatusOr<std::byte*> SoftDevice::AllocatePinned(size_t bytes) {
  std::unique_lock<std::mutex> lock(mutex_);
  AwaitIdle(&lock);
  return AllocateFrom(&pinned_, bytes);
}

void SoftDevice::FreePinned(std::byte* memory) {
  std::unique_lock<std::mutex> lock(mutex_);
  AwaitIdle(&lock);
  const auto piece = pinned_.find(memory);
  FD_CHECK(piece != pinned_.end(), "freed memory that is not pinned");
  for (const auto& [handle, upload] : uploads_) {
    const bool outside = upload.pinned + upload.bytes <= memory || upload.pinned >= memory + piece->second.bytes;
    FD_CHECK(outside, "freed memory from which an upload is under way");
  }
  std::memset(memory, 0xa5, piece->second.bytes);
  pinned_.erase(piece);
}

absl::Status SoftDevice::Register(std::byte* memory, size_t bytes) {
  std::unique_lock<std::mutex> lock(mutex_);
  AwaitIdle(&lock);
  FD_CHECK(reinterpret_cast<uintptr_t>(memory) % 4096 == 0, "registered memory begins within a page");
  const auto next = registered_.upper_bound(memory);
  FD_CHECK(next == registered_.end() || memory + bytes <= next->first, "registered memory overlaps other");
  FD_CHECK(next == registered_.begin() || std::prev(next)->first + std::prev(next)->second <= memory,
           "registered memory overlaps other");
  registered_.emplace(memory, bytes);
  return absl::OkStatus();
}

void SoftDevice::Unregister(std::byte* memory) {
  std::unique_lock<std::mutex> lock(mutex_);
  AwaitIdle(&lock);
  FD_CHECK(registered_.erase(memory) == 1, "unregistered memory that is not registered");
}

bool SoftDevice::Holds(const std::map<std::byte*, Piece>& pieces, const std::byte* memory, size_t bytes) const {
  const auto next = pieces.upper_bound(const_cast<std::byte*>(memory));
  if (next == pieces.begin()) return false;
  const auto& [begin, piece] = *std::prev(next);
  return memory + bytes <= begin + piece.bytes;
}

absl::StatusOr<SPartDevice::UploadHandle> SoftDevice::BeginUpload(std::byte* to, const std::byte* pinned,
                                                                  size_t bytes) {
  UploadHandle handle;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    FD_CHECK(Holds(pinned_, pinned, bytes), "uploads from memory that is not pinned");
    FD_CHECK(Holds(device_, to, bytes), "uploads to memory that is not the device's");
    handle = reinterpret_cast<UploadHandle>(++uploads_begun_);
    uploads_.emplace(handle, PendingUpload{to, pinned, bytes});
  }
  std::memcpy(to, pinned, bytes);
  return handle;
}

absl::Status SoftDevice::AwaitUpload(UploadHandle handle) {
  const std::lock_guard<std::mutex> lock(mutex_);
  const auto found = uploads_.find(handle);
  FD_CHECK(found != uploads_.end(), "awaits an upload that is not under way");
  const PendingUpload& upload = found->second;
  FD_CHECK(std::memcmp(upload.to, upload.pinned, upload.bytes) == 0, "what is being uploaded was written to");
  uploads_.erase(found);
  return absl::OkStatus();
}

absl::StatusOr<SPartDevice::Stream> SoftDevice::MakeStream() {
  const std::lock_guard<std::mutex> lock(mutex_);
  streams_.push_back(std::make_unique<StreamThread>());
  StreamThread* const stream = streams_.back().get();  // streams_ itself may grow before the thread begins
  stream->thread = std::thread([this, stream] { RunStream(stream); });
  return static_cast<Stream>(streams_.size()) - 1;
}

absl::Status SoftDevice::BeginGraph(Stream stream, const std::string&) {
  FD_CHECK(recording_ < 0, "a graph is being made already");
  FD_CHECK(stream >= 0 && stream < static_cast<int>(streams_.size()), "no such stream");
  const std::lock_guard<std::mutex> lock(mutex_);
  recording_ = static_cast<int>(graphs_.size());
  graphs_.push_back({stream, {}});
  return absl::OkStatus();
}

absl::Status SoftDevice::Add(const DeviceWork& work) {
  FD_CHECK(recording_ >= 0, "work that belongs to no graph");
  graphs_[static_cast<size_t>(recording_)].works.push_back(work);
  return absl::OkStatus();
}

absl::StatusOr<SPartDevice::Graph> SoftDevice::EndGraph() {
  FD_CHECK(recording_ >= 0, "no graph is being made");
  return std::exchange(recording_, -1);
}

void SoftDevice::Launch(Graph graph) {
  std::unique_lock<std::mutex> lock(mutex_);
  FD_CHECK(graph >= 0 && graph < static_cast<int>(graphs_.size()) && graph != recording_, "no such graph");
  FD_CHECK(waiting_calls_ == 0, "launched while a call waits for all that was launched before");
  const RecordedGraph& launched = graphs_[static_cast<size_t>(graph)];
  const Stream stream = launched.stream;
  const int queue = options_.queues == 0 ? stream : stream % options_.queues;
  streams_[static_cast<size_t>(queue)]->launched.push_back(graph);
  changed_.notify_all();
  const bool waits = options_.launches_wait || launched.works.size() > options_.launch_room;
  if (waits) changed_.wait(lock, [this] { return Idle(); });
}

absl::Status SoftDevice::Check() {
  const std::lock_guard<std::mutex> lock(mutex_);
  FD_CHECK(waiting_calls_ == 0, "asks a device that may answer when a call is over which waits for all that runs");
  return broken_.empty() ? absl::OkStatus() : absl::InternalError(broken_);
}

absl::Status SoftDevice::Synchronize() {
  std::unique_lock<std::mutex> lock(mutex_);
  FD_CHECK(!hangs_, "synchronises with a GPU that hangs");
  changed_.wait(lock, [this] { return Idle(); });
  return broken_.empty() ? absl::OkStatus() : absl::InternalError(broken_);
}

void SoftDevice::Break(const std::string& why) {
  const std::lock_guard<std::mutex> lock(mutex_);
  broken_ = why;
}

uint64_t SoftDevice::overtaken() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return overtaken_;
}

void SoftDevice::Hang() {
  const std::lock_guard<std::mutex> lock(mutex_);
  hangs_ = true;
}

void SoftDevice::RunStream(StreamThread* stream) {
  SideThread side;
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    const auto has_work = [&] { return !stream->launched.empty() && !options_.begins_nothing && !hangs_; };
    changed_.wait(lock, [&] { return stop_ || has_work(); });
    if (!has_work()) return;
    RecordedGraph* const graph = &graphs_[static_cast<size_t>(stream->launched.front())];
    stream->launched.pop_front();
    stream->busy = true;
    RunGraph(graph, stream, &side, &lock);
    stream->busy = false;
    changed_.notify_all();
  }
}

// What is behind a wait begins only when that is nearly over, and what is behind a copy when it is over.
bool SoftDevice::MayOvertake(const std::vector<DeviceWork>& works, size_t i) {
  if (i == 0 || i >= works.size() || !IsKernel(works[i])) return false;
  return !std::holds_alternative<WaitArgs>(works[i - 1]) && !std::holds_alternative<DeviceCopy>(works[i - 1]);
}

bool SoftDevice::Overtakes(const std::vector<DeviceWork>& works, size_t i, uint64_t run) {
  return (i + run) % 2 == 0 && MayOvertake(works, i);
}

void SoftDevice::RunGraph(RecordedGraph* graph, StreamThread* stream, SideThread* side,
                          std::unique_lock<std::mutex>* lock) {
  const uint64_t run = graph->runs++;
  const std::vector<DeviceWork>& works = graph->works;
  for (size_t i = 0; i < works.size(); ++i) {
    if (!broken_.empty()) return;
    changed_.wait(*lock, [&] { return stop_ || !hangs_; });
    const DeviceWork* const before = Overtakes(works, i + 1, run) ? &works[i++] : nullptr;
    if (before != nullptr) ++overtaken_;
    stream->wait = std::get_if<WaitArgs>(&works[i]);
    changed_.notify_all();
    lock->unlock();
    const auto do_before = [&] { side->Do([&] { DoSoftWork(*before, options_.seed); }); };
    DoSoftWork(works[i], options_.seed, before == nullptr ? std::function<void()>() : do_before);
    lock->lock();
    stream->wait = nullptr;
  }
}

SideThread::~SideThread() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void SideThread::Do(const std::function<void()>& work) {
  std::unique_lock<std::mutex> lock(mutex_);
  work_ = &work;
  changed_.notify_all();
  changed_.wait(lock, [this] { return work_ == nullptr; });
}

void SideThread::Run() {
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stop_ || work_ != nullptr; });
    if (work_ == nullptr) return;
    lock.unlock();
    (*work_)();
    lock.lock();
    work_ = nullptr;
    changed_.notify_all();
  }
}

}  // namespace fastdecode
