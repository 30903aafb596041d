#ifndef FASTDECODE_TOOLS_OUTPUT_H_
#define FASTDECODE_TOOLS_OUTPUT_H_

#include <string>

namespace fastdecode {

// Writes to stdout at once. Throws Error if that fails (a full disk, a closed pipe), so that no result is lost in
// silence.
void WriteOut(const std::string& text);

// How wide the terminal is that stdout goes to; 100 where it is none, or does not say.
int TerminalColumns();

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_OUTPUT_H_
