#include "engine/spart/cuda/weight_upload.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <mutex>
#include <optional>
#include <utility>

#include "numa/parallel_for.h"

namespace fastdecode {

namespace {

// These fill any bus; more would pin more memory.
constexpr size_t kThreadsMax = 32;
// Of a part. Few: threads end together. Several: giving pages back interrupts all cores that run the others.
constexpr int64_t kChunksPerPart = 8;

// What a thread takes at once: elements of a tensor.
struct Part {
  UploadJob job;
  int64_t first, count;
};

// Keeps the first error of several threads.
class FirstError {
 public:
  void Note(absl::Status status) {
    if (status.ok()) return;
    const std::lock_guard<std::mutex> lock(mutex_);
    first_.Update(std::move(status));
    failed_.store(true, std::memory_order_relaxed);
  }
  bool failed() const { return failed_.load(std::memory_order_relaxed); }
  absl::Status Get() const { return first_; }

 private:
  std::mutex mutex_;
  absl::Status first_;
  std::atomic<bool> failed_{false};
};

// Threads draw parts until there are none left. Each has two buffers: one is filled while the other is on its way.
class TensorUpload {
 public:
  TensorUpload(const Checkpoint& checkpoint, const UploadOptions& options, SPartDevice* device)
      : checkpoint_(checkpoint),
        options_(options),
        device_(device),
        element_bytes_(ElementBytes(options.type)),
        chunk_(static_cast<int64_t>(options.chunk_bytes / element_bytes_)) {}

  void Add(const UploadJob& job) {
    const int64_t elements = job.tensor->elements(), most = kChunksPerPart * chunk_;
    for (int64_t first = 0; first < elements; first += most) {
      parts_.push_back({job, first, std::min(most, elements - first)});
    }
    total_ += static_cast<uint64_t>(elements) * element_bytes_;
  }

  absl::Status Run() {
    std::vector<int> cores = options_.cores;
    cores.resize(std::min({cores.size(), kThreadsMax, parts_.size()}));
    ParallelFor("fd-upload", cores, std::max<int64_t>(1, static_cast<int64_t>(cores.size())),
                [this](int64_t) { Work(); });
    return error_.Get();
  }

 private:
  struct Buffer {
    std::byte* memory = nullptr;  // pinned when it is first filled
    std::optional<SPartDevice::UploadHandle> copy;
    uint64_t bytes = 0;  // that are on their way
  };

  void Work() {
    std::array<Buffer, 2> buffers;
    error_.Note(UploadParts(&buffers));
    for (Buffer& buffer : buffers) {
      error_.Note(Await(&buffer));
      if (buffer.memory != nullptr) device_->FreePinned(buffer.memory);
    }
  }

  absl::Status UploadParts(std::array<Buffer, 2>* buffers) {
    size_t sent = 0;
    for (size_t i = next_.fetch_add(1); i < parts_.size() && !error_.failed(); i = next_.fetch_add(1)) {
      const Part& part = parts_[i];
      for (int64_t done = 0; done < part.count; done += chunk_) {
        Buffer& buffer = (*buffers)[sent++ % buffers->size()];
        if (absl::Status bad = Await(&buffer); !bad.ok()) return bad;
        const int64_t count = std::min(chunk_, part.count - done);
        if (absl::Status bad = Send(part.job, part.first + done, count, &buffer); !bad.ok()) return bad;
      }
      DropPages(part);
    }
    return absl::OkStatus();
  }

  // What is not in the file's order is read again by others; its pages stay.
  void DropPages(const Part& part) {
    const WeightView& view = *part.job.tensor;
    if (!view.contiguous()) return;
    const int64_t file_bytes = DTypeBytes(view.tensor->dtype), first = view.first * view.columns + part.first;
    checkpoint_.DropPages(*view.tensor, static_cast<size_t>(first * file_bytes),
                          static_cast<size_t>(part.count * file_bytes));
  }

  absl::Status Send(const UploadJob& job, int64_t first, int64_t count, Buffer* buffer) {
    if (buffer->memory == nullptr) {
      absl::StatusOr<std::byte*> memory = device_->AllocatePinned(options_.chunk_bytes);
      if (!memory.ok()) return memory.status();
      buffer->memory = *memory;
    }
    ConvertTo(options_.type, *job.tensor, first, count, buffer->memory);
    buffer->bytes = static_cast<size_t>(count) * element_bytes_;
    absl::StatusOr<SPartDevice::UploadHandle> copy =
        device_->BeginUpload(job.to + static_cast<size_t>(first) * element_bytes_, buffer->memory, buffer->bytes);
    if (!copy.ok()) return copy.status();
    buffer->copy = *copy;
    return absl::OkStatus();
  }

  // Until what the buffer holds is on the device.
  absl::Status Await(Buffer* buffer) {
    if (!buffer->copy) return absl::OkStatus();
    if (absl::Status bad = device_->AwaitUpload(*std::exchange(buffer->copy, std::nullopt)); !bad.ok()) return bad;
    const std::lock_guard<std::mutex> lock(progress_mutex_);
    done_ += buffer->bytes;
    if (options_.progress) options_.progress(done_, total_);
    return absl::OkStatus();
  }

  const Checkpoint& checkpoint_;
  const UploadOptions& options_;
  SPartDevice* const device_;
  const size_t element_bytes_;
  const int64_t chunk_;  // elements
  std::vector<Part> parts_;
  uint64_t total_ = 0;

  std::atomic<size_t> next_{0};
  FirstError error_;
  std::mutex progress_mutex_;
  uint64_t done_ = 0;
};

}  // namespace

absl::Status UploadTensors(const Checkpoint& checkpoint, std::vector<UploadJob> jobs, const UploadOptions& options,
                           SPartDevice* device) {
  std::sort(jobs.begin(), jobs.end(),
            [](const UploadJob& a, const UploadJob& b) { return a.tensor->tensor->data < b.tensor->tensor->data; });
  TensorUpload upload(checkpoint, options, device);
  for (const UploadJob& job : jobs) upload.Add(job);
  return upload.Run();
}

}  // namespace fastdecode
