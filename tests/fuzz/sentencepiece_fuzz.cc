#include <string>
#include <vector>

#include "engine/text/sentencepiece_model.h"
#include "numa/check.h"
#include "tests/engine/text/sentencepiece_writer.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/tokenizer_spec_checks.h"

namespace fastdecode {

bool FuzzOne(const std::string& input) {
  const auto spec = ParseSentencePieceModel(input, "FILE");
  if (!spec.ok()) {
    FD_CHECK(spec.status().message().substr(0, 6) == "FILE: ", "an error names the file first");
    return false;
  }
  CheckTokenizerSpec(*spec);
  FD_CHECK(spec->unknown_id.has_value(), "there is an unknown token");
  FD_CHECK(!spec->decoder.empty() && !spec->normalizer.empty(), "spaces are replaced and put back");
  return true;
}

std::vector<std::string> FuzzSeeds() {
  const std::string with_bytes =
      absl::StrCat(SmallPieces(), ByteFields(), PieceField("<x>", 0, kUserDefined), PieceField("zz", -3.5f, kUnused),
                   TrainerField(absl::StrCat(kBpe, kByteFallback, BytesField(46, "</s>"), VarintField(40, 0))),
                   NormalizerField(absl::StrCat(BytesField(1, "identity"), VarintField(3, 0), kKeepSpaces)));
  return {SmallModel(), with_bytes,
          absl::StrCat(SmallPieces(), PieceField("\u00e9\u6f22", -1, kNormal), TrainerField(kBpe),
                       NormalizerField(VarintField(4, 1)), BytesField(5, ""))};
}

}  // namespace fastdecode
