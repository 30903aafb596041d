#ifndef FASTDECODE_TOOLS_BENCH_SERVE_H_
#define FASTDECODE_TOOLS_BENCH_SERVE_H_

#include "CLI/CLI.hpp"

namespace fastdecode {

// bench serve: load on a server that speaks the OpenAI completions API, and what it made of it.
void AddBenchServe(CLI::App* bench);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_BENCH_SERVE_H_
