#include "engine/text/sentencepiece_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <tuple>
#include <vector>

#include "tests/engine/text/sentencepiece_writer.h"

namespace fastdecode {
namespace {

using absl::StatusCode;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

TokenizerSpec ParseModel(const std::string& bytes) {
  absl::StatusOr<TokenizerSpec> spec = ParseSentencePieceModel(bytes, "DIR/tokenizer.model");
  EXPECT_TRUE(spec.ok()) << spec.status();
  return spec.ok() ? *std::move(spec) : TokenizerSpec();
}

void ExpectModelRefused(const std::string& bytes, StatusCode code, const std::string& message) {
  SCOPED_TRACE(message);
  const auto spec = ParseSentencePieceModel(bytes, "DIR/tokenizer.model");
  ASSERT_FALSE(spec.ok());
  EXPECT_EQ(spec.status().code(), code) << spec.status();
  EXPECT_EQ(std::string(spec.status().message()), absl::StrCat("DIR/tokenizer.model: ", message));
}

void ExpectModelInvalid(const std::string& bytes, const std::string& message) {
  ExpectModelRefused(bytes, StatusCode::kInvalidArgument, message);
}

using Merge = std::tuple<int, int, int>;
std::vector<Merge> ModelMerges(const TokenizerSpec& spec) {
  std::vector<Merge> merges;
  for (const BpeMerge& merge : spec.merges) merges.emplace_back(merge.left, merge.right, merge.merged);
  return merges;
}

std::string WithTrainer(const std::string& fields) {
  return absl::StrCat(SmallPieces(), TrainerField(absl::StrCat(kBpe, fields)), NormalizerField(kKeepSpaces));
}

std::string WithNormalizer(const std::string& fields) {
  return absl::StrCat(SmallPieces(), TrainerField(kBpe), NormalizerField(fields));
}

TEST(SentencePieceModel, VocabularyIsThePieces) {
  const TokenizerSpec spec = ParseModel(SmallModel());
  EXPECT_EQ(spec.file, "DIR/tokenizer.model");
  ASSERT_THAT(spec.vocab, SizeIs(11));
  EXPECT_EQ(spec.vocab[0].key, "<unk>");
  EXPECT_EQ(spec.vocab[6].key, "\u2581a");
  EXPECT_EQ(spec.vocab[6].id, 6);
  EXPECT_EQ(spec.unknown_id, 0);
  EXPECT_TRUE(spec.fuse_unknown);
  EXPECT_FALSE(spec.byte_fallback);
  EXPECT_FALSE(spec.ignore_merges);
  EXPECT_THAT(spec.warnings, testing::IsEmpty());
}

// "abc" is "ab" + "c" and "a" + "bc"; the first has the lower id at its left.
TEST(SentencePieceModel, MergesAreAllSplitsByScoreThenIds) {
  EXPECT_THAT(ModelMerges(ParseModel(SmallModel())),
              ElementsAre(Merge(8, 9, 3), Merge(3, 10, 4), Merge(8, 5, 4), Merge(9, 10, 5), Merge(7, 8, 6)));
}

TEST(SentencePieceModel, ScoresCountAndNotIds) {
  std::string bytes = SpecialFields();
  const std::pair<const char*, float> pieces[] = {{"a", -9},  {"b", -9},     {"ba", -2},
                                                  {"ab", -1}, {"aba", -1.5}, {"bb", -2}};
  for (const auto& [text, score] : pieces) absl::StrAppend(&bytes, PieceField(text, score, kNormal));
  absl::StrAppend(&bytes, TrainerField(kBpe));
  EXPECT_THAT(ModelMerges(ParseModel(bytes)),
              ElementsAre(Merge(3, 4, 6), Merge(3, 5, 7), Merge(6, 3, 7), Merge(4, 3, 5), Merge(4, 4, 8)));
}

TEST(SentencePieceModel, OnlyNormalPiecesAreMerged) {
  const std::string bytes =
      absl::StrCat(SpecialFields(), PieceField("a", 0, kNormal), PieceField("b", 0, kUserDefined),
                   PieceField("ab", 0, kNormal), PieceField("aa", 0, kControl), PieceField("aaa", 0, kNormal),
                   PieceField("a\u2581", 0, kUnused), TrainerField(kBpe), NormalizerField(kKeepSpaces));
  EXPECT_THAT(ParseModel(bytes).merges, IsEmpty());
}

TEST(SentencePieceModel, MergesStayBetweenCharacters) {
  const std::string bytes =
      absl::StrCat(SpecialFields(), PieceField("\u00e9", -2, kNormal), PieceField("\u6f22", -3, kNormal),
                   PieceField("\u00e9\u6f22", -1, kNormal), TrainerField(kBpe));
  EXPECT_THAT(ModelMerges(ParseModel(bytes)), ElementsAre(Merge(3, 4, 5)));
}

TEST(SentencePieceModel, ControlAndUserDefinedPiecesAreAddedTokens) {
  const std::string bytes =
      absl::StrCat(SpecialFields(), PieceField("<x>", 0, kUserDefined), PieceField("\u2581\u2581", 0, kUserDefined),
                   PieceField("\u2581", 0, kNormal), PieceField("<c>", 0, kControl), TrainerField(kBpe),
                   NormalizerField(kKeepSpaces));
  const TokenizerSpec spec = ParseModel(bytes);
  std::vector<std::tuple<int, std::string, bool, bool>> tokens;  // id, content, special, normalized
  for (const AddedToken& token : spec.added_tokens) {
    tokens.emplace_back(token.id, token.content, token.special, token.normalized);
    EXPECT_FALSE(token.lstrip || token.rstrip || token.single_word);
  }
  EXPECT_THAT(tokens, ElementsAre(std::tuple(0, "<unk>", true, false), std::tuple(1, "<s>", true, false),
                                  std::tuple(2, "</s>", true, false), std::tuple(3, "<x>", false, false),
                                  std::tuple(4, "\u2581\u2581", false, true), std::tuple(6, "<c>", true, false)));
}

TEST(SentencePieceModel, BosAndEosAreControlPiecesOfTheirNames) {
  const TokenizerSpec usual = ParseModel(SmallModel());
  EXPECT_EQ(usual.bos_id, 1);
  EXPECT_EQ(usual.eos_id, 2);
  EXPECT_THAT(usual.prefix_ids, ElementsAre(1));
  EXPECT_THAT(usual.suffix_ids, IsEmpty());
  const TokenizerSpec swapped = ParseModel(WithTrainer(absl::StrCat(BytesField(46, "</s>"), BytesField(47, "<s>"))));
  EXPECT_EQ(swapped.bos_id, 2);
  EXPECT_EQ(swapped.eos_id, 1);
  const TokenizerSpec none = ParseModel(WithTrainer(absl::StrCat(BytesField(46, "<bos>"), BytesField(47, "ab"))));
  EXPECT_EQ(none.bos_id, std::nullopt);
  EXPECT_EQ(none.eos_id, std::nullopt) << "not a control piece";
  EXPECT_THAT(none.prefix_ids, IsEmpty());
}

TEST(SentencePieceModel, DummyPrefixIsPutBeforeEveryText) {
  const TokenizerSpec spec = ParseModel(SmallModel());
  ASSERT_THAT(spec.normalizer, SizeIs(1));
  EXPECT_EQ(spec.normalizer[0].kind, NormalizerStep::Kind::kReplace);
  EXPECT_EQ(spec.normalizer[0].pattern.pattern, " ");
  EXPECT_TRUE(spec.normalizer[0].pattern.is_literal);
  EXPECT_EQ(spec.normalizer[0].content, "\u2581");
  ASSERT_THAT(spec.pre_tokenizer, SizeIs(2));
  EXPECT_EQ(spec.pre_tokenizer[0].kind, PreTokenizerStep::Kind::kMetaspace);
  EXPECT_EQ(spec.pre_tokenizer[0].replacement, " ");
  EXPECT_EQ(spec.pre_tokenizer[0].prepend_scheme, PrependScheme::kFirst);
  EXPECT_FALSE(spec.pre_tokenizer[0].split);
  EXPECT_EQ(spec.pre_tokenizer[1].kind, PreTokenizerStep::Kind::kMetaspace);
  EXPECT_EQ(spec.pre_tokenizer[1].replacement, "\u2581");
  EXPECT_EQ(spec.pre_tokenizer[1].prepend_scheme, PrependScheme::kNever);
  EXPECT_FALSE(spec.pre_tokenizer[1].split);
}

TEST(SentencePieceModel, DecoderStripsTheDummyPrefix) {
  const TokenizerSpec spec = ParseModel(SmallModel());
  ASSERT_THAT(spec.decoder, SizeIs(3));
  EXPECT_EQ(spec.decoder[0].kind, DecoderStep::Kind::kReplace);
  EXPECT_EQ(spec.decoder[0].pattern.pattern, "\u2581");
  EXPECT_EQ(spec.decoder[0].content, " ");
  EXPECT_EQ(spec.decoder[1].kind, DecoderStep::Kind::kFuse);
  EXPECT_EQ(spec.decoder[2].kind, DecoderStep::Kind::kStrip);
  EXPECT_EQ(spec.decoder[2].content, " ");
  EXPECT_EQ(spec.decoder[2].start, 1);
  EXPECT_EQ(spec.decoder[2].stop, 0);
}

TEST(SentencePieceModel, WithoutADummyPrefixNothingIsPrependedOrStripped) {
  const TokenizerSpec spec = ParseModel(WithNormalizer(absl::StrCat(VarintField(3, 0), kKeepSpaces)));
  EXPECT_THAT(spec.normalizer, SizeIs(1));
  EXPECT_THAT(spec.pre_tokenizer, IsEmpty());
  ASSERT_THAT(spec.decoder, SizeIs(2));
  EXPECT_EQ(spec.decoder[1].kind, DecoderStep::Kind::kFuse);
}

// Its default is true.
TEST(SentencePieceModel, ExtraSpacesAreRemovedBeforeTheRestIsReplaced) {
  const TokenizerSpec spec = ParseModel(WithNormalizer(""));
  ASSERT_THAT(spec.normalizer, SizeIs(4));
  EXPECT_EQ(spec.normalizer[0].pattern.pattern, "\\A +|[ \u2581]+\\z");
  EXPECT_EQ(spec.normalizer[0].content, "");
  EXPECT_EQ(spec.normalizer[1].pattern.pattern, " {2,}");
  EXPECT_EQ(spec.normalizer[1].content, " ");
  EXPECT_FALSE(spec.normalizer[0].pattern.is_literal || spec.normalizer[1].pattern.is_literal);
  EXPECT_EQ(spec.normalizer[2].content, "\u2581");
  EXPECT_EQ(spec.normalizer[3].kind, NormalizerStep::Kind::kPrepend);
  EXPECT_EQ(spec.normalizer[3].content, "\u2581");
  EXPECT_THAT(spec.pre_tokenizer, IsEmpty());
}

TEST(SentencePieceModel, ByteFallbackTakesAllBytes) {
  const std::string trainer = TrainerField(absl::StrCat(kBpe, kByteFallback));
  const TokenizerSpec spec = ParseModel(absl::StrCat(SpecialFields(), ByteFields(), trainer));
  EXPECT_TRUE(spec.byte_fallback);
  EXPECT_THAT(spec.vocab, SizeIs(259));
  EXPECT_EQ(spec.decoder[1].kind, DecoderStep::Kind::kByteFallback);
  ExpectModelInvalid(absl::StrCat(SpecialFields(), trainer),
                     "trainer_spec.byte_fallback is true, but pieces has no <0x00> of type BYTE");
  ExpectModelInvalid(absl::StrCat(SpecialFields(), PieceField("<0x0A>", 0, kByte), TrainerField(kBpe)),
                     "pieces[3].type is BYTE, but trainer_spec.byte_fallback is false");
  ExpectModelInvalid(absl::StrCat(SpecialFields(), ByteFields(), PieceField("<0x0a>", 0, kByte), trainer),
                     "pieces[259].piece is \"<0x0a>\", expected a byte such as \"<0x0A>\", since its type is BYTE");
}

TEST(SentencePieceModel, MessagesThatComeTwiceAreMergedAndOtherFieldsAreSkipped) {
  const std::string bytes = absl::StrCat(
      BytesField(4, "self test"), SpecialFields(),
      BytesField(1, absl::StrCat(BytesField(1, "x"), VarintField(99, 7), BytesField(1, "a"), FloatField(2, -1))),
      TrainerField(absl::StrCat(kBpe, BytesField(1, "input.txt"), VarintField(40, 5))),
      TrainerField(BytesField(46, "</s>")),
      NormalizerField(absl::StrCat(BytesField(1, "identity"), BytesField(2, ""), kKeepSpaces)), BytesField(5, ""));
  const TokenizerSpec spec = ParseModel(bytes);
  ASSERT_THAT(spec.vocab, SizeIs(4));
  EXPECT_EQ(spec.vocab[3].key, "a");
  EXPECT_EQ(spec.bos_id, 2);
}

TEST(SentencePieceModel, WarnsOfCharactersThatAreNoPieces) {
  const std::string bytes = absl::StrCat(SpecialFields(), PieceField("a", 0, kNormal), PieceField("a\t\t", 0, kNormal),
                                         PieceField("\t\t", 0, kNormal), TrainerField(kBpe));
  EXPECT_THAT(ParseModel(bytes).warnings,
              testing::ElementsAre(HasSubstr("DIR/tokenizer.model: pieces[4].piece has \"\\t\", which is no piece")));
}

TEST(SentencePieceModel, NamesWhatIsNotBuilt) {
  const std::pair<std::string, const char*> cases[] = {
      {absl::StrCat(SmallPieces()),
       "trainer_spec.model_type is UNIGRAM; of SentencePiece's models, only BPE can be read"},
      {WithTrainer(VarintField(3, 3)),
       "trainer_spec.model_type is WORD; of SentencePiece's models, only BPE can be read"},
      {WithTrainer(VarintField(3, 4)),
       "trainer_spec.model_type is CHAR; of SentencePiece's models, only BPE can be read"},
      {WithTrainer(VarintField(24, 1)),
       "trainer_spec.treat_whitespace_as_suffix is true: spaces at the ends of words are not built"},
      {WithNormalizer(BytesField(2, "1234")),
       "normalizer_spec.precompiled_charsmap has 4 bytes: normalization by a table "
       "of characters is not built"},
      {absl::StrCat(SmallModel(), BytesField(5, BytesField(2, "12"))),
       "denormalizer_spec.precompiled_charsmap has 2 bytes: normalization by a table of characters is not built"},
      {WithNormalizer(VarintField(5, 0)),
       "normalizer_spec.escape_whitespaces is false: pieces with spaces as they are are not built"},
      {absl::StrCat(SmallModel(), PieceField("abab", -9, kUnused)),
       "pieces[11].type is UNUSED: a piece that is merged and taken apart again (\"abab\") is not built"},
      {absl::StrCat(SmallPieces(), PieceField("<x>", 0, kUserDefined), TrainerField(kBpe)),
       "pieces[11].type is USER_DEFINED (\"<x>\") and normalizer_spec.remove_extra_whitespaces is true: both together "
       "are not built"},
  };
  for (const auto& [bytes, message] : cases) ExpectModelRefused(bytes, StatusCode::kUnimplemented, message);
}

TEST(SentencePieceModel, NamesPieceAndValue) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::string trainer = TrainerField(kBpe);
  ExpectModelInvalid("", "pieces is missing, expected those of a SentencePiece model");
  ExpectModelInvalid(trainer, "pieces is missing, expected those of a SentencePiece model");
  ExpectModelInvalid(absl::StrCat(SpecialFields(), PieceField("a", nan, kNormal), trainer),
                     "pieces[3].score is NaN, expected a number");
  ExpectModelInvalid(absl::StrCat(SpecialFields(), PieceField("a", 0, kNormal), PieceField("a", 0, kNormal), trainer),
                     "pieces[4].piece is \"a\", as is pieces[3].piece");
  ExpectModelInvalid(absl::StrCat(SpecialFields(), PieceField("", 0, kNormal), trainer),
                     "pieces[3].piece is empty, expected a text");
  ExpectModelInvalid(absl::StrCat(SpecialFields(), BytesField(1, FloatField(2, 0)), trainer),
                     "pieces[3].piece is empty, expected a text");
  ExpectModelInvalid(absl::StrCat(SpecialFields(), PieceField("a\xff", 0, kNormal), trainer),
                     "pieces[3].piece is \"a\\ufffd\", which is no UTF-8");
  ExpectModelInvalid(absl::StrCat(SpecialFields(), PieceField("a", 0, 7), trainer),
                     "pieces[3].type is 7, expected a number from 1 to 6");
  ExpectModelInvalid(absl::StrCat(SpecialFields(), PieceField("a", 0, 0), trainer),
                     "pieces[3].type is 0, expected a number from 1 to 6");
  ExpectModelInvalid(absl::StrCat(PieceField("a", 0, kNormal), trainer),
                     "pieces has none of type UNKNOWN, expected one");
  ExpectModelInvalid(absl::StrCat(SpecialFields(), PieceField("a", 0, kUnknown), trainer),
                     "pieces[3].type is UNKNOWN, as is pieces[0].type");
  ExpectModelInvalid(WithTrainer(VarintField(3, 9)), "trainer_spec.model_type is 9, expected a number from 1 to 4");
  ExpectModelInvalid(WithTrainer(BytesField(46, "\xc3")), "trainer_spec.bos_piece is \"\\ufffd\", which is no UTF-8");
}

TEST(SentencePieceModel, NamesFieldOfAnotherWireType) {
  const auto with_piece = [](const std::string& field) {
    return absl::StrCat(SpecialFields(), BytesField(1, absl::StrCat(BytesField(1, "a"), field)), TrainerField(kBpe));
  };
  ExpectModelInvalid(absl::StrCat(SpecialFields(), VarintField(1, 5)), "pieces[3] has wire type 0, expected 2");
  ExpectModelInvalid(with_piece(VarintField(1, 5)), "pieces[3].piece has wire type 0, expected 2");
  ExpectModelInvalid(with_piece(VarintField(2, 5)), "pieces[3].score has wire type 0, expected 5");
  ExpectModelInvalid(with_piece(FloatField(3, 5)), "pieces[3].type has wire type 5, expected 0");
  ExpectModelInvalid(absl::StrCat(SpecialFields(), VarintField(2, 5)), "trainer_spec has wire type 0, expected 2");
  ExpectModelInvalid(absl::StrCat(SpecialFields(), VarintField(3, 5)), "normalizer_spec has wire type 0, expected 2");
  ExpectModelInvalid(absl::StrCat(SpecialFields(), VarintField(5, 5)), "denormalizer_spec has wire type 0, expected 2");
  for (const auto& [number, name] :
       {std::pair(3, "model_type"), std::pair(24, "treat_whitespace_as_suffix"), std::pair(35, "byte_fallback")}) {
    ExpectModelInvalid(WithTrainer(BytesField(number, "x")),
                       absl::StrCat("trainer_spec.", name, " has wire type 2, expected 0"));
  }
  for (const auto& [number, name] : {std::pair(3, "add_dummy_prefix"), std::pair(4, "remove_extra_whitespaces"),
                                     std::pair(5, "escape_whitespaces")}) {
    ExpectModelInvalid(WithNormalizer(BytesField(number, "x")),
                       absl::StrCat("normalizer_spec.", name, " has wire type 2, expected 0"));
  }
}

TEST(SentencePieceModel, NamesWhereBytesAreCutOff) {
  const std::string small = SmallModel();
  ExpectModelInvalid("\x0a", "the file is no SentencePiece model: a varint is cut off at byte 1");
  ExpectModelInvalid("\x0a\xff", "the file is no SentencePiece model: a varint is cut off at byte 1");
  ExpectModelInvalid(absl::StrCat("\x0a", std::string(9, '\xff'), "\x02"),
                     "the file is no SentencePiece model: a varint is longer than 64 bits at byte 1");
  ExpectModelInvalid(
      "\x0a\x05"
      "abcd",
      "the file is no SentencePiece model: a length is 5, but 4 bytes are left at byte 1");
  ExpectModelInvalid("{\"model\": 1}",
                     "the file is no SentencePiece model: field 15 has wire type 3, expected 0, 1, 2 or 5 at byte 0");
  ExpectModelInvalid(std::string("\0\0", 2), "the file is no SentencePiece model: field number 0 at byte 0");
  ExpectModelInvalid(absl::StrCat(SpecialFields(), BytesField(1, "\x15\x01\x02")),
                     "pieces[3]: a value of 4 bytes is cut off at byte 1");
  ExpectModelInvalid(WithTrainer("\x49\x01"), "trainer_spec: a value of 8 bytes is cut off at byte 3");
  ExpectModelInvalid(WithNormalizer("\x18"), "normalizer_spec: a varint is cut off at byte 1");
  for (size_t bytes = 0; bytes < small.find(TrainerField(kBpe)) + 2; ++bytes) {
    const auto spec = ParseSentencePieceModel(small.substr(0, bytes), "FILE");
    ASSERT_FALSE(spec.ok()) << bytes << " bytes have no trainer_spec, or half of one";
    EXPECT_THAT(std::string(spec.status().message()), testing::StartsWith("FILE: "));
  }
}

}  // namespace
}  // namespace fastdecode
