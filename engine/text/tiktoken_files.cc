#include "engine/text/tiktoken_files.h"

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "engine/model/json_fields.h"
#include "engine/text/byte_alphabet.h"
#include "engine/text/token_splits.h"

namespace fastdecode {
namespace {

constexpr int64_t kSpecialTokensMax = 1 << 16;  // published files have 1,000

// The bytes that `text` spells in base64: with padding, and without the white space that Abseil's reader passes over.
std::optional<std::string> DecodeBase64(std::string_view text) {
  constexpr std::string_view kCharacters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/=";
  std::string bytes;
  if (text.size() % 4 != 0 || text.find_first_not_of(kCharacters) != std::string_view::npos ||
      !absl::Base64Unescape(absl::string_view(text.data(), text.size()), &bytes)) {
    return std::nullopt;
  }
  return bytes;
}

using nlohmann::json;

constexpr int kByteCount = 256;

std::string Shown(std::string_view text) { return absl::StrCat("\"", ShowText(text), "\""); }

absl::Status InvalidRanks(const std::string& file, const std::string& message) {
  return absl::InvalidArgumentError(absl::StrCat(file, ": ", message));
}

// A spec of byte strings, the lowest rank first, whose ids begin at `first_id`, without special tokens.
absl::StatusOr<TokenizerSpec> SpecOfRanks(const std::vector<std::string>& tokens, int32_t first_id, TextPattern pattern,
                                          const std::string& file) {
  TokenizerSpec spec;
  spec.file = file;
  spec.ignore_merges = true;
  spec.vocab.reserve(tokens.size());
  std::string alphabet[kByteCount];
  for (int byte = 0; byte < kByteCount; ++byte) alphabet[byte] = ByteLevelCharacter(static_cast<uint8_t>(byte));
  for (size_t rank = 0; rank < tokens.size(); ++rank) {
    VocabEntry& entry = spec.vocab.emplace_back();
    for (const char byte : tokens[rank]) entry.key += alphabet[static_cast<uint8_t>(byte)];
    entry.id = first_id + static_cast<int32_t>(rank);
  }
  const std::vector<std::string_view> views(tokens.begin(), tokens.end());
  std::optional<std::vector<BpeMerge>> merges = FindTokenSplits(views, kTokenSplitsMax);
  if (!merges.has_value())
    return InvalidRanks(file, absl::StrCat("more than ", kTokenSplitsMax, " pairs of tokens make a token"));
  for (BpeMerge& merge : *merges) {
    for (int32_t* id : {&merge.left, &merge.right, &merge.merged}) *id += first_id;
  }
  spec.merges = *std::move(merges);
  PreTokenizerStep& split = spec.pre_tokenizer.emplace_back();
  split.kind = PreTokenizerStep::Kind::kSplit;
  split.pattern = std::move(pattern);
  PreTokenizerStep& byte_level = spec.pre_tokenizer.emplace_back();
  byte_level.kind = PreTokenizerStep::Kind::kByteLevel;
  byte_level.use_regex = false;
  spec.decoder.emplace_back().kind = DecoderStep::Kind::kByteLevel;
  return spec;
}

void AddSpecialToken(int32_t id, std::string content, TokenizerSpec* spec) {
  spec->added_tokens.push_back({.id = id, .content = std::move(content), .special = true});
}

// Reads tekken.json. The first error is kept; what runs after it does nothing of use.
class TekkenReader {
 public:
  TekkenReader(const json& root, const std::string& file) : root_(root), file_(file) {}

  absl::StatusOr<TokenizerSpec> Read() {
    ReadConfig();
    if (error_.ok()) ReadSpecialTokens();
    if (error_.ok()) ReadVocab();
    if (!error_.ok()) return error_;
    absl::StatusOr<TokenizerSpec> spec =
        SpecOfRanks(tokens_, special_tokens_, {pattern_, false, "config.pattern"}, file_);
    if (!spec.ok()) return spec;
    for (size_t i = 0; i < names_.size(); ++i) {
      if (names_[i] == "<s>") spec->bos_id = static_cast<int32_t>(i);
      if (names_[i] == "</s>") spec->eos_id = static_cast<int32_t>(i);
      AddSpecialToken(static_cast<int32_t>(i), std::move(names_[i]), &*spec);
    }
    if (spec->bos_id.has_value()) spec->prefix_ids.push_back(*spec->bos_id);
    return spec;
  }

