#ifndef FASTDECODE_TOOLS_FILE_OPTIONS_H_
#define FASTDECODE_TOOLS_FILE_OPTIONS_H_

#include "CLI/CLI.hpp"

namespace fastdecode {

// Looks at the files that a parsed command line names, before anything is done. Throws Error naming option and file if
// standard input or a pipe is to be read twice, or standard input cannot be read; if two options write the same file,
// or one writes what another reads; if something is written into the command's own standard output.
void CheckFileOptions(const CLI::App& program);

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_FILE_OPTIONS_H_
