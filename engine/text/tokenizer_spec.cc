#include "engine/text/tokenizer_spec.h"

#include <algorithm>

namespace fastdecode {

bool TokenizerSpec::IsByteLevel() const {
  return std::any_of(normalizer.begin(), normalizer.end(),
                     [](const NormalizerStep& step) { return step.kind == NormalizerStep::Kind::kByteLevel; }) ||
         std::any_of(pre_tokenizer.begin(), pre_tokenizer.end(),
                     [](const PreTokenizerStep& step) { return step.kind == PreTokenizerStep::Kind::kByteLevel; });
}

}  // namespace fastdecode
