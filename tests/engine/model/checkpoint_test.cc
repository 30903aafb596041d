#include "engine/model/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/engine/model/safetensors_text.h"
#include "tests/engine/model/scratch_dir.h"

namespace fastdecode {
namespace {

using testing::HasSubstr;

constexpr char kIndex[] = "model.safetensors.index.json";

std::string ErrorOf(const ScratchDir& dir) {
  const auto checkpoint = Checkpoint::Open(dir.path());
  EXPECT_FALSE(checkpoint.ok());
  return std::string(checkpoint.status().message());
}

// Two shards: a and b in the first, c in the second.
void WriteShards(const ScratchDir& dir) {
  dir.Write("one.safetensors", ZeroSafetensors({{"a", {2, 3}}, {"b", {4}}}));
  dir.Write("two.safetensors", ZeroSafetensors({{"c", {5}}}));
  dir.Write(kIndex, R"({"metadata": {"total_size": 30}, "weight_map": {"a": "one.safetensors", "b": "one.safetensors",
                        "c": "two.safetensors"}})");
}

TEST(Checkpoint, OpensASingleFile) {
  ScratchDir dir;
  dir.Write("model.safetensors", ZeroSafetensors({{"a", {2, 3}}, {"b", {4}}}));
  auto opened = Checkpoint::Open(dir.path());
  ASSERT_TRUE(opened.ok()) << opened.status();
  const Checkpoint checkpoint = *std::move(opened);
  EXPECT_EQ(checkpoint.total_bytes(), 20);
  ASSERT_NE(checkpoint.Find("b"), nullptr);
  EXPECT_EQ(checkpoint.Find("b")->bytes, 8u);
  EXPECT_EQ(checkpoint.Find("x"), nullptr);
  EXPECT_EQ(checkpoint.PathOf(*checkpoint.Find("a")), dir.File("model.safetensors"));
}

TEST(Checkpoint, OpensShards) {
  ScratchDir dir;
  WriteShards(dir);
  auto opened = Checkpoint::Open(dir.path());
  ASSERT_TRUE(opened.ok()) << opened.status();
  const Checkpoint checkpoint = *std::move(opened);
  EXPECT_EQ(checkpoint.total_bytes(), 30);
  EXPECT_EQ(checkpoint.files().size(), 2u);
  ASSERT_NE(checkpoint.Find("a"), nullptr);
  ASSERT_NE(checkpoint.Find("c"), nullptr);
  EXPECT_EQ(checkpoint.PathOf(*checkpoint.Find("a")), dir.File("one.safetensors"));
  EXPECT_EQ(checkpoint.PathOf(*checkpoint.Find("c")), dir.File("two.safetensors"));
  checkpoint.DropPages(*checkpoint.Find("c"));
  EXPECT_EQ(checkpoint.Find("c")->data[9], std::byte{0});
}

TEST(Checkpoint, NamesWhatIsNotThere) {
  ScratchDir dir;
  EXPECT_THAT(ErrorOf(dir), HasSubstr(dir.path() + ": neither model.safetensors nor model.safetensors.index.json"));
  EXPECT_THAT(std::string(Checkpoint::Open(dir.File("none")).status().message()), HasSubstr("none: not a folder"));
}

TEST(Checkpoint, NamesLinksThatLeadNowhere) {
  ScratchDir dir;
  std::filesystem::create_symlink("gone", dir.File("model.safetensors"));
  EXPECT_EQ(ErrorOf(dir), dir.File("model.safetensors") + ": a link to nothing");
  std::filesystem::remove(dir.File("model.safetensors"));
  std::filesystem::create_symlink("model.safetensors", dir.File("model.safetensors"));
  EXPECT_THAT(ErrorOf(dir), HasSubstr(dir.File("model.safetensors") + ": cannot open"));
  std::filesystem::remove(dir.File("model.safetensors"));
  std::filesystem::create_symlink("gone", dir.File(kIndex));
  EXPECT_EQ(ErrorOf(dir), dir.File(kIndex) + ": a link to nothing");
}

