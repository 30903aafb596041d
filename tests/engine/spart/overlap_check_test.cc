// Devices whose streams run side by side, and others.
#include "engine/spart/cuda/overlap_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/engine/spart/soft_device.h"

namespace fastdecode {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kLongNs = 60'000'000'000, kShortNs = 50'000'000;
constexpr uint64_t kAllLaunchedNs = 1'000'000'000;  // on a busy machine, too

constexpr size_t kKernels = 100;

absl::Status Check(int streams, uint64_t wait_ns, const SoftDevice::Options& options, uint64_t begin_ns = kLongNs) {
  SoftDevice device(options);
  std::vector<SPartDevice::Stream> made;
  for (int i = 0; i < streams; ++i) made.push_back(*device.MakeStream());
  return CheckStepsOverlap(made, kKernels, {wait_ns, begin_ns}, &device);
}

TEST(OverlapCheckTest, StreamsThatRunSideBySideAreGood) {
  for (const int streams : {1, 2, 5}) EXPECT_EQ(Check(streams, kLongNs, {}), absl::OkStatus()) << streams;
}

TEST(OverlapCheckTest, LaunchesThatWaitAreNot) {
  SoftDevice::Options options;
  options.launches_wait = true;
  for (const int streams : {1, 2}) {
    const absl::Status status = Check(streams, kShortNs, options);
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr("launching did not return in 0.1 s"));
    EXPECT_THAT(status.message(), HasSubstr("CUDA_LAUNCH_BLOCKING"));
  }
}

// A step's kernels that the device has no room for until those before are over.
TEST(OverlapCheckTest, StepsThatDoNotFitTheQueueAreNot) {
  SoftDevice::Options options;
  options.launch_room = kKernels + 10;
  EXPECT_EQ(Check(2, kLongNs, options), absl::OkStatus());
  options.launch_room = kKernels - 1;
  EXPECT_THAT(Check(2, kShortNs, options).message(), HasSubstr("launching did not return in 0.1 s"));
}

TEST(OverlapCheckTest, FewerQueuesThanStreamsAreNot) {
  SoftDevice::Options options;
  options.queues = 2;
  EXPECT_EQ(Check(2, kLongNs, options), absl::OkStatus());
  for (const int streams : {3, 4}) {
    const absl::Status status = Check(streams, kAllLaunchedNs, options);
    EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr("another's step did not end in 1.0 s"));
    EXPECT_THAT(status.message(), HasSubstr("--micro-batches"));
  }
}

TEST(OverlapCheckTest, ADeviceThatBeginsNothingIsNotWaitedFor) {
  SoftDevice::Options options;
  options.begins_nothing = true;
  for (const int streams : {1, 2}) {
    const absl::Status status = Check(streams, kShortNs, options, /*begin_ns=*/3 * kShortNs);
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    EXPECT_THAT(status.message(), HasSubstr("the GPU began nothing in 0.2 s"));
  }
}

TEST(OverlapCheckTest, ABrokenDeviceSaysSoItself) {
  SoftDevice device({});
  const SPartDevice::Stream stream = *device.MakeStream();
  device.Break("out of order");
  EXPECT_THAT(CheckStepsOverlap({stream}, kKernels, OverlapBounds(), &device).message(), HasSubstr("out of order"));
}

}  // namespace
}  // namespace fastdecode
