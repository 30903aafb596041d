// Synthetic checkpoints, of fastdecode_bench.h.
#include "engine/model/synth.h"

#include <fastdecode/fastdecode_bench.h>

#include <new>
#include <string>
#include <vector>

#include "engine/api/sized_struct.h"
#include "engine/api/status.h"
#include "engine/model/shapes.h"

using fastdecode::ToStatus;

extern "C" {

const char* fd_synth_shape_at(size_t index) {
  static const std::vector<std::string> names = fastdecode::ShapeNames();
  return index < names.size() ? names[index].c_str() : nullptr;
}

static fd_synth DefaultSynth() {
  fd_synth synth = {};
  synth.seed = 1;
  synth.dtype = "bf16";
  synth.k_outlier_factor = 16;
  return synth;
}

void fd_synth_init(fd_synth* synth, size_t bytes) { fastdecode::InitSized(DefaultSynth(), bytes, synth); }

fd_status* fd_synthesize(const fd_synth* given) {
  fd_synth known = DefaultSynth();
  const fd_synth* const synth = &known;
  if (fd_status* bad = ToStatus(fastdecode::ReadSized("fd_synth", given, &known)); bad != nullptr) return bad;
  try {
    fastdecode::SynthOptions options;
    const auto text = [](const char* given) { return std::string(given == nullptr ? "" : given); };
    options.shape = text(synth->shape);
    options.layers = synth->layers;
    options.seed = synth->seed;
    options.out_dir = text(synth->out_dir);
    options.k_outliers = synth->k_outliers;
    options.k_outlier_factor = synth->k_outlier_factor;
    const std::string type = text(synth->dtype);
    if (type == "bf16") {
      options.dtype = fastdecode::DType::kBf16;
    } else if (type == "f16") {
      options.dtype = fastdecode::DType::kF16;
    } else if (type == "f32") {
      options.dtype = fastdecode::DType::kF32;
    } else {
      return new fd_status{FD_INVALID_ARGUMENT, "dtype: '" + type + "' is not bf16, f16 or f32"};
    }
    return ToStatus(fastdecode::WriteSynthetic(options, [&](int64_t done, int64_t total) {
      return synth->progress == nullptr ||
             synth->progress(synth->user, static_cast<uint64_t>(done), static_cast<uint64_t>(total)) != 0;
    }));
  } catch (const std::bad_alloc&) {
    return new fd_status{FD_RESOURCE_EXHAUSTED, "out of memory while a checkpoint was written"};
  }
}

}  // extern "C"
