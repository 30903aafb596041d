#ifndef FASTDECODE_TESTS_FUZZ_FUZZ_TARGET_H_
#define FASTDECODE_TESTS_FUZZ_FUZZ_TARGET_H_

#include <string>
#include <vector>

namespace fastdecode {

// One parser of input from outside, as the fuzzer (fuzz_main.cc) and the quick replay (mutation_test.cc) drive it. Each
// *_fuzz.cc defines both functions for its parser.

// Parses `input`; true if it was accepted. Ends the process if a result or an error is not what the parser promises.
bool FuzzOne(const std::string& input);

// Right inputs to start from.
std::vector<std::string> FuzzSeeds();

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_FUZZ_FUZZ_TARGET_H_
