#include "engine/model/safetensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/engine/model/safetensors_text.h"
#include "tests/engine/model/scratch_dir.h"

namespace fastdecode {
namespace {

using testing::HasSubstr;

std::string ErrorOf(const std::string& text) {
  const auto tensors = ParseSafetensors(AsBytes(text), "some/model.safetensors");
  EXPECT_FALSE(tensors.ok());
  return std::string(tensors.status().message());
}

// One tensor "w" described by `fields`, and `buffer_bytes` zeros.
std::string ErrorOfTensor(const std::string& fields, size_t buffer_bytes) {
  return ErrorOf(SafetensorsText("{\"w\":{" + fields + "}}", std::string(buffer_bytes, '\0')));
}

TEST(Safetensors, ReadsTensorsOfEveryTypeInBufferOrder) {
  const std::string header = R"({"__metadata__":{"format":"pt"},)"
                             R"("c":{"dtype":"BF16","shape":[2,3],"data_offsets":[8,20]},)"
                             R"("a":{"dtype":"F32","shape":[],"data_offsets":[0,4]},)"
                             R"("none":{"shape":[0,7],"dtype":"F32","data_offsets":[8,8]},)"
                             R"("b":{"data_offsets":[4,8],"dtype":"F16","shape":[2]}}   )";
  const std::string text = SafetensorsText(header, "0123456789abcdefghij");
  const auto tensors = ParseSafetensors(AsBytes(text), "f");
  ASSERT_TRUE(tensors.ok()) << tensors.status();
  ASSERT_EQ(tensors->size(), 4u);
  const char* names[] = {"a", "b", "none", "c"};
  const DType types[] = {DType::kF32, DType::kF16, DType::kF32, DType::kBf16};
  const std::vector<int64_t> shapes[] = {{}, {2}, {0, 7}, {2, 3}};
  const std::string contents[] = {"0123", "4567", "", "89abcdefghij"};
  const int64_t elements[] = {1, 2, 0, 6};
  for (size_t i = 0; i < 4; ++i) {
    const TensorView& tensor = (*tensors)[i];
    EXPECT_EQ(tensor.name, names[i]);
    EXPECT_EQ(tensor.dtype, types[i]);
    EXPECT_EQ(tensor.shape, shapes[i]);
    EXPECT_EQ(std::string(reinterpret_cast<const char*>(tensor.data), tensor.bytes), contents[i]);
    EXPECT_EQ(tensor.elements(), elements[i]);
  }
}

TEST(Safetensors, RefusesTruncatedFiles) {
  EXPECT_THAT(ErrorOf(""), HasSubstr("some/model.safetensors: size is 0 bytes"));
  EXPECT_THAT(ErrorOf("1234567"), HasSubstr("size is 7 bytes, expected at least 8 (is the file truncated?)"));
  const std::string whole = ZeroSafetensors({{"first", {4, 4}}, {"second", {8}}});
  ASSERT_TRUE(ParseSafetensors(AsBytes(whole), "f").ok());
  for (size_t size = 0; size < whole.size(); ++size) {
    EXPECT_THAT(ErrorOf(whole.substr(0, size)), HasSubstr("some/model.safetensors: ")) << size;
  }
  const std::string error = ErrorOf(whole.substr(0, whole.size() - 1));
  EXPECT_THAT(error, HasSubstr("tensor second: data_offsets is [32, 48], expected a range in the 47 bytes"));
  EXPECT_THAT(error, HasSubstr("truncated"));
}

TEST(Safetensors, RefusesHeaderLongerThanFileOrLimit) {
  EXPECT_THAT(ErrorOf(SafetensorsText("{}", "", 3)),
              HasSubstr("header length is 3, expected at most 2 in a file of 10 bytes"));
  std::string huge = SafetensorsText("{}", "");
  std::memset(huge.data(), 0xff, 8);
  EXPECT_THAT(ErrorOf(huge), HasSubstr("header length is 18446744073709551615, expected at most 2"));
  // Over the limit although the file is long enough.
  const std::string long_header(100'000'001, ' ');
  EXPECT_THAT(ErrorOf(SafetensorsText(long_header, "")),
              HasSubstr("header length is 100000001, expected at most 100000000"));
}

TEST(Safetensors, RefusesBadJson) {
  EXPECT_THAT(ErrorOf(SafetensorsText("", "")), HasSubstr("header is not valid JSON"));
  EXPECT_THAT(ErrorOf(SafetensorsText("{\"w\":", "")), HasSubstr("header is not valid JSON"));
  EXPECT_THAT(ErrorOf(SafetensorsText("{} {}", "")), HasSubstr("header is not valid JSON"));
  EXPECT_THAT(ErrorOf(SafetensorsText("[]", "")), HasSubstr("header: is an array, which is not expected here"));
  EXPECT_THAT(ErrorOf(SafetensorsText("{\"w\":7}", "")), HasSubstr("header: w is 7, which is not expected here"));
  EXPECT_THAT(ErrorOf(SafetensorsText("{\"__metadata__\":{\"a\":{}}}", "")), HasSubstr("an object"));
  EXPECT_THAT(ErrorOf(SafetensorsText(std::string(1'000'000, '['), "")), HasSubstr("header: is an array"));
}

TEST(Safetensors, ShowsTextOfTheFileCutAndWithoutControlCharacters) {
  const std::string name = R"(\u001b[2J)";
  EXPECT_THAT(ErrorOf(SafetensorsText("{\"" + name + "\":7}", "")), HasSubstr("header: " + name + " is 7"));
  EXPECT_THAT(ErrorOf(SafetensorsText(
                  "{\"" + name + "\":{\"dtype\":\"" + name + "\",\"shape\":[],\"data_offsets\":[0,0]}}", "")),
              HasSubstr("tensor " + name + ": dtype is \"" + name + "\", expected F32"));
  EXPECT_THAT(ErrorOfTensor("\"kind\":\"" + name + "\"", 0), HasSubstr("kind is \"" + name + "\", which"));
  EXPECT_THAT(ErrorOf(SafetensorsText("{\"\xc2\x9b", "")), HasSubstr("\\u009b"));
  for (const std::string& text :
       {"{\"" + std::string(1'000'000, 'x'), "{\"" + std::string(1'000'000, 'x') + "\":7}",
        "{\"w\":" + std::string(1'000'000, '9') + "}", "{\"w\":1." + std::string(1'000'000, '9') + "}",
        "{\"w\":\"" + std::string(1'000'000, 'x') + "\"}"}) {
    EXPECT_LT(ErrorOf(SafetensorsText(text, "")).size(), 500u) << text.substr(0, 10);
  }
}

TEST(Safetensors, RefusesIncompleteOrOddEntries) {
  EXPECT_THAT(ErrorOfTensor(R"("shape":[1],"data_offsets":[0,4])", 4), HasSubstr("tensor w: dtype is missing"));
  EXPECT_THAT(ErrorOfTensor(R"("dtype":"F32","data_offsets":[0,4])", 4), HasSubstr("tensor w: shape is missing"));
  EXPECT_THAT(ErrorOfTensor(R"("dtype":"F32","shape":[1])", 4), HasSubstr("tensor w: data_offsets is missing"));
  EXPECT_THAT(ErrorOfTensor(R"("dtype":"F32","shape":[1],"data_offsets":[0])", 4),
              HasSubstr("data_offsets is missing"));
  EXPECT_THAT(ErrorOfTensor(R"("dtype":"F32","shape":[1],"data_offsets":[0,4,8])", 8), HasSubstr("data_offsets is 8"));
  EXPECT_THAT(ErrorOfTensor(R"("dtype":"F32","shape":[-1],"data_offsets":[0,4])", 4), HasSubstr("shape is -1"));
  EXPECT_THAT(ErrorOfTensor(R"("dtype":"F32","shape":[1.5],"data_offsets":[0,4])", 4), HasSubstr("shape is 1.5"));
  EXPECT_THAT(ErrorOfTensor(R"("dtype":"F32","shape":[[1]],"data_offsets":[0,4])", 4), HasSubstr("shape is an array"));
  EXPECT_THAT(ErrorOfTensor(R"("dtype":"F32","shape":null,"data_offsets":[0,4])", 4), HasSubstr("shape is null"));
  EXPECT_THAT(ErrorOfTensor(R"("dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4])", 4),
              HasSubstr("shape is 1"));
  EXPECT_THAT(ErrorOfTensor(R"("dtype":32,"shape":[1],"data_offsets":[0,4])", 4), HasSubstr("dtype is 32"));
  EXPECT_THAT(ErrorOfTensor(R"("dtype":"F32","kind":"x")", 4), HasSubstr("tensor w: kind is \"x\""));
  EXPECT_THAT(ErrorOfTensor(R"("dtype":"F32","dtype":"F16")", 4), HasSubstr("tensor w: dtype is there twice"));
}

TEST(Safetensors, RefusesUnknownType) {
  for (const std::string name : {"F12", "f32", "", "bool"}) {
    EXPECT_THAT(ErrorOfTensor("\"dtype\":\"" + name + R"(","shape":[4],"data_offsets":[0,4])", 4),
                HasSubstr("some/model.safetensors: tensor w: dtype is \"" + name +
                          "\", expected F32, F16, BF16, F64 or "
                          "another one of safetensors"));
  }
}

// What no model needs may be of any type that safetensors has; whoever needs it refuses it.
TEST(Safetensors, ReadsTheHeaderOfTensorsOfOtherTypes) {
  const std::pair<const char*, int> types[] = {{"I64", 8},     {"U64", 8},     {"C64", 8},    {"I32", 4}, {"U32", 4},
                                               {"I16", 2},     {"U16", 2},     {"I8", 1},     {"U8", 1},  {"BOOL", 1},
                                               {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"F8_E8M0", 1}};
  for (const auto& [name, bytes] : types) {
    const int end = 6 * bytes;
    const std::string header =
        absl::StrCat(R"({"w":{"dtype":")", name, R"(","shape":[2,3],"data_offsets":[0,)", end, "]}}");
    const std::string text = SafetensorsText(header, std::string(static_cast<size_t>(end), 'x'));
    const auto tensors = ParseSafetensors(AsBytes(text), "f");
    ASSERT_TRUE(tensors.ok()) << tensors.status();
    EXPECT_EQ((*tensors)[0].dtype, DType::kOther);
    EXPECT_EQ((*tensors)[0].dtype_name(), name);
    EXPECT_EQ((*tensors)[0].elements(), 6);
    EXPECT_THAT(ErrorOf(SafetensorsText(header, std::string(static_cast<size_t>(end - 1), 'x'))),
                HasSubstr("truncated"));
  }
  EXPECT_THAT(ErrorOfTensor(R"("dtype":"I64","shape":[2],"data_offsets":[0,8])", 8),
              HasSubstr("which are 8 bytes, expected 16 for I64 of shape [2]"));
  const std::string four = SafetensorsText(R"({"w":{"dtype":"F4","shape":[4],"data_offsets":[0,2]}})", "xx");
  EXPECT_TRUE(ParseSafetensors(AsBytes(four), "f").ok());
}

TEST(Safetensors, KeepsTheMetadata) {
  const auto metadata_of = [](const std::string& header) {
    const std::string text = SafetensorsText(header, "");
    std::map<std::string, std::string> metadata;
    const auto tensors = ParseSafetensors(AsBytes(text), "f", &metadata);
    EXPECT_TRUE(tensors.ok()) << tensors.status();
    return metadata;
  };
  EXPECT_THAT(metadata_of(R"({"__metadata__":{"format":"pt","lm_head.weight":"model.embed_tokens.weight"}})"),
              testing::ElementsAre(testing::Pair("format", "pt"),
                                   testing::Pair("lm_head.weight", "model.embed_tokens.weight")));
  for (const char* none : {"{}", R"({"__metadata__":{}})", R"({"__metadata__":null})"}) {
    EXPECT_THAT(metadata_of(none), testing::IsEmpty()) << none;
  }
  EXPECT_THAT(ErrorOf(SafetensorsText(R"({"__metadata__":[]})", "")), HasSubstr("header: __metadata__ is an array"));
  EXPECT_THAT(ErrorOf(SafetensorsText(R"({"__metadata__":{"a":1}})", "")), HasSubstr("header: __metadata__ is 1"));
  EXPECT_THAT(ErrorOf(SafetensorsText(R"({"w":null})", "")), HasSubstr("header: w is null"));
}

TEST(Safetensors, RefusesOffsetsOutOfRange) {
  EXPECT_THAT(ErrorOfTensor(R"("dtype":"F32","shape":[2],"data_offsets":[0,8])", 7),
              HasSubstr("tensor w: data_offsets is [0, 8], expected a range in the 7 bytes after the header"));
  EXPECT_THAT(ErrorOfTensor(R"("dtype":"F32","shape":[2],"data_offsets":[8,0])", 8),
              HasSubstr("data_offsets is [8, 0]"));
  EXPECT_THAT(
      ErrorOfTensor(R"("dtype":"F32","shape":[2],"data_offsets":[18446744073709551608,18446744073709551615])", 8),
      HasSubstr("data_offsets is [18446744073709551608, 18446744073709551615]"));
}

TEST(Safetensors, RefusesSpanOfOtherSizeThanShape) {
  EXPECT_THAT(ErrorOfTensor(R"("dtype":"F16","shape":[2,2],"data_offsets":[0,4])", 4),
              HasSubstr("data_offsets is [0, 4], which are 4 bytes, expected 8 for F16 of shape [2, 2]"));
  // 2^32 * 2^32 elements are 0 modulo 2^64.
  EXPECT_THAT(ErrorOfTensor(R"("dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0])", 0),
              HasSubstr("expected more than 64 bits count for F32 of shape [4294967296, 4294967296]"));
  EXPECT_THAT(ErrorOfTensor(R"("dtype":"F32","shape":[0,18446744073709551615],"data_offsets":[0,0])", 0),
              HasSubstr("tensor w: "));
}

