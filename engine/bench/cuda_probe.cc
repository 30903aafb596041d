#include "engine/bench/cuda_probe.h"

#include <chrono>
#include <cstdint>
#include <new>
#include <thread>
#include <utility>

#include "engine/spart/cuda/row_buckets.h"
#include "numa/check.h"
#include "numa/clock.h"

namespace fastdecode {

namespace {

// Errors of what is measured show after so long.
constexpr uint64_t kProbeCheckNs = 100'000'000;

}  // namespace

// make(bucket): the graph to be measured.
template <class Make>
absl::StatusOr<double> CudaProbe::Measure(std::map<int, SPartDevice::Graph>* graphs, int rows, int times,
                                          const Make& make) {
  if (!graphs->contains(rows)) {
    const absl::StatusOr<SPartDevice::Graph> graph =
        make(spart_->buckets_[static_cast<size_t>(BucketFor(spart_->buckets_, static_cast<unsigned>(rows)))]);
    if (!graph.ok()) return graph.status();
    (*graphs)[rows] = *graph;
    // A first time unmeasured.
    spart_->device_->Launch(*graph);
    if (absl::Status bad = spart_->device_->Synchronize(); !bad.ok()) return bad;
  }
  const uint64_t start_ns = NowNs();
  for (int i = 0; i < times; ++i) spart_->device_->Launch(graphs->at(rows));
  const absl::Status done = spart_->device_->Synchronize();
  const uint64_t end_ns = NowNs();
  if (!done.ok()) return done;
  if (absl::Status bad = spart_->device_->Check(); !bad.ok())
    return bad;  // a graph that was not launched takes no time
  return static_cast<double>(end_ns - start_ns) / times;
}

absl::StatusOr<double> CudaProbe::MeasureGemms(int rows, int times) {
  CudaSPart::MicroBatch& batch = spart_->batches_[0];
  return Measure(&gemms_, rows, times, [&](unsigned bucket) {
    return MakeGemmGraph(spart_->model_, batch.memory, bucket, spart_->sampled_rows(bucket), batch.stream,
                         spart_->device_.get());
  });
}

absl::Status CudaProbe::MakeProbes() {
  std::vector<WaitProbe> probes;
  absl::StatusOr<std::byte*> pinned = spart_->device_->AllocatePinned(spart_->batches_.size() * sizeof(StepBoard));
  if (!pinned.ok()) return pinned.status();
  for (size_t i = 0; i < spart_->batches_.size(); ++i) {
    auto* const board = new (*pinned + i * sizeof(StepBoard)) StepBoard();
    const absl::StatusOr<WaitProbe> probe = WaitProbe::Make(spart_->batches_[i].stream, board, /*kernels=*/1,
                                                            spart_->model_.wait_bound_ns, spart_->device_.get());
    if (!probe.ok()) return probe.status();
    probes.push_back(*probe);
    // A first time, with nothing to wait for.
    probe->Release();
    spart_->device_->Launch(probe->graph());
  }
  if (absl::Status bad = spart_->device_->Synchronize(); !bad.ok()) return bad;
  probes_ = std::move(probes);
  return absl::OkStatus();
}

// The first micro-batch's probe is released already: it says when the GEMMs are over, since whoever waits for the
// device waits for the others, too.
absl::StatusOr<double> CudaProbe::MeasureGemmsBesideWaits(int rows, int times) {
  FD_CHECK(spart_->batches_.size() > 1 && gemms_.contains(rows), "GEMMs that were measured alone");
  if (probes_.empty()) {
    if (absl::Status bad = MakeProbes(); !bad.ok()) return bad;
  }
  for (const WaitProbe& probe : probes_) probe.Rearm();
  for (size_t i = 1; i < probes_.size(); ++i) spart_->device_->Launch(probes_[i].graph());
  std::this_thread::sleep_for(std::chrono::milliseconds(1));  // until they have begun
  const WaitProbe& end = probes_[0];
  end.Release();
  const uint64_t start_ns = NowNs();
  for (int i = 0; i < times; ++i) spart_->device_->Launch(gemms_.at(rows));
  spart_->device_->Launch(end.graph());
  absl::Status status;
  for (uint64_t checked_ns = start_ns; status.ok() && !end.is_over();) {
    if (NowNs() - checked_ns < kProbeCheckNs) continue;
    checked_ns = NowNs();
    status = spart_->device_->Check();
    if (checked_ns - start_ns > spart_->options_.stage_bound_ns) {
      spart_->gate_.Shut();
      return absl::DeadlineExceededError("the GPU is given up: it has not ended GEMMs beside a wait");
    }
  }
  const uint64_t end_ns = NowNs();
  if (probes_[1].gave_up()) status.Update(absl::DeadlineExceededError("GEMMs took longer than a wait beside them"));
  for (const WaitProbe& probe : probes_) probe.Release();
  status.Update(spart_->device_->Synchronize());
  status.Update(spart_->device_->Check());
  if (!status.ok()) return status;
  return static_cast<double>(end_ns - start_ns) / times;
}

absl::StatusOr<double> CudaProbe::MeasureAttention(int rows, int times) {
  CudaSPart::MicroBatch& batch = spart_->batches_[0];
  FD_CHECK(!batch.has_chunk, "the last step's items are those of a chunk");
  return Measure(&attention_, rows, times, [&](unsigned bucket) {
    return MakeAttentionGraph(spart_->model_, batch.memory, bucket, batch.stream, spart_->device_.get());
  });
}

absl::Status CudaProbe::MakeNearArea() {
  if (near_area_on_device_ != nullptr) return absl::OkStatus();
  const size_t send_bytes = spart_->buckets_.back() * spart_->model_.shape.hop_row_bytes();
  absl::StatusOr<std::byte*> memory =
      spart_->device_->Allocate(send_bytes + spart_->buckets_.back() * spart_->model_.shape.reply_row_bytes());
  if (!memory.ok()) return memory.status();
  const StepArea near = {*memory, *memory + send_bytes};
  absl::StatusOr<std::byte*> areas = spart_->device_->Allocate(sizeof(StepArea));
  if (!areas.ok()) return areas.status();
  absl::StatusOr<std::byte*> pinned = spart_->device_->AllocatePinned(sizeof(StepArea));
  if (!pinned.ok()) return pinned.status();
  new (*pinned) StepArea(near);
  const absl::Status uploaded = spart_->device_->Upload(*areas, *pinned, sizeof(StepArea));
  spart_->device_->FreePinned(*pinned);
  if (!uploaded.ok()) return uploaded;
  near_area_ = near;
  near_area_on_device_ = reinterpret_cast<StepArea*>(*areas);
  return absl::OkStatus();
}

absl::StatusOr<HomeArea> CudaProbe::NearArea() {
  if (absl::Status bad = MakeNearArea(); !bad.ok()) return bad;
  return HomeArea{near_area_.send, near_area_.receive};
}

absl::StatusOr<double> CudaProbe::MeasureCrossing(int rows, int times, Way way, bool by_copies) {
  CudaSPart::MicroBatch& batch = spart_->batches_[0];
  const StepArea& host = batch.memory.board_areas[0];
  FD_CHECK(host.send != nullptr && host.send != near_area_.send, "the last step's rows have their home at index 0");
  if (absl::Status bad = MakeNearArea(); !bad.ok()) return bad;
  return Measure(&crossings_[way == Way::kBack][by_copies], rows, times, [&](unsigned bucket) {
    Crossing crossing{way, batch.memory.areas, {}};
    if (by_copies) {
      const auto count = static_cast<size_t>(rows);  // a home's areas have no room for a bucket
      crossing.areas = near_area_on_device_;
      crossing.copy = way == Way::kThere
                          ? DeviceCopy{host.send, near_area_.send, count * spart_->model_.shape.hop_row_bytes()}
                          : DeviceCopy{const_cast<std::byte*>(near_area_.receive), host.receive,
                                       count * spart_->model_.shape.reply_row_bytes()};
    }
    return MakeCrossingGraph(spart_->model_, batch.memory, bucket, crossing, batch.stream, spart_->device_.get());
  });
}

}  // namespace fastdecode
