#ifndef FASTDECODE_TOOLS_LATENCY_EXPORT_SAVED_FIELDS_H_
#define FASTDECODE_TOOLS_LATENCY_EXPORT_SAVED_FIELDS_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace fastdecode {

// A value of a JSON document that somebody else may have written, with its path. What is missing or of another kind is
// reported once, "FILE: phases[3].name: 7 is not a string", and read as 0, nothing or the empty string: who reads looks
// at the status at the end.
// Owns: nothing; document and status must outlive it.
class SavedFields {
 public:
  SavedFields(const nlohmann::json* value, std::string path, const std::string* file, absl::Status* status)
      : value_(value), path_(std::move(path)), file_(file), status_(status) {}

  const nlohmann::json& value() const { return *value_; }
  // The member `key`; null, reported, where there is none.
  SavedFields At(const char* key) const;
  // An array's elements; none, reported, where it is no array.
  std::vector<SavedFields> Elements() const;

  std::string String() const;
  bool Bool() const;
  // Whole, 0 to `most`.
  uint64_t Count(uint64_t most = std::numeric_limits<uint64_t>::max()) const;
  std::optional<uint64_t> OptionalCount() const;  // null: nothing
  double Number() const;                          // null: NaN
  std::optional<double> OptionalNumber() const;
  int Index() const;  // null: -1
  std::vector<uint64_t> Ascending(size_t most) const;

  // Reports the value unless something was reported before: "FILE: PATH: VALUE `what`".
  void Refuse(const std::string& what) const;

 private:
  const nlohmann::json* value_;
  std::string path_;
  const std::string* file_;
  absl::Status* status_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_EXPORT_SAVED_FIELDS_H_