TEST(Safetensors, RefusesOverlapAndHoles) {
  const auto two = [](const char* second) {
    return SafetensorsText(std::string(R"({"a":{"dtype":"F16","shape":[4],"data_offsets":[0,8]},)") +
                               R"("b":{"dtype":"F16","shape":[4],"data_offsets":)" + second + "}}",
                           std::string(20, '\0'));
  };
  EXPECT_THAT(
      ErrorOf(two("[6,14]")),
      HasSubstr("tensor b: data_offsets is [6, 14], which overlaps the tensor before it, expected to begin at 8"));
  EXPECT_THAT(ErrorOf(two("[0,8]")), HasSubstr("overlaps"));
  EXPECT_THAT(ErrorOf(two("[10,18]")), HasSubstr("data_offsets is [10, 18], which leaves a hole after"));
  EXPECT_THAT(ErrorOf(two("[8,16]")), HasSubstr("size is 20 bytes after the header, expected 16"));
}

TEST(Safetensors, RefusesDuplicateNames) {
  EXPECT_THAT(ErrorOf(SafetensorsText(R"({"w":{"dtype":"F16","shape":[1],"data_offsets":[0,2]},)"
                                      R"("w":{"dtype":"F16","shape":[1],"data_offsets":[2,4]}})",
                                      "1234")),
              HasSubstr("header: w is there twice"));
}