 private:
  void Fail(const std::string& message) {
    if (error_.ok()) error_ = InvalidRanks(file_, message);
  }

  JsonFields Fields(const json& object, const std::string& prefix) {
    return JsonFields(object, file_, prefix, &error_);
  }

  // An entry of an array, null and an error if it is no object.
  const json* Entry(const json& list, size_t i, const std::string& name) {
    if (list[i].is_object()) return &list[i];
    Fail(absl::StrCat(name, " is ", ShowJson(list[i]), ", expected an object"));
    return nullptr;
  }

  void ReadConfig();
  void ReadSpecialTokens();
  void ReadSpecialToken(const json& entry, const std::string& name, size_t count);
  void AddFillers();
  void ReadVocab();
  void ReadToken(const json& entry, const std::string& name);

  const json& root_;
  const std::string& file_;
  absl::Status error_;
  std::string pattern_;
  std::string version_;
  int32_t special_tokens_ = 0;  // as many ids
  int32_t ranks_ = 0;           // ids after these
  std::vector<std::string> names_;
  absl::flat_hash_set<std::string> names_taken_;
  std::vector<std::string> tokens_;
  absl::flat_hash_map<std::string, size_t> rank_of_token_;
};

void TekkenReader::ReadConfig() {
  JsonFields root = Fields(root_, "");
  const json* config = root.Find("config");
  if (config == nullptr || !config->is_object()) return root.Fail("config", "an object");
  JsonFields fields = Fields(*config, "config.");
  pattern_ = fields.String("pattern");
  if (pattern_.empty()) fields.Fail("pattern", "a regular expression");
  version_ = fields.StringOr("version", "");
  special_tokens_ = static_cast<int32_t>(fields.Integer("default_num_special_tokens", 0, kSpecialTokensMax));
  const int64_t size =
      fields.Integer("default_vocab_size", int64_t{special_tokens_} + kByteCount, TokenizerSpec::kTokenIdLimit);
  ranks_ = static_cast<int32_t>(size - special_tokens_);
}

// mistral_common/tokens/tokenizers/tekken.py: Tekkenizer.from_file, DEPRECATED_SPECIAL_TOKENS.
void TekkenReader::ReadSpecialTokens() {
  static constexpr const char* kDefaultNames[] = {"<unk>",
                                                  "<s>",
                                                  "</s>",
                                                  "[INST]",
                                                  "[/INST]",
                                                  "[AVAILABLE_TOOLS]",
                                                  "[/AVAILABLE_TOOLS]",
                                                  "[TOOL_RESULTS]",
                                                  "[/TOOL_RESULTS]",
                                                  "[TOOL_CALLS]",
                                                  "[IMG]",
                                                  "<pad>",
                                                  "[IMG_BREAK]",
                                                  "[IMG_END]",
                                                  "[PREFIX]",
                                                  "[MIDDLE]",
                                                  "[SUFFIX]",
                                                  "[SYSTEM_PROMPT]",
                                                  "[/SYSTEM_PROMPT]",
                                                  "[TOOL_CONTENT]"};
  JsonFields root = Fields(root_, "");
  const json* list = root.Find("special_tokens");
  if (list != nullptr && !list->is_array()) return root.Fail("special_tokens", "an array");
  if (list == nullptr && version_ != "v1" && version_ != "v2" && version_ != "v3" && version_ != "v7") {
    return Fail(absl::StrCat("special_tokens is missing, expected an array, as config.version is ", Shown(version_),
                             " and not v1, v2, v3 or v7"));
  }
  const size_t count = list == nullptr ? std::size(kDefaultNames) : list->size();
  if (count > static_cast<size_t>(special_tokens_)) {
    return Fail(absl::StrCat("config.default_num_special_tokens is ", special_tokens_, ", but there are ", count,
                             " special tokens"));
  }
  names_.resize(count);
  if (list == nullptr) {
    names_.assign(std::begin(kDefaultNames), std::end(kDefaultNames));
    names_taken_.insert(names_.begin(), names_.end());
  } else {
    for (size_t i = 0; i < count && error_.ok(); ++i) {
      const std::string name = absl::StrCat("special_tokens[", i, "]");
      const json* entry = Entry(*list, i, name);
      if (entry != nullptr) ReadSpecialToken(*entry, name, count);
    }
  }
  if (error_.ok()) AddFillers();
}

void TekkenReader::ReadSpecialToken(const json& entry, const std::string& name, size_t count) {
  JsonFields fields = Fields(entry, absl::StrCat(name, "."));
  const auto rank = static_cast<size_t>(fields.Integer("rank", 0, static_cast<int64_t>(count) - 1));
  std::string content = fields.String("token_str");
  if (content.empty()) fields.Fail("token_str", "a string that is not empty");
  if (!error_.ok()) return;
  if (!names_[rank].empty()) return Fail(absl::StrCat(name, ".rank is ", rank, ", as is another one's"));
  if (!names_taken_.insert(content).second) {
    return Fail(absl::StrCat(name, ".token_str is ", Shown(content), ", as is another one's"));
  }
  names_[rank] = std::move(content);
}

void TekkenReader::AddFillers() {
  names_.reserve(special_tokens_);
  while (names_.size() < static_cast<size_t>(special_tokens_)) {
    names_.push_back(absl::StrCat("<SPECIAL_", names_.size(), ">"));
    if (names_taken_.insert(names_.back()).second) continue;
    return Fail(
        absl::StrCat("special_tokens has ", Shown(names_.back()), ", which is the name of id ", names_.size() - 1));
  }
}

void TekkenReader::ReadVocab() {
  JsonFields root = Fields(root_, "");
  const json* vocab = root.Find("vocab");
  if (vocab == nullptr || !vocab->is_array()) return root.Fail("vocab", "an array");
  if (vocab->size() < static_cast<size_t>(ranks_)) {
    return Fail(absl::StrCat("config.default_vocab_size is ", ranks_ + special_tokens_, ", but vocab has ",
                             vocab->size(), " tokens and config.default_num_special_tokens is ", special_tokens_));
  }
  tokens_.reserve(ranks_);
  rank_of_token_.reserve(ranks_);
  for (size_t i = 0; i < static_cast<size_t>(ranks_) && error_.ok(); ++i) {
    const std::string name = absl::StrCat("vocab[", i, "]");
    const json* entry = Entry(*vocab, i, name);
    if (entry != nullptr) ReadToken(*entry, name);
  }
}

// The first tokens are the bytes in order.
void TekkenReader::ReadToken(const json& entry, const std::string& name) {
  const size_t rank = tokens_.size();
  JsonFields fields = Fields(entry, absl::StrCat(name, "."));
  fields.Integer("rank", static_cast<int64_t>(rank), static_cast<int64_t>(rank));
  const std::string spelt = fields.String("token_bytes");
  if (!error_.ok()) return;
  std::optional<std::string> token = DecodeBase64(spelt);
  if (!token.has_value() || token->empty()) return fields.Fail("token_bytes", "bytes in base64");
  if (rank < kByteCount && *token != std::string(1, static_cast<char>(rank))) {
    return fields.Fail("token_bytes", absl::StrFormat("the byte 0x%02X in base64", rank));
  }
  const auto [found, inserted] = rank_of_token_.emplace(*token, rank);
  if (!inserted) {
    return Fail(absl::StrCat(name, ".token_bytes is ", Shown(spelt), ", as is vocab[", found->second, "].token_bytes"));
  }
  tokens_.push_back(*std::move(token));
}

// One line of a list of ranks.
struct RankLine {
  size_t number;  // the first line is 1
  std::string_view token;
  std::string_view rank;
};

bool IsBlank(char character) { return character == ' ' || character == '\t'; }

// The next line with something in it; one without two words has an empty token. Nothing at the end.
class RankLines {
 public:
  explicit RankLines(std::string_view text) : rest_(text) {
    if (rest_.starts_with("\xEF\xBB\xBF")) rest_.remove_prefix(3);
  }

