#ifndef FASTDECODE_TOOLS_PROCESS_H_
#define FASTDECODE_TOOLS_PROCESS_H_

namespace fastdecode {

// What main does first. Standard descriptors that were closed are taken, so that no file of the program's gets their
// numbers, and what it prints; to read or write them fails as before. And memory that is gone (of a mapped file that is
// truncated while it is read, or broken) ends the program with a message that says which and exit code 1.
void PrepareProcess();

}  // namespace fastdecode

#endif  // FASTDECODE_TOOLS_PROCESS_H_
