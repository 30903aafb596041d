// fastdecode: the command line over the engine.
//
// Exit codes: 0 all went well; 1 it did not, and stderr says why; 2 all went well, and what was to be judged did not
// pass; 128 + N it was ended by signal N.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <fastdecode/fastdecode.hpp>
#include <iostream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "tools/commands.h"
#include "tools/exit_code.h"
#include "tools/file_options.h"
#include "tools/interrupt.h"
#include "tools/option_values.h"
#include "tools/parse_error.h"
#include "tools/process.h"
#include "tools/unknown_option.h"

namespace {

int Fail(const std::string& message) {
  std::fprintf(stderr, "fastdecode: error: %s\n", message.c_str());
  return 1;
}

// The words behind the program's name, with those that many programs have for help and for their version in ours:
// `help serve`, and `version` or `-v` alone.
std::vector<std::string> ReadWords(int argc, char** argv) {
  std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  if (!words.empty() && words[0] == "help") {
    words.erase(words.begin());
    words.emplace_back("--help");
  }
  if (words.size() == 1 && (words[0] == "version" || words[0] == "-v" || words[0] == "-V")) words[0] = "--version";
  return words;
}

}  // namespace

int main(int argc, char** argv) {
  fastdecode::PrepareProcess();
  fastdecode::EndAtSignals();
  CLI::App program(
      "FastDecode serves large language models with the attention over the KV cache computed on NUMA-pinned CPUs.",
      "fastdecode");
  program.set_version_flag("--version", std::string("fastdecode ") + fd_version());
  program.require_subcommand(1);
  program.get_formatter()->column_width(34);
  fastdecode::AddGenerate(program);
  fastdecode::AddChat(program);
  fastdecode::AddServe(program);
  fastdecode::AddWorker(program);
  fastdecode::AddSynth(program);
  fastdecode::AddBench(program);
  fastdecode::AddCalibrate(program);
  fastdecode::AddLatency(program);
  fastdecode::AddDoctor(program);
  fastdecode::AddInspect(program);
  fastdecode::AddTemplate(program);
  fastdecode::AddCompletion(program);
  fastdecode::RefuseEmptyValues(program);
  program.parse_complete_callback([&program] { fastdecode::CheckFileOptions(program); });
  const std::vector<std::string> words = ReadWords(argc, argv);
  const std::string unknown = fastdecode::DescribeUnknownOption(program, words);
  if (!unknown.empty()) return Fail(unknown + " (see --help)");
  try {
    program.parse(std::vector<std::string>(words.rbegin(), words.rend()));
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() != 0)
      return Fail(fastdecode::DescribeParseError(program, error, words) + " (see --help)");
    // Help and version are "errors" of exit code 0.
    program.exit(error);
    return std::cout.flush() ? 0 : Fail("stdout: cannot be written");
  } catch (const fastdecode::ExitCode& verdict) {
    return verdict.code();
  } catch (const fastdecode::Interrupted& interrupted) {
    std::fprintf(stderr, "fastdecode: interrupted\n");
    return 128 + interrupted.signal();
  } catch (const std::exception& error) {
    return Fail(error.what());
  }
  return 0;
}
