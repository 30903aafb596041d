// fastdecode: the command line over the engine.
#include <cstdio>
#include <exception>

#include "CLI/CLI.hpp"
#include "engine/fastdecode.hpp"
#include "tools/commands.h"

int main(int argc, char** argv) {
  CLI::App program("FastDecode serves large language models with the attention over the KV cache computed on NUMA-pinned CPUs.",
                   "fastdecode");
  program.set_version_flag("--version", std::string("fastdecode ") + fd_version());
  program.require_subcommand(1);
  program.get_formatter()->column_width(34);
  fastdecode::AddGenerate(program);
  fastdecode::AddWorker(program);
  fastdecode::AddSynth(program);
  fastdecode::AddBench(program);
  fastdecode::AddCompletion(program);
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    // Help and version are "errors" of exit code 0.
    return program.exit(error) == 0 ? 0 : 1;
  } catch (const fastdecode::Error& error) {
    std::fprintf(stderr, "fastdecode: error: %s\n", error.what());
    return 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "fastdecode: error: %s\n", error.what());
    return 1;
  }
  return 0;
}
