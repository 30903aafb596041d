#ifndef FASTDECODE_TOOLS_LOAD_ARRIVALS_FLAG_H_
#define FASTDECODE_TOOLS_LOAD_ARRIVALS_FLAG_H_

#include "CLI/CLI.hpp"
#include "tools/load/arrivals.h"

namespace fastdecode::load {

// --arrivals of a command that has an open loop; `arrivals` holds its default, Poisson.
CLI::Option* AddArrivals(CLI::App* command, Arrivals* arrivals);

}  // namespace fastdecode::load

#endif  // FASTDECODE_TOOLS_LOAD_ARRIVALS_FLAG_H_
