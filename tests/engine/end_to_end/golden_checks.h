#ifndef FASTDECODE_TESTS_ENGINE_END_TO_END_GOLDEN_CHECKS_H_
#define FASTDECODE_TESTS_ENGINE_END_TO_END_GOLDEN_CHECKS_H_

#include <fastdecode/fastdecode.hpp>
#include <string>

#include "tests/engine/end_to_end/golden.h"

namespace fastdecode {

// In exact mode: the logits of every stored position, and the tokens of greedy runs, which go on at once.
void ExpectLogitsAndTokens(const Golden& golden, InferenceEngine& engine);
// In a 16-bit type: no further from the exact logits than transformers' own bf16 is, within kBf16Share; and further
// than exact mode may be. `name`: of the properties that say how close.
void ExpectAsCloseAsBf16(const Golden& golden, InferenceEngine& engine, const std::string& name);

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_ENGINE_END_TO_END_GOLDEN_CHECKS_H_
