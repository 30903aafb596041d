// fastdecode synth: a checkpoint of random weights in a real model's shape.
#include <unistd.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <fastdecode/fastdecode_bench.hpp>
#include <memory>
#include <string>
#include <string_view>

#include "tools/commands.h"
#include "tools/interrupt.h"
#include "tools/option_values.h"

namespace fastdecode {

namespace {

struct SynthFlags {
  std::string shape;
  int layers = 0;
  uint64_t seed = 1;
  std::string dtype = "bf16";
  std::string out;
  std::string k_outliers;  // N or N:FACTOR
};

std::string ShapeList() {
  std::string names;
  for (size_t i = 0; const char* name = fd_synth_shape_at(i); ++i) names += (i == 0 ? "" : ", ") + std::string(name);
  return names;
}

// 0, which stops, after Ctrl-C.
int ShowProgress(void*, uint64_t done, uint64_t total) {
  if (isatty(STDERR_FILENO) != 0) {
    std::fprintf(stderr, "\r%3d %%  %" PRIu64 " / %" PRIu64 " MB",
                 static_cast<int>(100 * done / (total == 0 ? 1 : total)), done >> 20, total >> 20);
    if (done == total) std::fprintf(stderr, "\n");
  }
  return InterruptGuard::Signal() == 0;
}

void ParseOutliers(const std::string& text, fd_synth* synth) {
  const size_t colon = std::min(text.find(':'), text.size());
  const std::string_view all = text;
  if (ParseNumber(all.substr(0, colon), &synth->k_outliers) &&
      (colon == all.size() || ParseNumber(all.substr(colon + 1), &synth->k_outlier_factor))) {
    return;
  }
  throw Error(FD_INVALID_ARGUMENT, "--k-outliers: '" + text + "' is not N or N:FACTOR, such as 4:16");
}

void Synthesize(const SynthFlags& flags) {
  fd_synth synth;
  fd_synth_init(&synth, sizeof(synth));
  synth.shape = flags.shape.c_str();
  synth.layers = flags.layers;
  synth.seed = flags.seed;
  synth.dtype = flags.dtype.c_str();
  synth.out_dir = flags.out.c_str();
  synth.progress = &ShowProgress;
  if (!flags.k_outliers.empty()) ParseOutliers(flags.k_outliers, &synth);
  const InterruptGuard guard;
  try {
    ThrowIfError(fd_synthesize(&synth));
  } catch (const Error&) {
    ThrowIfInterrupted();
    throw;
  }
}

}  // namespace

void AddSynth(CLI::App& program) {
  auto flags = std::make_shared<SynthFlags>();
  CLI::App* command = program.add_subcommand("synth", "Write a checkpoint of random weights in a real model's shape");
  command->add_option("--shape", flags->shape, "one of: " + ShapeList())->required()->type_name("NAME");
  command->add_option("--layers", flags->layers, "instead of the shape's own number (0)")
      ->transform(Number(0, 1 << 20))
      ->type_name("N");
  command->add_option("--seed", flags->seed, "equal seeds give equal files")
      ->transform(AnyNumber<uint64_t>())
      ->type_name("N")
      ->capture_default_str();
  command->add_option("--dtype", flags->dtype, "bf16, f16 or f32")->type_name("TYPE")->capture_default_str();
  command
      ->add_option("--k-outliers", flags->k_outliers,
                   "channels of each KV head whose k is FACTOR (16) times larger and q as much smaller; even")
      ->type_name("N[:FACTOR]");
  command->add_option("--out", flags->out, "folder to make")->required()->type_name("DIR");
  command->callback([flags] { Synthesize(*flags); });
}

}  // namespace fastdecode
