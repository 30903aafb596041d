#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "engine/text/tiktoken_files.h"
#include "numa/check.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/tokenizer_spec_checks.h"

namespace fastdecode {

bool FuzzOne(const std::string& input) {
  TiktokenKind kind;
  kind.pattern = "\\w+|\\s";
  kind.special_tokens = {{270, "<x>"}, {271, "<y>"}};
  kind.bos_id = 270;
  kind.add_bos = true;
  const auto spec = ParseTiktokenRanks(input, "FILE", kind);
  const auto published = ParseTiktokenRanks(input, "FILE");
  FD_CHECK(!published.ok(), "nobody published so few ranks");
  for (const auto* parsed : {&spec, &published}) {
    FD_CHECK(parsed->ok() || parsed->status().message().substr(0, 6) == "FILE: ", "an error names the file first");
  }
  if (!spec.ok()) return false;
  CheckTokenizerSpec(*spec);
  FD_CHECK(spec->vocab.size() >= 256, "every byte is a token");
  FD_CHECK(IsTiktokenRanks(input), "what is read is known for what it is");
  return true;
}

std::vector<std::string> FuzzSeeds() {
  std::string text;
  int rank = 0;
  const auto add = [&](const std::string& token) {
    absl::StrAppend(&text, absl::Base64Escape(token), " ", rank++, "\n");
  };
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
  for (const char* token : {"ab", "ba", "aba", "abab", "\xC3\xA9"}) add(token);
  return {text, absl::StrCat("\xEF\xBB\xBF", absl::StrReplaceAll(text, {{"\n", "\r\n"}}), "\r\n \r\n")};
}

}  // namespace fastdecode
