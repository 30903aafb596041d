#ifndef FASTDECODE_ENGINE_SCHEDULE_CALIBRATION_H_
#define FASTDECODE_ENGINE_SCHEDULE_CALIBRATION_H_

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/schedule/step_model.h"
#include "nlohmann/json.hpp"

namespace fastdecode {

// What step costs depend on, and must be the same where they are used.
struct CalibratedEngine {
  int layers = 0, hidden = 0, intermediate = 0, heads = 0, kv_heads = 0, head_dim = 0, vocab = 0;
  std::string compute;     // "bf16"
  std::string kv_type;     // "int8"
  std::string isa;         // "avx512bf16"; of the S-Part's CPU
  std::string core_plan;   // "shared" or "split"
  std::string home_kinds;  // "near", which the S-Part attends to itself, "far" or "near and far"

  friend bool operator==(const CalibratedEngine&, const CalibratedEngine&) = default;
};
// Reads them from what an engine says of itself (fd_record_describe).
CalibratedEngine ReadCalibratedEngine(const nlohmann::json& description);

// What `fastdecode calibrate` has measured.
struct Calibration {
  CalibratedEngine engine;
  StepCosts costs;
  int homes = 0;        // that have costs; further ones cost as much as the last
  std::string version;  // of FastDecode
  std::string machine;  // the processor's name
  int64_t time_s = 0;   // since 1970, UTC
};

nlohmann::json ToJson(const Calibration& calibration);
// Errors: InvalidArgument, naming option, file, field and value.
absl::StatusOr<Calibration> ReadCalibration(const std::string& option, const std::string& path);
// InvalidArgument that names what differs, and both values.
absl::Status CheckCalibration(const std::string& option, const std::string& path, const Calibration& calibration,
                              const CalibratedEngine& engine);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_SCHEDULE_CALIBRATION_H_
