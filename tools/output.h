#ifndef FASTDECODE_TOOLS_OUTPUT_H_
#define FASTDECODE_TOOLS_OUTPUT_H_

#include <fastdecode/fastdecode.hpp>
#include <functional>
#include <ostream>
#include <string>

namespace fastdecode {

// The output is gone. Nothing that a command could say from then on would be read.
class OutputError : public Error {
 public:
  using Error::Error;
};

// Writes to stdout at once. Throws OutputError if that fails (a full disk, a closed pipe), so that no result is lost in
// silence. Waits for a reader that does not read, but after a signal no longer than some seconds: then the program ends.
void WriteOut(const std::string& text);

// Throws Error "CONTEXT: PATH: cannot be written: ..." if WriteFile would fail for want of the right, or of the folder.
// Leaves no trace.
void CheckWritable(const std::string& context, const std::string& path);
// Makes a file of what `write` puts out, or leaves the one that was there as it was: it is written beside it as
// PATH.partial-PID, which gets its name when it is whole. What is no plain file (a pipe, a device) is written in place.
// Throws Error as above, or what `write` throws.
void WriteFile(const std::string& context, const std::string& path, const std::function<void(std::ostream&)>& write);

// How wide the terminal is that stdout goes to; 100 where it is none, or does not say.
int TerminalColumns();

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_OUTPUT_H_
