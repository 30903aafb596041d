#ifndef FASTDECODE_TOOLS_BENCH_SERVE_RUNS_H_
#define FASTDECODE_TOOLS_BENCH_SERVE_RUNS_H_

#include <memory>
#include <string>

#include "tools/bench/serve_flags.h"
#include "tools/bench/serve_outcome.h"
#include "tools/bench/serve_target.h"

namespace fastdecode::serve_bench {

// The target that the flags name. `chunk`: an engine's --prefill-chunk instead of the flags'; 0: theirs.
std::unique_ptr<Target> MakeTarget(const ServeFlags& flags, int chunk);

// What prompts are taken from. Once, as it may read standard input.
PromptSource FindPrompts(const ServeFlags& flags, const Target& target);

// What a person sees who waits, and what Ctrl-C does. `what`: "rate 4", or empty. `requests`: in all.
load::RunHooks WatchRun(const std::string& what, size_t requests);
// The line that shows progress is gone.
void ClearProgress();
bool WasInterrupted();

// Runs the load that the flags ask for: once, at each of several rates, or to find the highest. After Ctrl-C the
// outcome has what there is.
void RunLoad(const ServeFlags& flags, Target& target, ServeOutcome* outcome);

// Runs answers alone, and again with prompts that arrive meanwhile.
void MeasureInterference(const ServeFlags& flags, ServeOutcome* outcome);

}  // namespace fastdecode::serve_bench

#endif  // FASTDECODE_TOOLS_BENCH_SERVE_RUNS_H_
