// What the tokenizer of a model's folder makes of texts and ids, for compare_with_references.py.
//
// usage: tokenizer_filter DIR. Each line on standard input is {"text": string}, {"hex": digits} or {"ids": [...]}, and
// is answered by one line on standard output: {"ids", "ids_special", "as_text", "decoded", "skipped", "streamed",
// "streamed_skipped"}, without the first three for ids. Exits with 1, saying why, if DIR has no tokenizer that is read.

#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/text/stream_detokenizer.h"
#include "engine/text/tokenizer.h"
#include "engine/text/utf8.h"
#include "numa/check.h"
#include "tests/engine/text/golden_files.h"

namespace fastdecode {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

json Answer(const Tokenizer& tokenizer, const json& question) {
  json answer;
  Ids ids;
  if (question.contains("ids")) {
    ids = question["ids"].get<Ids>();
  } else {
    const std::string text = TextBytes(question);
    const Tokenizer::Part as_text = {text, /*special=*/false, {}};
    ids = tokenizer.Encode(text, false);
    answer["ids"] = ids;
    answer["ids_special"] = tokenizer.Encode(text, true);
    answer["as_text"] = tokenizer.EncodeParts({&as_text, 1}, false);
  }
  answer["decoded"] = tokenizer.Decode(ids, false);
  answer["skipped"] = tokenizer.Decode(ids, true);
  answer["streamed"] = DecodeAsStream(tokenizer, ids, false);
  answer["streamed_skipped"] = DecodeAsStream(tokenizer, ids, true);
  return answer;
}

int Run(const std::string& dir) {
  const auto tokenizer = Tokenizer::Load(dir);
  if (!tokenizer.ok()) {
    std::cerr << tokenizer.status() << "\n";
    return 1;
  }
  for (const std::string& warning : (*tokenizer)->warnings()) std::cerr << "warning: " << warning << "\n";
  std::ios::sync_with_stdio(false);
  for (std::string line; std::getline(std::cin, line);) std::cout << Answer(**tokenizer, json::parse(line)) << "\n";
  return std::cout.flush() ? 0 : 1;
}

}  // namespace
}  // namespace fastdecode

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fputs("usage: tokenizer_filter DIR\n", stderr);
    return 2;
  }
  return fastdecode::Run(argv[1]);
}