TEST(Checkpoint, RefusesMissingShard) {
  ScratchDir dir;
  WriteShards(dir);
  std::filesystem::remove(dir.File("two.safetensors"));
  EXPECT_THAT(ErrorOf(dir),
              testing::AllOf(HasSubstr(dir.File(kIndex) + ": names shard two.safetensors"), HasSubstr("cannot open")));
}

Checkpoint Open(const ScratchDir& dir) {
  absl::StatusOr<Checkpoint> checkpoint = Checkpoint::Open(dir.path());
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  return *std::move(checkpoint);
}

// transformers take of the index no more than which files there are.
TEST(Checkpoint, NotesWhereTheIndexIsWrong) {
  ScratchDir dir;
  WriteShards(dir);
  EXPECT_THAT(Open(dir).notes(), testing::IsEmpty());
  dir.Write(kIndex,
            R"({"weight_map": {"a": "two.safetensors", "b": "one.safetensors", "nowhere": "one.safetensors"}})");
  const Checkpoint checkpoint = Open(dir);
  EXPECT_EQ(checkpoint.PathOf(*checkpoint.Find("a")), dir.File("one.safetensors"));
  EXPECT_EQ(checkpoint.PathOf(*checkpoint.Find("c")), dir.File("two.safetensors")) << "which the index does not name";
  EXPECT_EQ(checkpoint.Find("nowhere"), nullptr);
  EXPECT_THAT(
      checkpoint.notes(),
      testing::ElementsAre(dir.File(kIndex) + ": weight_map.a is \"two.safetensors\", which does not count: it is "
                                              "taken from one.safetensors",
                           dir.File(kIndex) + ": weight_map.nowhere is \"one.safetensors\", which has no such "
                                              "tensor, nor has another shard"));
  std::string many;
  for (int i = 0; i < 20; ++i) absl::StrAppend(&many, ", \"x", i, "\": \"one.safetensors\"");
  dir.Write(kIndex, R"({"weight_map": {"c": "two.safetensors")" + many + "}}");
  const Checkpoint wrong = Open(dir);
  EXPECT_EQ(wrong.notes().size(), 5u);
  EXPECT_EQ(wrong.notes().back(), dir.File(kIndex) + ": so are 16 more entries of weight_map");
}

// transformers read one shard after another.
TEST(Checkpoint, OfATensorInTwoShardsTheLaterOneCounts) {
  const auto shard = [](const std::string& names, const std::string& bytes) {
    return SafetensorsText("{" + names + "}", bytes);
  };
  const std::string a = R"("a":{"dtype":"F16","shape":[1],"data_offsets":[0,2]})";
  const std::string b = R"("b":{"dtype":"F16","shape":[1],"data_offsets":[2,4]})";
  ScratchDir dir;
  dir.Write(kIndex, R"({"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}})");
  dir.Write("one.safetensors", shard(a, "11"));
  dir.Write("two.safetensors", shard(a + "," + b, "2233"));
  const Checkpoint checkpoint = Open(dir);
  EXPECT_EQ(checkpoint.PathOf(*checkpoint.Find("a")), dir.File("two.safetensors"));
  EXPECT_EQ(checkpoint.Find("a")->data[0], std::byte{'2'});
  EXPECT_THAT(checkpoint.notes(),
              testing::ElementsAre(dir.File("two.safetensors") + ": tensor a is in " + dir.File("one.safetensors") +
                                   " too, with other values: the former counts, as in transformers, which read the "
                                   "shards in the order of their names"));
  dir.Write("one.safetensors", shard(a, "22"));
  EXPECT_THAT(Open(dir).notes(), testing::IsEmpty()) << "both are the same";
}

TEST(Checkpoint, OneFileCountsMoreThanShards) {
  ScratchDir dir;
  WriteShards(dir);
  dir.Write("model.safetensors", ZeroSafetensors({{"a", {7}}}));
  const Checkpoint checkpoint = Open(dir);
  EXPECT_EQ(checkpoint.Find("a")->bytes, 14u);
  EXPECT_EQ(checkpoint.Find("b"), nullptr);
  EXPECT_THAT(
      checkpoint.notes(),
      testing::ElementsAre(dir.File("model.safetensors") +
                           ": it counts, and model.safetensors.index.json beside it does not, as in transformers"));
}

