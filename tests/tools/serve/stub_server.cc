// `fastdecode serve` before the stub engine: the command as it is, linked with another engine.
#include <cstdio>
#include <exception>
#include <string>

#include "CLI/CLI.hpp"
#include "tools/commands.h"
#include "tools/option_values.h"
#include "tools/parse_error.h"
#include "tools/process.h"

namespace {

int Fail(const std::string& message) {
  std::fprintf(stderr, "fastdecode: error: %s\n", message.c_str());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  fastdecode::PrepareProcess();
  CLI::App program("fastdecode serve before a stub of the engine.", "stub_server");
  program.require_subcommand(1);
  fastdecode::AddServe(program);
  fastdecode::RefuseEmptyValues(program);
  try {
    program.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return program.exit(error);
    return Fail(fastdecode::DescribeParseError(program, error, {argv + 1, argv + argc}) + " (see --help)");
  } catch (const std::exception& error) {
    return Fail(error.what());
  }
  return 0;
}
