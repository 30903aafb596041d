#include "engine/text/bpe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "engine/text/byte_alphabet.h"
#include "engine/text/utf8.h"

namespace fastdecode {
namespace {

// A vocabulary of the bytes (their ids are their values), then of what `merges` make.
TokenizerSpec MakeSpec(const std::vector<std::pair<std::string, std::string>>& merges) {
  TokenizerSpec spec;
  spec.pre_tokenizer = {{.kind = PreTokenizerStep::Kind::kByteLevel}};
  std::map<std::string, int32_t> ids;
  const auto id_of = [&](const std::string& key) {
    const auto [found, is_new] = ids.try_emplace(key, static_cast<int32_t>(ids.size()));
    if (is_new) spec.vocab.push_back({key, found->second});
    return found->second;
  };
  for (int byte = 0; byte < 256; ++byte) id_of(ByteLevelCharacter(static_cast<uint8_t>(byte)));
  for (const auto& [left, right] : merges) spec.merges.push_back({id_of(left), id_of(right), id_of(left + right)});
  return spec;
}

std::vector<int32_t> Encode(const Bpe& bpe, const std::string& text) {
  Bpe::Scratch scratch;
  std::vector<int32_t> ids;
  bpe.Encode(text, &scratch, &ids);
  return ids;
}

TEST(ByteLevelAlphabet, SpellsEveryByteAsOneCharacter) {
  EXPECT_EQ(ByteLevelCharacter('a'), "a");
  EXPECT_EQ(ByteLevelCharacter(' '), "Ġ");
  EXPECT_EQ(ByteLevelCharacter('\n'), "Ċ");
  EXPECT_EQ(ByteLevelCharacter(0), "Ā");
  EXPECT_EQ(ByteLevelCharacter(0xAD), "Ń");
  EXPECT_EQ(ByteLevelCharacter(0xFF), "ÿ");
  for (int byte = 0; byte < 256; ++byte) {
    const std::string key = ByteLevelCharacter(static_cast<uint8_t>(byte));
    EXPECT_EQ(ByteLevelBytes(key), std::string(1, static_cast<char>(byte)));
  }
  EXPECT_EQ(ByteLevelBytes(" "), std::nullopt);
  EXPECT_EQ(ByteLevelBytes("a日"), std::nullopt);
  EXPECT_EQ(ByteLevelBytes("a\xC4"), std::nullopt);
}

TEST(Bpe, MergesTheLowestRankFirstAndThenTheLeftmost) {
  const Bpe bpe(MakeSpec({{"b", "c"}, {"a", "b"}, {"a", "a"}}));  // ids 256, 257, 258
  EXPECT_EQ(Encode(bpe, "abc"), (std::vector<int32_t>{'a', 256}));
  EXPECT_EQ(Encode(bpe, "aaa"), (std::vector<int32_t>{258, 'a'}));
  EXPECT_EQ(Encode(bpe, "ab"), (std::vector<int32_t>{257}));
}

TEST(Bpe, NumbersBytesAsTheVocabularyDoes) {
  const TokenizerSpec spec = MakeSpec({});
  const Bpe bpe(spec);
  for (int byte = 0; byte < 256; ++byte) {
    EXPECT_EQ(Encode(bpe, std::string(1, static_cast<char>(byte))), std::vector<int32_t>{byte});
  }
}

// A word as long as a text must not cost the square of its length: this would then take hours.
TEST(Bpe, MergesAMegabyteWord) {
  std::vector<std::pair<std::string, std::string>> merges;
  for (std::string run = "a"; run.size() < 64; run += run) merges.emplace_back(run, run);
  const Bpe bpe(MakeSpec(merges));
  const std::vector<int32_t> ids = Encode(bpe, std::string(1 << 20, 'a'));
  EXPECT_EQ(ids.size(), size_t{(1 << 20) / 64});
  EXPECT_EQ(ids, std::vector<int32_t>((1 << 20) / 64, 261));
}

// The definition, literally: as long as some pair can be merged, merge the leftmost of the lowest rank.
std::vector<int32_t> EncodeNaively(const TokenizerSpec& spec, const std::string& text) {
  std::vector<int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
  while (true) {
    size_t best_rank = spec.merges.size();
    size_t best_position = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      for (size_t rank = 0; rank < best_rank; ++rank) {
        if (spec.merges[rank].left != ids[i] || spec.merges[rank].right != ids[i + 1]) continue;
        best_rank = rank;
        best_position = i;
      }
    }
    if (best_rank == spec.merges.size()) return ids;
    ids[best_position] = spec.merges[best_rank].merged;
    ids.erase(ids.begin() + static_cast<std::ptrdiff_t>(best_position) + 1);
  }
}

TEST(Bpe, EqualsTheDefinition) {
  std::mt19937 rng(1);
  for (int round = 0; round < 50; ++round) {
    // As training would: each token is made by one merge only, from tokens that were there before.
    std::vector<std::string> tokens = {"a", "b", "c", "\xC3\xA9"};
    std::vector<std::pair<std::string, std::string>> merges;
    while (merges.size() < 20) {
      const std::string& left = tokens[rng() % tokens.size()];
      const std::string& right = tokens[rng() % tokens.size()];
      if (std::ranges::count(tokens, left + right) > 0) continue;
      merges.emplace_back(left, right);
      tokens.push_back(left + right);
    }
    const TokenizerSpec spec = MakeSpec(merges);
    const Bpe bpe(spec);
    for (int i = 0; i < 40; ++i) {
      std::string text;
      for (size_t length = rng() % 40; text.size() < length;) text += "abc\xE9"[rng() % 4];
      EXPECT_EQ(Encode(bpe, text), EncodeNaively(spec, text)) << text;
    }
  }
}

}  // namespace
}  // namespace fastdecode
