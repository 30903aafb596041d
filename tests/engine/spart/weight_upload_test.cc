// Every element arrives, buffers are left alone while they are copied from, and nothing is left behind by errors.
#include "engine/spart/cuda/weight_upload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/model/convert.h"
#include "tests/engine/model/safetensors_text.h"
#include "tests/engine/model/scratch_dir.h"
#include "tests/engine/spart/soft_device.h"

namespace fastdecode {
namespace {

// A software GPU that copies as late as it may, and whose calls fail when they are told to. Counts.
class LateDevice : public SoftDevice {
 public:
  LateDevice() : SoftDevice({}) {}

  absl::StatusOr<std::byte*> AllocatePinned(size_t bytes) override {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (++pins_ == fail_pin) return absl::ResourceExhaustedError("nothing can be pinned");
      ++pinned_;
    }
    return SoftDevice::AllocatePinned(bytes);
  }
  void FreePinned(std::byte* memory) override {
    SoftDevice::FreePinned(memory);
    const std::lock_guard<std::mutex> lock(mutex_);
    --pinned_;
  }
  absl::StatusOr<UploadHandle> BeginUpload(std::byte* to, const std::byte* pinned, size_t bytes) override {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (++begun_ == fail_begin) return absl::InternalError("the copy does not begin");
    int& of_thread = of_threads_[std::this_thread::get_id()];
    most_ = std::max(most_, ++of_thread);
    const auto handle = reinterpret_cast<UploadHandle>(static_cast<uintptr_t>(begun_));
    late_.emplace(handle, Late{to, pinned, bytes});
    return handle;
  }
  absl::Status AwaitUpload(UploadHandle handle) override {
    Late late;
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      late = late_.at(handle);
      late_.erase(handle);
      --of_threads_[std::this_thread::get_id()];
      if (++awaited_ == fail_await) return absl::InternalError("the copy fails");
    }
    const absl::StatusOr<UploadHandle> now = SoftDevice::BeginUpload(late.to, late.pinned, late.bytes);
    return now.ok() ? SoftDevice::AwaitUpload(*now) : now.status();
  }

  // The how manieth; 0: none. Before it is used.
  int fail_pin = 0, fail_begin = 0, fail_await = 0;
  // Afterwards.
  int most_on_the_way_of_a_thread() const { return most_; }
  int begun() const { return begun_; }
  bool nothing_is_left() const { return pinned_ == 0 && late_.empty(); }

 private:
  struct Late {
    std::byte* to = nullptr;
    const std::byte* pinned = nullptr;
    size_t bytes = 0;
  };

  std::mutex mutex_;
  std::map<UploadHandle, Late> late_;
  std::map<std::thread::id, int> of_threads_;
  int pins_ = 0, pinned_ = 0, begun_ = 0, awaited_ = 0, most_ = 0;
};

class WeightUploadTest : public testing::Test {
 protected:
  static constexpr size_t kChunkBytes = 1000;

  // f32 tensors of odd sizes: less than a chunk, some of a part's, several parts.
  WeightUploadTest() {
    std::vector<std::string> entries;
    std::string buffer;
    for (const int64_t elements : {3, 1000, 17, 250, 4001, 999}) {
      entries.push_back(absl::StrCat("\"t", entries.size(), "\":{\"dtype\":\"F32\",\"shape\":[", elements,
                                     "],\"data_offsets\":[", buffer.size(), ",", buffer.size() + 4 * elements, "]}"));
      for (int64_t i = 0; i < elements; ++i) {
        const float value = static_cast<float>(buffer.size() % 9973) + 0.37f;
        buffer.append(reinterpret_cast<const char*>(&value), sizeof(value));
      }
    }
    scratch_.Write("model.safetensors", SafetensorsText(absl::StrCat("{", absl::StrJoin(entries, ","), "}"), buffer));
    checkpoint_ = std::make_unique<Checkpoint>(*Checkpoint::Open(scratch_.path()));
    for (size_t i = 0; i < entries.size(); ++i) {
      const TensorView* tensor = checkpoint_->Find(absl::StrCat("t", i));
      tensors_.push_back(WholeTensor(*tensor));
    }
    options_.chunk_bytes = kChunkBytes;
    options_.progress = [this](uint64_t done, uint64_t total) {
      EXPECT_GT(done, done_);
      EXPECT_LE(done, total);
      done_ = done;
      total_ = total;
    };
  }

