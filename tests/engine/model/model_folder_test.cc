#include "engine/model/model_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <string_view>

#include "engine/model/checkpoint.h"
#include "engine/model/model_config.h"
#include "tests/engine/model/safetensors_text.h"
#include "tests/engine/model/scratch_dir.h"

namespace fastdecode {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::StartsWith;
using namespace std::string_view_literals;

// A file in a folder of the scratch folder; the folder's path.
std::string Put(const ScratchDir& dir, const std::string& folder, const std::string& file,
                const std::string& text = "x") {
  const std::filesystem::path path = std::filesystem::path(dir.File(folder)) / file;
  std::filesystem::create_directories(path.parent_path());
  dir.Write((std::filesystem::path(folder) / file).string(), text);
  return dir.File(folder);
}

TEST(GuessContent, KnowsWhatPeopleTakeForAModelsFile) {
  struct Case {
    std::string_view bytes;
    const char* guess;
  };
  const Case cases[] = {
      {"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 134\n"sv,
       "run 'git lfs install' and 'git lfs pull'"},
      {"<!DOCTYPE html>\n<html>"sv, "a web page"},
      {"\n  <html lang=\"en\">"sv, "a web page"},
      {"\xef\xbb\xbf<!doctype HTML>"sv, "a web page"},
      {"<?xml version=\"1.0\"?><Error><Code>AccessDenied"sv, "a web page"},
      {"Entry not found"sv, "a server's answer"},
      {"Invalid username or password."sv, "hf auth login"},
      {"GGUF\x03\0\0\0"sv, "GGUF"},
      {"PK\x03\x04\0\0"sv, "PyTorch"},
      {"\x80\x02\x8a\x0a"sv, "pickle"},
      {"\x89HDF\r\n"sv, "HDF5"},
      {"\x1f\x8b\x08\0"sv, "gunzip"},
      {"\xff\xfe{\0"sv, "iconv -f UTF-16"},
      {"\xfe\xff\0{"sv, "iconv -f UTF-16"},
      {"{\0\r\0\n\0"sv, "iconv -f UTF-16"},
      {"\0\0\0\0\0\0\0\0\0"sv, "begins with zeros"},
      {""sv, "it is empty"},
  };
  for (const Case& c : cases) EXPECT_THAT(GuessContent(c.bytes), HasSubstr(c.guess)) << c.bytes;
  // Right files, and those that are wrong in no way that is known.
  for (const std::string_view bytes :
       {"{\"model_type\": \"llama\"}"sv, " {}"sv, "[1]"sv, "x"sv, "{\0\0\0\0\0\0\0{}"sv}) {
    EXPECT_EQ(GuessContent(bytes), "") << bytes;
  }
  EXPECT_EQ(GuessContent(ZeroSafetensors({{"a", {2}}})), "");
}

TEST(GuessWhyNoConfig, OfWhatIsNoFolder) {
  EXPECT_THAT(
      GuessWhyNoConfig("meta-llama/Llama-3.2-1B"),
      HasSubstr("hf download meta-llama/Llama-3.2-1B --local-dir Llama-3.2-1B (older: huggingface-cli download), "
                "then -m Llama-3.2-1B"));
  EXPECT_THAT(GuessWhyNoConfig("gpt2-of-nobody"), HasSubstr("hf download gpt2-of-nobody --local-dir gpt2-of-nobody"));
  EXPECT_THAT(GuessWhyNoConfig("https://huggingface.co/Qwen/Qwen3-0.6B/tree/main"),
              HasSubstr("hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B"));
  EXPECT_THAT(GuessWhyNoConfig("hf://a/b/"), HasSubstr("hf download a/b --local-dir b"));
  for (const char* path : {"/no/such/folder", "./a", "../a", "a/b/c", "llama3:8b", "a b", "-/-"}) {
    EXPECT_EQ(GuessWhyNoConfig(path), "there is no such folder") << path;
  }
  EXPECT_THAT(GuessWhyNoConfig("~/models/x"), HasSubstr("outside of them, or $HOME/models/x"));

  ScratchDir dir;
  Put(dir, "model", "config.json", "{}");
  Put(dir, "model", "model.safetensors");
  for (const char* file : {"config.json", "model.safetensors"}) {
    EXPECT_EQ(GuessWhyNoConfig(dir.File("model/") + file), "it is a file; give the folder: -m " + dir.File("model"));
  }
  Put(dir, "files", "m.gguf", "GGUF\x03");
  Put(dir, "files", "named-so-alone.gguf", "x");
  Put(dir, "files", "m.tar.GZ");
  Put(dir, "files", "notes.txt", "hello");
  EXPECT_THAT(GuessWhyNoConfig(dir.File("files/m.gguf")), HasSubstr("GGUF"));
  EXPECT_THAT(GuessWhyNoConfig(dir.File("files/named-so-alone.gguf")), HasSubstr("GGUF"));
  EXPECT_THAT(GuessWhyNoConfig(dir.File("files/m.tar.GZ")), HasSubstr("unpack it"));
  EXPECT_THAT(GuessWhyNoConfig(dir.File("files/notes.txt")), HasSubstr("a model is a folder"));
}

TEST(GuessWhyNoConfig, OfAFolderThatIsNoModels) {
  ScratchDir dir;
  EXPECT_EQ(GuessWhyNoConfig(dir.path()), "the folder is empty");
  EXPECT_EQ(GuessWhyNoConfig(Put(dir, "whole", "config.json", "{}")), "");
  EXPECT_THAT(GuessWhyNoConfig(Put(dir, "gguf", "model-Q4_K_M.gguf")),
              HasSubstr("model-Q4_K_M.gguf is there, which is GGUF"));
  EXPECT_THAT(GuessWhyNoConfig(Put(dir, "meta", "params.json")), HasSubstr("the layout that Meta and Mistral publish"));
  EXPECT_THAT(GuessWhyNoConfig(Put(dir, "nemo", "m.nemo")), HasSubstr("NeMo"));
  EXPECT_THAT(GuessWhyNoConfig(Put(dir, "weights", "model.safetensors")),
              HasSubstr("model.safetensors is there, but no config.json"));
  EXPECT_THAT(GuessWhyNoConfig(Put(dir, "else", "holiday.jpg")), HasSubstr("is this the folder that was meant"));
  EXPECT_THAT(GuessWhyNoConfig(Put(dir, "part", ".cache/huggingface/download/x.incomplete")),
              HasSubstr("its download is not finished"));
  Put(dir, "pipeline", "unet/config.json", "{}");
  EXPECT_THAT(GuessWhyNoConfig(Put(dir, "pipeline", "model_index.json", "{}")), HasSubstr("diffusers"));
  EXPECT_THAT(GuessWhyNoConfig(Put(dir, "lora", "adapter_config.json", R"({"base_model_name_or_path": "org/base"})")),
              AllOf(HasSubstr("it is a LoRA adapter of org/base, no model"), HasSubstr("merge_and_unload")));
  EXPECT_THAT(GuessWhyNoConfig(Put(dir, "lora2", "adapter_config.json", "broken")),
              HasSubstr("it is a LoRA adapter, no"));
}

TEST(GuessWhyNoConfig, OfAFolderAroundAModel) {
  ScratchDir dir;
  EXPECT_EQ(GuessWhyNoConfig(Put(dir, "outer", "inner/config.json")),
            "the model lies in a folder of it: -m " + dir.File("outer/inner"));
  for (const char* step : {"checkpoint-500", "checkpoint-1000", "checkpoint-90"}) {
    Put(dir, "training", std::string(step) + "/config.json");
  }
  EXPECT_EQ(GuessWhyNoConfig(dir.File("training")),
            "there are models in 3 folders of it: give one, such as -m " + dir.File("training/checkpoint-1000"));
  // This is the hub's cache.
  Put(dir, "hub/models--org--name", "refs/main", "aaa");
  Put(dir, "hub/models--org--name", "snapshots/aaa/config.json");
  Put(dir, "hub/models--org--name", "snapshots/bbb/config.json");
  const std::string snapshot = dir.File("hub/models--org--name/snapshots/aaa");
  EXPECT_EQ(GuessWhyNoConfig(dir.File("hub/models--org--name")),
            "it is the hub's cache of a model, which lies deeper: -m " + snapshot);
  EXPECT_EQ(GuessWhyNoConfig(dir.File("hub")),
            "models--org--name is there: it is the hub's cache of a model, which lies deeper: -m " + snapshot);
  std::filesystem::remove_all(dir.File("hub/models--org--name/refs"));
  EXPECT_THAT(GuessWhyNoConfig(dir.File("hub")), HasSubstr("snapshots/bbb"));
}

TEST(GuessWhyNoWeights, NamesWhatIsThere) {
  struct Case {
    const char* file;
    const char* guess;
  };
  const Case cases[] = {{"pytorch_model.bin", "M.from_pretrained(\"DIR\").save_pretrained(\"NEW_DIR\")"},
                        {"pytorch_model-00001-of-00002.bin", "as PyTorch pickles them"},
                        {"consolidated.safetensors", "take the model's folder as Hugging Face transformers saves it"},
                        {"consolidated.00.pth", "the layout that Meta and Mistral publish"},
                        {"model-Q8_0.gguf", "GGUF"},
                        {"model.onnx", "ONNX"},
                        {"tf_model.h5", "TensorFlow"},
                        {"flax_model.msgpack", "Flax"},
                        {"model.safetensors.incomplete", "the download is not finished"},
                        {"model-00001-of-00003.safetensors.part", "the download is not finished"},
                        {"model-00001-of-00003.safetensors", "no model.safetensors.index.json"},
                        {"model.fp16.safetensors", "name it model.safetensors"},
                        {"adapter_config.json", "it is a LoRA adapter"}};
  for (const Case& c : cases) {
    ScratchDir dir;
    Put(dir, "m", "config.json", "{}");
    Put(dir, "m", c.file);
    const absl::Status status = Checkpoint::Open(dir.File("m")).status();
    EXPECT_FALSE(absl::IsNotFound(status)) << c.file;
    EXPECT_THAT(
        std::string(status.message()),
        AllOf(StartsWith(dir.File("m") + ": neither model.safetensors nor model.safetensors.index.json is there: "),
              HasSubstr(c.guess)));
  }
  ScratchDir dir;
  dir.Write("config.json", "{}");
  dir.Write("tokenizer.json", "{}");
  EXPECT_EQ(GuessWhyNoWeights(dir.path()), "");
  EXPECT_TRUE(absl::IsNotFound(Checkpoint::Open(dir.path()).status()));
}

TEST(ModelFolder, FilesThatAreSomethingElseAreCalledSo) {
  ScratchDir dir;
  const std::string pointer =
      "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935\nsize 13478104\n";
  dir.Write("model.safetensors", pointer);
  EXPECT_EQ(std::string(Checkpoint::Open(dir.path()).status().message()),
            dir.File("model.safetensors") +
                ": not safetensors: it is a pointer that git-lfs left, not the file itself; run 'git lfs install' and "
                "'git lfs pull' where it was cloned, or download it again");
  dir.Write("model.safetensors", std::string(4096, '\0'));
  EXPECT_THAT(std::string(Checkpoint::Open(dir.path()).status().message()), HasSubstr("it begins with zeros"));
  dir.Write("model.safetensors", "");
  EXPECT_THAT(std::string(Checkpoint::Open(dir.path()).status().message()), HasSubstr("it is empty"));
  dir.Write("model.safetensors", "<html><body>Sign in to your account</body></html>");
  EXPECT_THAT(std::string(Checkpoint::Open(dir.path()).status().message()), HasSubstr("it is a web page"));
  dir.Write("config.json", pointer);
  EXPECT_THAT(std::string(ReadModelSpec(dir.path()).status().message()),
              StartsWith(dir.File("config.json") + ": not valid JSON: it is a pointer that git-lfs left"));
  dir.Write("config.json", "{\"model_type\": \"llama\",");
  EXPECT_THAT(std::string(ReadModelSpec(dir.path()).status().message()), testing::EndsWith("(is the file whole?)"));
}

}  // namespace
}  // namespace fastdecode