  std::optional<RankLine> Next() {
    while (!rest_.empty()) {
      line_ = rest_.substr(0, rest_.find_first_of("\r\n"));
      rest_.remove_prefix(line_.size());
      if (rest_.starts_with("\r\n")) rest_.remove_prefix(1);
      if (!rest_.empty()) rest_.remove_prefix(1);
      ++number_;
      std::string_view words = line_;
      RankLine line{number_, Word(&words), {}};
      if (line.token.empty()) continue;
      line.rank = Word(&words);
      if (line.rank.empty() || !Word(&words).empty()) line.token = {};
      return line;
    }
    return std::nullopt;
  }

  std::string_view line() const { return line_; }

 private:
  static std::string_view Word(std::string_view* text) {
    while (!text->empty() && IsBlank(text->front())) text->remove_prefix(1);
    const std::string_view word = text->substr(0, text->find_first_of(" \t"));
    text->remove_prefix(word.size());
    return word;
  }

  std::string_view rest_;
  std::string_view line_;
  size_t number_ = 0;
};

// A rank, or nothing if the word is no number below kTokenIdLimit.
std::optional<int32_t> ReadRank(std::string_view word) {
  int32_t rank = 0;
  for (const char digit : word) {
    if (digit < '0' || digit > '9') return std::nullopt;
    rank = rank * 10 + (digit - '0');
    if (rank >= TokenizerSpec::kTokenIdLimit) return std::nullopt;
  }
  return rank;
}

struct RankedToken {
  size_t line;
  int32_t rank;
  std::string bytes;
};

absl::StatusOr<std::vector<RankedToken>> ReadRankLines(std::string_view text, const std::string& file) {
  std::vector<RankedToken> tokens;
  RankLines lines(text);
  while (const std::optional<RankLine> line = lines.Next()) {
    const std::string name = absl::StrCat("line ", line->number);
    if (line->token.empty()) {
      return InvalidRanks(file,
                          absl::StrCat(name, " is ", Shown(lines.line()), ", expected a token in base64 and its rank"));
    }
    std::optional<std::string> bytes = DecodeBase64(line->token);
    if (!bytes.has_value() || bytes->empty()) {
      return InvalidRanks(file, absl::StrCat(name, ": token is ", Shown(line->token), ", expected bytes in base64"));
    }
    const std::optional<int32_t> rank = ReadRank(line->rank);
    if (!rank.has_value()) {
      return InvalidRanks(file, absl::StrCat(name, ": rank is ", Shown(line->rank), ", expected a number from 0 to ",
                                             TokenizerSpec::kTokenIdLimit - 1));
    }
    tokens.push_back({line->number, *rank, *std::move(bytes)});
  }
  if (tokens.empty()) return InvalidRanks(file, "there is no line with a token and its rank");
  return tokens;
}

// The tokens in the order of their ranks, which have to be 0 and on, without a gap and without repetition.
absl::StatusOr<std::vector<std::string>> OrderByRank(std::vector<RankedToken> lines, const std::string& file) {
  std::vector<std::string> tokens(lines.size());
  std::vector<size_t> line_of_rank(lines.size());
  absl::flat_hash_map<std::string_view, size_t> line_of_token;
  line_of_token.reserve(lines.size());
  for (RankedToken& line : lines) {
    const std::string name = absl::StrCat("line ", line.line);
    if (static_cast<size_t>(line.rank) >= tokens.size()) {
      return InvalidRanks(file, absl::StrCat(name, ": rank is ", line.rank, ", expected one below ", tokens.size(),
                                             ", the number of ranks"));
    }
    if (line_of_rank[line.rank] != 0) {
      return InvalidRanks(file, absl::StrCat(name, ": rank is ", line.rank, ", as in line ", line_of_rank[line.rank]));
    }
    line_of_rank[line.rank] = line.line;
    std::string& token = tokens[line.rank];
    token = std::move(line.bytes);
    const auto [found, inserted] = line_of_token.emplace(token, line.line);
    if (!inserted) return InvalidRanks(file, absl::StrCat(name, ": token is that of line ", found->second));
  }
  for (int byte = 0; byte < kByteCount; ++byte) {
    if (line_of_token.contains(std::string(1, static_cast<char>(byte)))) continue;
    return InvalidRanks(file, absl::StrFormat("no line has the byte 0x%02X as its token", byte));
  }
  return tokens;
}

absl::StatusOr<TokenizerSpec> SpecOfLines(std::vector<RankedToken> lines, const std::string& file,
                                          const TiktokenKind& kind) {
  const absl::StatusOr<std::vector<std::string>> tokens = OrderByRank(std::move(lines), file);
  if (!tokens.ok()) return tokens.status();
  absl::StatusOr<TokenizerSpec> spec = SpecOfRanks(*tokens, 0, {kind.pattern, false, "the pattern of its kind"}, file);
  if (!spec.ok()) return spec;
  for (const auto& [id, content] : kind.special_tokens) {
    if (id < static_cast<int32_t>(tokens->size()) || id >= TokenizerSpec::kTokenIdLimit) {
      return InvalidRanks(file, absl::StrCat("there are ", tokens->size(), " ranks, but ", id,
                                             " is the id of the special token ", Shown(content)));
    }
    AddSpecialToken(id, content, &*spec);
  }
  spec->bos_id = kind.bos_id;
  spec->eos_id = kind.eos_id;
  if (kind.add_bos && kind.bos_id.has_value()) spec->prefix_ids.push_back(*kind.bos_id);
  return spec;
}

}  // namespace

absl::StatusOr<TokenizerSpec> ParseTekkenJson(const std::string& text, const std::string& file) {
  const absl::StatusOr<json> root = ParseJsonObject(text, file);
  if (!root.ok()) return root.status();
  return TekkenReader(*root, file).Read();
}

bool IsTiktokenRanks(std::string_view text) {
  const std::optional<RankLine> line = RankLines(text).Next();
  return line.has_value() && !line->token.empty() && DecodeBase64(line->token).has_value() &&
         ReadRank(line->rank).has_value();
}

absl::StatusOr<TokenizerSpec> ParseTiktokenRanks(std::string_view text, const std::string& file) {
  absl::StatusOr<std::vector<RankedToken>> lines = ReadRankLines(text, file);
  if (!lines.ok()) return lines.status();
  // StableLM 2's file has as many ranks as cl100k, and cuts text otherwise.
  if (file.find("arcade100k") != std::string::npos) {
    return absl::UnimplementedError(absl::StrCat(file, ": how arcade100k cuts text is not built"));
  }
  const std::optional<TiktokenKind> kind = FindTiktokenKind(lines->size());
  if (!kind.has_value()) {
    return absl::UnimplementedError(absl::StrCat(
        file, ": there are ", lines->size(),
        " ranks, but how text is cut, which such a file does not say, is known only of files with 100256 "
        "(cl100k), 128000 (Llama 3), 151643 (Qwen), 163584 (Kimi K2), 199998 (o200k) or 200000 (Llama 4)"));
  }
  return SpecOfLines(*std::move(lines), file, *kind);
}

absl::StatusOr<TokenizerSpec> ParseTiktokenRanks(std::string_view text, const std::string& file,
                                                 const TiktokenKind& kind) {
  absl::StatusOr<std::vector<RankedToken>> lines = ReadRankLines(text, file);
  if (!lines.ok()) return lines.status();
  return SpecOfLines(*std::move(lines), file, kind);
}

}  // namespace fastdecode
