#ifndef FASTDECODE_TOOLS_COMMANDS_H_
#define FASTDECODE_TOOLS_COMMANDS_H_

#include "CLI/CLI.hpp"

namespace fastdecode {

// Each adds its subcommand to the program; what runs it is set as the subcommand's callback. A callback throws Error
// for what it reports and exits with 1.
void AddGenerate(CLI::App& program);
void AddChat(CLI::App& program);
void AddServe(CLI::App& program);
void AddWorker(CLI::App& program);
void AddSynth(CLI::App& program);
void AddBench(CLI::App& program);
void AddCalibrate(CLI::App& program);
void AddLatency(CLI::App& program);
void AddDoctor(CLI::App& program);
void AddInspect(CLI::App& program);
void AddTemplate(CLI::App& program);
void AddCompletion(CLI::App& program);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_COMMANDS_H_
