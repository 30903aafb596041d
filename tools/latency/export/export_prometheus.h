#ifndef FASTDECODE_TOOLS_LATENCY_EXPORT_EXPORT_PROMETHEUS_H_
#define FASTDECODE_TOOLS_LATENCY_EXPORT_EXPORT_PROMETHEUS_H_

#include <string>

#include "tools/latency/result.h"

namespace fastdecode {

// The result in Prometheus' text format 0.0.4, as its textfile collector takes it: metrics fastdecode_latency_*, in
// seconds, bytes and shares of 1. Distributions are summaries; a quantile of too few samples is left out.
std::string PrometheusText(const LatencyResult& result);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_EXPORT_EXPORT_PROMETHEUS_H_
