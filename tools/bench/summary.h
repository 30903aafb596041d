#ifndef FASTDECODE_TOOLS_BENCH_SUMMARY_H_
#define FASTDECODE_TOOLS_BENCH_SUMMARY_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/float_types.h"
#include "nlohmann/json.hpp"
#include "numa/topology.h"

namespace fastdecode {

// What the repetitions of a measurement gave.
struct Summary {
  double median = 0;
  double min = 0;
  double max = 0;
};

// REQUIRES: at least one value.
Summary Summarize(const std::vector<double>& values);
// {median, min, max}.
nlohmann::json ToJson(const Summary& summary);
// One line; bytes that are no UTF-8 are replaced.
std::string ToLine(const nlohmann::json& figures);
// "1.23 [1.20..1.31]".
std::string ToText(const Summary& summary, int decimals);

// "f32, bf16, ...": every type of K and V.
std::string KvTypeNames();
// Throws Error naming the option, and the names that there are.
KvType ParseKvType(const char* option, const std::string& name);

// Throws Error with the status's message, after `context`.
void ThrowUnlessOk(const absl::Status& status, const std::string& context = "");
// The machine as this process may use it. Throws Error. Thread: one that is not pinned.
Topology DiscoverMachine();

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_BENCH_SUMMARY_H_
