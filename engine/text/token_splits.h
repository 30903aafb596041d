#ifndef FASTDECODE_ENGINE_TEXT_TOKEN_SPLITS_H_
#define FASTDECODE_ENGINE_TEXT_TOKEN_SPLITS_H_

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "engine/text/tokenizer_spec.h"

namespace fastdecode {

// More than any vocabulary has: published ones have some 500,000.
inline constexpr size_t kTokenSplitsMax = size_t{1} << 24;

// Every way in which a token is the concatenation of two others: the merges of vocabularies whose files list tokens
// only. Ids of the result are positions in `tokens`; it is ordered by merged, then by left. Tokens that are empty take
// no part. Nothing if there are more than `splits_max`.
//
// Each token is linked to the longest other token that it begins with, found by sorting, and likewise at its end, so
// that the time is that of sorting plus that of walking these chains: at most the number of bytes in all.
// REQUIRES: tokens differ from each other unless they are empty, and there are fewer than 2^31.
std::optional<std::vector<BpeMerge>> FindTokenSplits(std::span<const std::string_view> tokens, size_t splits_max);

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_TEXT_TOKEN_SPLITS_H_
