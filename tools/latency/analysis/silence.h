#ifndef FASTDECODE_TOOLS_LATENCY_ANALYSIS_SILENCE_H_
#define FASTDECODE_TOOLS_LATENCY_ANALYSIS_SILENCE_H_

#include <cstdint>
#include <vector>

#include "tools/latency/analysis/timeline.h"
#include "tools/latency/recording.h"

namespace fastdecode {

// A time in which an engine that had requests ended nothing at all, of any thread: it was stopped, or hung.
struct Silence {
  uint64_t start_ns = 0, end_ns = 0;
  bool at_end = false;  // the recording ended in it
  double ns() const { return static_cast<double>(end_ns - start_ns); }
};

// By time. Where the scheduler held the pipeline, nobody had a row, or a home was waited for that was lost, it is no
// silence; nor where such times are usual, as they are between the stages of a large model.
std::vector<Silence> FindSilences(const Recording& recording, const Timeline& timeline);

// In which the recording ended; 0: in none.
double SilentAtEndNs(const std::vector<Silence>& silences);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_ANALYSIS_SILENCE_H_
