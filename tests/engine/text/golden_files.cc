#include "tests/engine/text/golden_files.h"

#include <fstream>

#include "engine/text/stream_detokenizer.h"
#include "engine/text/utf8.h"
#include "numa/check.h"

namespace fastdecode {

std::string GoldenPath(const std::string& name) { return FASTDECODE_TESTS_DIR "/golden/tokenizer/" + name; }

nlohmann::json ReadGoldenJson(const std::string& name) {
  std::ifstream file(GoldenPath(name));
  FD_CHECK(file.good(), "the golden file is in the tree");
  return nlohmann::json::parse(file);
}

absl::StatusOr<std::unique_ptr<Tokenizer>> ParseTokenizer(const nlohmann::json& tokenizer) {
  return Tokenizer::Parse({"test", tokenizer.dump(), std::nullopt, std::nullopt});
}

std::string TextBytes(const nlohmann::json& entry) {
  if (entry.contains("text")) return entry["text"];
  const std::string hex = entry["hex"];
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

std::string DecodeAsStream(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, bool skip_special_tokens) {
  StreamDetokenizer stream(&tokenizer, skip_special_tokens);
  std::string text;
  for (const int32_t id : ids) {
    const std::string piece = stream.Push(id);
    FD_CHECK(IsValidUtf8(piece), "a stream never gives half a character");
    text += piece;
  }
  text += stream.Finish();
  FD_CHECK(stream.Finish().empty(), "a stream that has ended holds nothing back");
  return text;
}

}  // namespace fastdecode
