#ifndef FASTDECODE_TOOLS_LATENCY_EXPORT_SAVED_RESULT_H_
#define FASTDECODE_TOOLS_LATENCY_EXPORT_SAVED_RESULT_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "nlohmann/json.hpp"
#include "tools/latency/result.h"

namespace fastdecode {

// What a file of export_json.h says of a distribution. All of it but `samples_ns` and `unfinished_ns` is of all samples.
struct SavedDistribution {
  uint64_t count = 0, unfinished = 0;
  std::optional<uint64_t> min_ns, max_ns;  // nothing: no sample
  std::optional<double> mean_ns, stdev_ns;
  std::optional<uint64_t> p50_ns, p90_ns, p99_ns, p999_ns;  // nothing: withheld
  struct AtLeast {
    std::optional<uint64_t> p50, p90, p99, p999;  // of those that lie among unfinished ones
  };
  AtLeast at_least_ns;
  Uncertainties uncertainty;
  std::vector<uint64_t> samples_ns;  // ascending; all, or kSavedSamplesMax that stand for equal shares (ThinSamples)
  std::vector<uint64_t> unfinished_ns;  // the same of what had not ended: how long it had taken so far
};

struct SavedPhase {
  std::string name, where;  // together they are its key
  SavedDistribution ns;
  double share = 0;
  std::string note;
};

struct SavedRequests {
  std::string start;  // "intended", "submitted"
  uint64_t requests = 0, failed = 0, unfinished = 0;
  SavedDistribution ttft_ns, tpot_ns, itl_ns, e2e_ns;
};

// A LatencyResult out of a file. Fields are as there; a figure that the file has as null is NaN.
struct SavedResult {
  std::string command;
  nlohmann::json provenance, engine, recording_cost;
  uint64_t start_ns = 0, end_ns = 0;
  uint64_t events = 0, lost_events = 0;
  uint64_t steps = 0, tokens = 0;
  std::vector<SavedPhase> phases;
  CriticalPath critical_path;
  double s_busy = 0, r_busy = 0, overlap = 0;
  std::vector<Bubble> bubbles;
  std::vector<HomeFigures> homes;
  std::vector<Achieved> achieved;
  std::vector<TokenStory> worst;
  std::vector<SavedRequests> requests;
  std::vector<SloVerdict> slo;
  std::vector<Finding> findings;
  bool interrupted = false;
  std::vector<std::string> warnings;

  // nullptr: no such phase.
  const SavedPhase* FindPhase(const std::string& name, const std::string& where) const;
};

// What ToJson gave. `file` is for messages alone. InvalidArgument "FILE: FIELD: VALUE ..." for the first field that is
// missing or of another kind than docs/latency.schema.json says; FailedPrecondition for a file of another version.
absl::StatusOr<SavedResult> FromJson(const nlohmann::json& json, const std::string& file);

// The same from a regular file of 256 MiB at most. Also NotFound and PermissionDenied if it cannot be read, and
// InvalidArgument with line and column if it is no JSON.
absl::StatusOr<SavedResult> ReadSavedResult(const std::string& path);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_EXPORT_SAVED_RESULT_H_
