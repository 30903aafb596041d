#ifndef FASTDECODE_TOOLS_LATENCY_MACHINE_HICCUP_REPORT_H_
#define FASTDECODE_TOOLS_LATENCY_MACHINE_HICCUP_REPORT_H_

#include <cstddef>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tools/latency/machine/hiccup_probe.h"

namespace fastdecode {

// For people, in lines of at most `width` columns (60 at least); the `worst` longest one by one.
std::string FormatHiccups(const std::vector<HiccupCore>& cores, const HiccupOptions& options, size_t worst,
                          size_t width);
nlohmann::json HiccupsToJson(const std::vector<HiccupCore>& cores, const HiccupOptions& options, size_t worst);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_MACHINE_HICCUP_REPORT_H_
