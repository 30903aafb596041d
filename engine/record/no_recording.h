#ifndef FASTDECODE_ENGINE_RECORD_NO_RECORDING_H_
#define FASTDECODE_ENGINE_RECORD_NO_RECORDING_H_

#include <sys/types.h>

#include <string>

namespace fastdecode {

// "1234 (bash)".
std::string ProcessName(pid_t pid);

// Why a living process does not listen for readers of recordings: what it seems to be, and what to do.
std::string ExplainNoRecording(pid_t pid);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_RECORD_NO_RECORDING_H_
