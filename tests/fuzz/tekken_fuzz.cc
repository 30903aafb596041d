#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "engine/text/tiktoken_files.h"
#include "numa/check.h"
#include "tests/fuzz/fuzz_target.h"
#include "tests/fuzz/tokenizer_spec_checks.h"

namespace fastdecode {

using nlohmann::json;

bool FuzzOne(const std::string& input) {
  const auto spec = ParseTekkenJson(input, "FILE");
  if (!spec.ok()) {
    FD_CHECK(spec.status().message().substr(0, 6) == "FILE: ", "an error names the file first");
    return false;
  }
  CheckTokenizerSpec(*spec);
  FD_CHECK(spec->vocab.size() >= 256, "every byte is a token");
  FD_CHECK(!spec->pre_tokenizer.empty() && !spec->pre_tokenizer[0].pattern.pattern.empty(), "text is cut");
  return true;
}

namespace {

json SeedDocument() {
  json vocab = json::array();
  const auto add = [&](const std::string& token) {
    vocab.push_back({{"rank", vocab.size()}, {"token_bytes", absl::Base64Escape(token)}});
  };
  for (int byte = 0; byte < 256; ++byte) add(std::string(1, static_cast<char>(byte)));
  for (const char* token : {"ab", "ba", "aba", "abab", "\xC3\xA9"}) add(token);
  return {
      {"config",
       {{"pattern", "\\w+|\\s"}, {"default_vocab_size", 264}, {"default_num_special_tokens", 4}, {"version", "v11"}}},
      {"special_tokens",
       {{{"rank", 0}, {"token_str", "<unk>"}, {"is_control", true}},
        {{"rank", 1}, {"token_str", "<s>"}, {"is_control", true}},
        {{"rank", 2}, {"token_str", "</s>"}, {"is_control", false}}}},
      {"vocab", vocab}};
}

json OldSeedDocument() {
  json document = SeedDocument();
  document.erase("special_tokens");
  document["config"]["version"] = "v3";
  document["config"]["default_num_special_tokens"] = 22;
  document["config"]["default_vocab_size"] = 22 + 261;
  return document;
}

}  // namespace

std::vector<std::string> FuzzSeeds() { return {SeedDocument().dump(), OldSeedDocument().dump()}; }

}  // namespace fastdecode