// This is how safetensors.torch.save_model writes tensors that share memory.
TEST(Checkpoint, FindsATensorByTheOtherNameInTheMetadata) {
  ScratchDir dir;
  const std::string a = R"("a":{"dtype":"F16","shape":[1],"data_offsets":[0,2]})";
  dir.Write("model.safetensors",
            SafetensorsText(R"({"__metadata__":{"format":"pt","b":"a","c":"d","a":"x"},)" + a + "}", "11"));
  const Checkpoint checkpoint = Open(dir);
  EXPECT_EQ(checkpoint.Find("b"), checkpoint.Find("a"));
  EXPECT_NE(checkpoint.Find("a"), nullptr);
  EXPECT_EQ(checkpoint.Find("c"), nullptr) << "of a name that is no tensor's";
  EXPECT_EQ(checkpoint.Find("format"), nullptr);
}

TEST(Checkpoint, AnAdapterBesideTheWeightsIsNoted) {
  ScratchDir dir;
  dir.Write("model.safetensors", ZeroSafetensors({{"a", {7}}}));
  EXPECT_THAT(Open(dir).notes(), testing::IsEmpty());
  dir.Write("adapter_config.json", "{}");
  EXPECT_THAT(Open(dir).notes(),
              testing::ElementsAre(HasSubstr("the LoRA adapter beside the model's weights is not applied")));
}

TEST(Checkpoint, RefusesBrokenShard) {
  ScratchDir dir;
  WriteShards(dir);
  const std::string shard = ReadWhole(dir.File("two.safetensors"));
  dir.Write("two.safetensors", shard.substr(0, shard.size() - 2));
  EXPECT_THAT(ErrorOf(dir), HasSubstr("two.safetensors: tensor c: data_offsets is [0, 10]"));
}

TEST(Checkpoint, RefusesBadIndex) {
  ScratchDir dir;
  WriteShards(dir);
  const auto error = [&](const char* index) {
    dir.Write(kIndex, index);
    return ErrorOf(dir);
  };
  EXPECT_THAT(error("{"), HasSubstr("model.safetensors.index.json: not valid JSON"));
  EXPECT_THAT(error("{}"), HasSubstr("weight_map is missing"));
  EXPECT_THAT(error(R"({"weight_map": []})"), HasSubstr("weight_map is [], expected an object"));
  EXPECT_THAT(error(R"({"weight_map": {}})"), HasSubstr("weight_map is {}, expected an object"));
  EXPECT_THAT(error(R"({"weight_map": {"a": 1}})"), HasSubstr("weight_map.a is 1, expected the name of a file"));
  EXPECT_THAT(error(R"({"weight_map": {"a": "../one.safetensors"}})"),
              HasSubstr("weight_map.a is \"../one.safetensors\""));
  EXPECT_THAT(error(R"({"weight_map": {"a": "/etc/passwd"}})"),
              HasSubstr("expected the name of a file in the same folder"));
  EXPECT_THAT(error(R"({"weight_map": {"a": ".."}})"), HasSubstr("weight_map.a is \"..\""));
  EXPECT_THAT(error(R"({"weight_map": {"\u001b[2J": "\u001b[1m"}})"),
              HasSubstr(R"(weight_map.\u001b[2J is "\u001b[1m", expected the name of a file)"));
  EXPECT_THAT(error(R"({"weight_map": {"a": "\u009b2J"}})"), HasSubstr(R"(a is "\u009b2J", expected the name of a)"));
  const std::string long_name(1 << 20, 'x');
  const std::string shown = error(absl::StrCat(R"({"weight_map": {"a": ")", long_name, R"("}})").c_str());
  EXPECT_THAT(shown, HasSubstr("xxx..., expected the name of a file"));
  EXPECT_LT(shown.size(), 500u);
}

}  // namespace
}  // namespace fastdecode