TEST(SafetensorsFile, MapsAFile) {
  ScratchDir dir;
  dir.Write("m.safetensors", SafetensorsText(R"({"w":{"dtype":"F16","shape":[2],"data_offsets":[0,4]}})", "abcd"));
  auto file = SafetensorsFile::Open(dir.File("m.safetensors"));
  ASSERT_TRUE(file.ok()) << file.status();
  SafetensorsFile moved = *std::move(file);
  ASSERT_EQ(moved.tensors().size(), 1u);
  moved.DropPages(moved.tensors()[0]);
  EXPECT_EQ(std::memcmp(moved.tensors()[0].data, "abcd", 4), 0);
}

TEST(SafetensorsFile, NamesWhatCannotBeOpened) {
  ScratchDir dir;
  dir.Write("empty", "");
  const auto missing = SafetensorsFile::Open(dir.File("missing"));
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(missing.status().message()), HasSubstr(dir.File("missing") + ": cannot open"));
  EXPECT_THAT(std::string(SafetensorsFile::Open(dir.path()).status().message()), HasSubstr("not a regular file"));
  EXPECT_THAT(std::string(SafetensorsFile::Open(dir.File("empty")).status().message()), HasSubstr("size is 0 bytes"));
}

// The bytes of the file that are mapped and resident in this process.
int64_t ResidentKb(const std::string& path) {
  std::ifstream maps("/proc/self/smaps");
  std::string line;
  bool ours = false;
  int64_t kb = 0;
  while (std::getline(maps, line)) {
    if (line.find('-') < line.find(' ')) ours = line.find(path) != std::string::npos;
    if (ours && line.rfind("Rss:", 0) == 0) kb += std::stoll(line.substr(4));
  }
  return kb;
}

TEST(SafetensorsFile, DropsPages) {
  ScratchDir dir;
  const std::string path = dir.File("m.safetensors");
  dir.Write("m.safetensors", ZeroSafetensors({{"w", {1 << 20}}}));
  const auto file = SafetensorsFile::Open(path);
  ASSERT_TRUE(file.ok()) << file.status();
  const TensorView& tensor = file->tensors()[0];
  int64_t sum = 0;
  for (size_t i = 0; i < tensor.bytes; i += 4096) sum += std::to_integer<int>(tensor.data[i]);
  EXPECT_EQ(sum, 0);
  EXPECT_GE(ResidentKb(path), 2048);
  file->DropPages(tensor, tensor.bytes / 2, tensor.bytes / 2);
  EXPECT_LE(ResidentKb(path), 1024 + 8)
      << "the other half, if it has no large page with this one, and what shares a page";
  file->DropPages(tensor);
  EXPECT_EQ(ResidentKb(path), 0);
}

}  // namespace
}  // namespace fastdecode
