#include "engine/start/load_spart.h"

#include <algorithm>
#include <filesystem>
#include <future>
#include <system_error>
#include <utility>

#include "absl/strings/str_format.h"
#include "engine/pipeline/statistics.h"
#include "engine/spart/cpu/cpu_spart.h"
#include "engine/spart/cuda/cuda_spart.h"
#include "engine/spart/cuda/device_module.h"
#include "engine/spart/cuda/gpu_weights.h"
#include "engine/start/choices.h"
#include "numa/clock.h"
#include "numa/pinned_thread.h"

namespace fastdecode {

namespace {

// What the two kinds read from.
struct Model {
  const ModelSpec& spec;
  const Checkpoint& checkpoint;
  const ModelWeights& weights;
};

// Loading CUDA's libraries takes a second and some memory: not on hosts without NVIDIA's driver, of Linux or of WSL.
bool HasDriver() {
  std::error_code unknown;
  return std::filesystem::exists("/dev/nvidiactl", unknown) || std::filesystem::exists("/dev/dxg", unknown);
}

absl::StatusOr<std::unique_ptr<SPart>> LoadOnCpu(const Options& options, const Model& model, const SPartPlace& place) {
  PackOptions pack;
  pack.type = place.type;
  pack.node = place.node;
  pack.cores = place.all_cores;
  absl::StatusOr<PackedWeights> packed = PackWeights(model.spec, model.checkpoint, model.weights, pack);
  if (!packed.ok()) return packed.status();
  CpuSPartOptions cpu;
  cpu.type = place.type;
  cpu.isa = place.isa;
  cpu.batch_invariant = options.batch_invariant;
  cpu.micro_batches = options.micro_batches;
  cpu.rows_max = static_cast<int>(place.shape.max_rows);
  cpu.cores = place.s_cores;
  cpu.poll = place.poll;
  cpu.stage_homes_max = place.attends ? kMaxHomes : 0;
  // Made on a core of its own: what it touches first lies on its node. A lack of memory is thrown here.
  std::packaged_task<absl::StatusOr<std::unique_ptr<SPart>>()> make(
      [&] { return CpuSPart::Create(model.spec, place.shape, *std::move(packed), cpu); });
  PinnedThread("fd-s-make", place.s_cores[0], [&make] { make(); }).Join();
  return make.get_future().get();
}

absl::StatusOr<std::unique_ptr<SPart>> LoadOnGpu(const Options& options, const Model& model, SPartPlace place,
                                                 Logger* log) {
  if (options.gpu_wait_ms <= options.hop_timeout_ms) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--gpu-wait-ms: %d is not more than --hop-timeout-ms, %d: the GPU would give up a hop before its "
        "home is lost",
        options.gpu_wait_ms, options.hop_timeout_ms));
  }
  UploadOptions upload;
  upload.type = place.type;
  upload.cores = place.all_cores;
  uint64_t said = 0, said_ns = NowNs();
  upload.progress = [&](uint64_t done, uint64_t total) {  // every tenth that takes a while
    constexpr uint64_t kWhileNs = 500'000'000;
    if (const uint64_t tenth = 10 * done / total; tenth > said && NowNs() - said_ns >= kWhileNs) {
      said = tenth;
      said_ns = NowNs();
      log->Info(
          absl::StrFormat("weights: %d %% of %.2f GiB on the GPU", 10 * tenth, static_cast<double>(total) * 0x1p-30));
    }
  };
  absl::StatusOr<GpuWeights> weights =
      UploadWeights(model.spec, model.checkpoint, model.weights, upload, place.device.get());
  if (!weights.ok()) return weights.status();
  CudaSPartOptions cuda;
  cuda.micro_batches = options.micro_batches;
  cuda.rows_max = static_cast<int>(place.shape.max_rows);
  cuda.sequences_max = place.sequences_max;
  cuda.sequences_all = options.max_sequences;
  cuda.sequences_cached = CachedSequences(options);
  cuda.homes_max = kMaxHomes;
  cuda.is_home = place.is_home;
  cuda.batch_invariant = options.batch_invariant;
  cuda.push_rows_max = place.pushes ? options.prefill_chunk : 0;
  cuda.kv_bytes = static_cast<uint64_t>(options.gpu_kv_gib * 0x1p30);
  cuda.wait_bound_ns = static_cast<uint64_t>(options.gpu_wait_ms) * 1'000'000;
  cuda.stage_bound_ns = std::max(cuda.stage_bound_ns, cuda.wait_bound_ns);
  return CudaSPart::Create(model.spec, place.shape, std::move(place.device), *weights, cuda);
}

}  // namespace

absl::StatusOr<std::unique_ptr<SPartDevice>> ChooseDevice(const Options& options, Logger* log) {
  if (options.spart == Options::SPartBackend::kCpu) return nullptr;
  const bool looks = options.spart == Options::SPartBackend::kAuto && options.cuda_module.empty();
  if (looks && !HasDriver()) return nullptr;
  DeviceOptions device;
  device.index = options.gpu;
  device.streams = SplitMicroBatches(options);
  device.batch_invariant = options.batch_invariant;
  absl::StatusOr<std::string> module = options.cuda_module;
  if (module->empty()) module = FindDeviceModule();
  absl::StatusOr<std::unique_ptr<SPartDevice>> opened = module.ok() ? OpenDevice(*module, device) : module.status();
  if (opened.ok() || options.spart == Options::SPartBackend::kCuda) return opened;
  log->Info(absl::StrFormat("the S-Part runs on the CPU: %s", opened.status().message()));
  return nullptr;
}

absl::StatusOr<ModelFiles> OpenModelFiles(const Options& options, const ModelSpec& spec) {
  absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(options.model);
  if (!checkpoint.ok()) return checkpoint.status();
  absl::StatusOr<ModelWeights> weights = MapWeights(spec, *checkpoint);
  if (!weights.ok()) return weights.status();
  return ModelFiles{*std::move(checkpoint), *std::move(weights)};
}

absl::StatusOr<std::unique_ptr<SPart>> LoadSPart(const Options& options, const ModelSpec& spec, const ModelFiles& files,
                                                 SPartPlace place, Logger* log) {
  const uint64_t start_ns = NowNs();
  if (place.type == ElementType::kBf16 && files.weights.layers[0][TensorRole::kQ].tensor->dtype == DType::kF16) {
    log->Info("the checkpoint is f16; it computes in bf16 here (f32 keeps every bit: --compute f32)");
  }
  for (const auto& notes : {spec.notes, files.checkpoint.notes(), files.weights.notes}) {
    for (const std::string& note : notes) log->Warning(note);
  }
  for (const std::string& part : files.weights.skipped) {
    log->Info(absl::StrFormat("%s: %s not read: only the text model is", options.model, part));
  }
  const Model model{spec, files.checkpoint, files.weights};
  absl::StatusOr<std::unique_ptr<SPart>> spart =
      place.device == nullptr ? LoadOnCpu(options, model, place) : LoadOnGpu(options, model, std::move(place), log);
  if (!spart.ok()) return spart.status();
  log->Info(absl::StrFormat("loaded %s in %.1f s: %s", options.model, static_cast<double>(NowNs() - start_ns) * 1e-9,
                            (*spart)->Describe()));
  return spart;
}

}  // namespace fastdecode
