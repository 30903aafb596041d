#ifndef FASTDECODE_TOOLS_LATENCY_HICCUP_H_
#define FASTDECODE_TOOLS_LATENCY_HICCUP_H_

#include "CLI/CLI.hpp"

namespace fastdecode {

void AddLatencyHiccup(CLI::App* latency);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_LATENCY_HICCUP_H_
