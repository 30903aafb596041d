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

TEST(Checkpoint, RefusesTensorInAnotherShardThanTheIndexSays) {
  ScratchDir dir;
  WriteShards(dir);
  dir.Write(kIndex, R"({"weight_map": {"a": "two.safetensors", "b": "one.safetensors", "c": "two.safetensors"}})");
  EXPECT_THAT(ErrorOf(dir), HasSubstr(": weight_map.a is \"two.safetensors\", expected a file that has this tensor"));
  dir.Write(kIndex, R"({"weight_map": {"a": "one.safetensors", "nowhere": "one.safetensors"}})");
  EXPECT_THAT(ErrorOf(dir), HasSubstr(": weight_map.nowhere is \"one.safetensors\""));
}

TEST(Checkpoint, RefusesTensorInTwoShards) {
  ScratchDir dir;
  WriteShards(dir);
  dir.Write("two.safetensors", ZeroSafetensors({{"c", {5}}, {"a", {1}}}));
  EXPECT_THAT(ErrorOf(dir), HasSubstr("two.safetensors: tensor a is in " + dir.File("one.safetensors") + " too"));
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