  // Where each tensor went, in another order than the file's.
  absl::Status Upload(SoftDevice* device) {
    std::vector<UploadJob> jobs;
    for (const WeightView& view : tensors_) jobs.push_back({&view, *device->Allocate(view.tensor->bytes)});
    at_ = jobs;
    std::reverse(jobs.begin(), jobs.end());
    return UploadTensors(*checkpoint_, jobs, options_, device);
  }

  ScratchDir scratch_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::vector<WeightView> tensors_;
  std::vector<UploadJob> at_;
  UploadOptions options_;
  uint64_t done_ = 0, total_ = 0;
};

TEST_F(WeightUploadTest, EveryElementArrivesHoweverLate) {
  for (const ElementType type : {ElementType::kF32, ElementType::kBf16}) {
    for (const std::vector<int>& cores : {std::vector<int>{}, {-1}, {-1, -1, -1}, std::vector<int>(100, -1)}) {
      SCOPED_TRACE(absl::StrCat(ElementName(type), ", ", cores.size(), " cores"));
      options_.type = type;
      options_.cores = cores;
      done_ = 0;
      LateDevice device;
      const absl::Status uploaded = Upload(&device);
      ASSERT_TRUE(uploaded.ok()) << uploaded;
      uint64_t bytes = 0;
      for (const UploadJob& job : at_) {
        const auto elements = static_cast<size_t>(job.tensor->elements());
        std::vector<std::byte> expected(elements * ElementBytes(type));
        ConvertTo(type, *job.tensor, 0, job.tensor->elements(), expected.data());
        EXPECT_TRUE(std::equal(expected.begin(), expected.end(), job.to)) << job.tensor->tensor->name;
        bytes += expected.size();
      }
      EXPECT_EQ(done_, bytes) << "it says so when all is there";
      EXPECT_EQ(total_, bytes);
      EXPECT_TRUE(device.nothing_is_left());
      EXPECT_LE(device.most_on_the_way_of_a_thread(), 2);
    }
  }
}

TEST_F(WeightUploadTest, AChunkIsFilledWhileAnotherIsOnItsWay) {
  LateDevice device;
  ASSERT_TRUE(Upload(&device).ok());
  EXPECT_EQ(device.most_on_the_way_of_a_thread(), 2);
}

TEST_F(WeightUploadTest, AnErrorEndsItAndNothingIsLeft) {
  struct Failure {
    int LateDevice::*call;
    int number;
    const char* message;
  };
  for (const auto& [call, number, message] : {Failure{&LateDevice::fail_pin, 1, "nothing can be pinned"},
                                              {&LateDevice::fail_pin, 2, "nothing can be pinned"},
                                              {&LateDevice::fail_begin, 1, "the copy does not begin"},
                                              {&LateDevice::fail_begin, 6, "the copy does not begin"},
                                              {&LateDevice::fail_await, 1, "the copy fails"},
                                              {&LateDevice::fail_await, 6, "the copy fails"}}) {
    for (const size_t threads : {1, 2}) {
      SCOPED_TRACE(absl::StrCat(message, ", ", number, ", ", threads, " threads"));
      options_.cores.assign(threads, -1);
      done_ = 0;
      LateDevice device;
      device.*call = number;
      EXPECT_EQ(Upload(&device).message(), message);
      EXPECT_TRUE(device.nothing_is_left());
      EXPECT_TRUE(threads > 1 || device.begun() <= number + 1) << device.begun() << " of 28 chunks";
    }
  }
}

TEST(SoftDeviceDeathTest, SeesWhatIsDoneToAnUpload) {
  const auto begin = [](SoftDevice* device, std::byte** pinned) {
    *pinned = *device->AllocatePinned(16);
    return *device->BeginUpload(*device->Allocate(16), *pinned, 16);
  };
  const auto written_to = [&] {
    SoftDevice device({});
    std::byte* pinned = nullptr;
    const SPartDevice::UploadHandle upload = begin(&device, &pinned);
    pinned[15] = std::byte{1};
    device.AwaitUpload(upload).IgnoreError();
  };
  const auto freed = [&] {
    SoftDevice device({});
    std::byte* pinned = nullptr;
    begin(&device, &pinned);
    device.FreePinned(pinned);
  };
  const auto forgotten = [&] {
    SoftDevice device({});
    std::byte* pinned = nullptr;
    begin(&device, &pinned);
  };
  EXPECT_DEATH(written_to(), "what is being uploaded was written to");
  EXPECT_DEATH(freed(), "freed memory from which an upload is under way");
  EXPECT_DEATH(forgotten(), "an upload is not awaited");
}

}  // namespace
}  // namespace fastdecode
