// What is read of a model's folder. The folders of golden.json were read by transformers.

#include "engine/text/chat/chat_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/engine/model/scratch_dir.h"
#include "tests/engine/text/chat/chat_support.h"

namespace fastdecode {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

class ChatFilesTest : public testing::Test {
 protected:
  void Config(const OrderedJson& fields) { dir_.Write("tokenizer_config.json", fields.dump()); }
  absl::StatusOr<ChatFiles> Read(const std::string& given = "") const { return ReadChatFiles(dir_.path(), given); }
  // The texts of all templates.
  std::vector<std::string> Texts(const std::string& given = "") const {
    const auto files = Read(given);
    EXPECT_TRUE(files.ok()) << files.status();
    std::vector<std::string> texts;
    for (const ChatTemplateSource& source : files->templates) texts.push_back(source.text);
    return texts;
  }
  void ExpectRefused(const std::string& file, const std::string& part, const std::string& given = "") const {
    const auto files = Read(given);
    EXPECT_FALSE(files.ok()) << part;
    EXPECT_FALSE(absl::IsNotFound(files.status())) << files.status();
    EXPECT_THAT(std::string(files.status().message()), AllOf(StartsWith(dir_.File(file)), HasSubstr(part)));
  }

  ScratchDir dir_;
};

TEST_F(ChatFilesTest, AreThoseThatTransformersReads) {
  const OrderedJson goldens = ReadChatGoldens()["files"];
  EXPECT_GE(goldens.size(), 14u);
  for (const OrderedJson& golden : goldens) {
    SCOPED_TRACE(golden["name"].get<std::string>());
    const ScratchDir dir;
    std::filesystem::create_directory(dir.File("additional_chat_templates"));
    for (const auto& [path, text] : golden["files"].items()) dir.Write(path, text);
    const auto files = ReadChatFiles(dir.path(), "");
    ASSERT_TRUE(files.ok()) << files.status();
    std::map<std::string, std::string> templates;
    for (const ChatTemplateSource& source : files->templates) templates[source.name] = source.text;
    EXPECT_EQ(nlohmann::json(templates), nlohmann::json(golden["templates"]));
    const std::map<std::string, std::string> tokens(files->special_tokens.begin(), files->special_tokens.end());
    EXPECT_EQ(nlohmann::json(tokens), nlohmann::json(golden["special_tokens"]));
    EXPECT_FALSE(files->has_control_tokens);
  }
}

TEST_F(ChatFilesTest, EachSourceIsTakenIfThereIsNoneBeforeIt) {
  dir_.Write("chat_template.json", R"({"chat_template": "older"})");
  EXPECT_THAT(Texts(), ElementsAre("older"));
  Config({{"chat_template", nullptr}});
  EXPECT_THAT(Texts(), ElementsAre("older"));
  Config({{"chat_template", "configured"}});
  EXPECT_THAT(Texts(), ElementsAre("configured"));
  dir_.Write("chat_template.jinja", "file");
  EXPECT_THAT(Texts(), ElementsAre("file"));
  dir_.Write("given.jinja", "given");
  EXPECT_THAT(Texts(dir_.File("given.jinja")), ElementsAre("given"));
  Config({{"chat_template", ""}});
  std::filesystem::remove(dir_.File("chat_template.jinja"));
  EXPECT_THAT(Texts(), ElementsAre("")) << "an empty template is one";
}

TEST_F(ChatFilesTest, SourcesSayWhereTheyComeFrom) {
  const auto file = [&](size_t i) { return Read()->templates[i].file; };
  dir_.Write("chat_template.json", R"({"chat_template": "older"})");
  EXPECT_EQ(file(0), dir_.File("chat_template.json: chat_template"));
  Config({{"chat_template", "x"}});
  EXPECT_EQ(file(0), dir_.File("tokenizer_config.json: chat_template"));
  Config({{"chat_template", {{{"name", "default"}, {"template", "x"}}, {{"name", "rag"}, {"template", "y"}}}}});
  EXPECT_EQ(file(1), dir_.File("tokenizer_config.json: chat_template rag"));
  dir_.Write("chat_template.jinja", "x");
  std::filesystem::create_directory(dir_.File("additional_chat_templates"));
  dir_.Write("additional_chat_templates/tool_use.jinja", "y");
  dir_.Write("additional_chat_templates/notes.txt", "no template");
  EXPECT_EQ(Read()->templates.size(), 2u);
  EXPECT_EQ(file(0), dir_.File("chat_template.jinja"));
  EXPECT_EQ(file(1), dir_.File("additional_chat_templates/tool_use.jinja"));
}

TEST_F(ChatFilesTest, AGivenFileHasTheTokensOfTheFolder) {
  Config({{"chat_template", {1}}, {"bos_token", "<b>"}});
  dir_.Write("given.jinja", "given");
  const auto files = Read(dir_.File("given.jinja"));
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_THAT(files->special_tokens, ElementsAre(testing::Pair("bos_token", "<b>")));
}

TEST_F(ChatFilesTest, ControlTokensAreListed) {
  const auto read = [&](const OrderedJson& list) {
    Config({{"chat_template", "x"}, {"chat_control_tokens", list}});
    return Read();
  };
  const auto two = read({"<|a|>", "<|b|>"});
  ASSERT_TRUE(two.ok()) << two.status();
  EXPECT_TRUE(two->has_control_tokens);
  EXPECT_THAT(two->control_tokens, ElementsAre("<|a|>", "<|b|>"));
  const auto none = read(OrderedJson::array());
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_TRUE(none->has_control_tokens) << "an empty list says that there are none";
  EXPECT_THAT(none->control_tokens, IsEmpty());
  const auto null = read(nullptr);
  ASSERT_TRUE(null.ok()) << null.status();
  EXPECT_FALSE(null->has_control_tokens);
  for (const OrderedJson& bad :
       {OrderedJson("<|a|>"), OrderedJson(1), OrderedJson({"<|a|>", 1}), OrderedJson({{"<|a|>", "b"}})}) {
    EXPECT_FALSE(read(bad).ok());
    ExpectRefused("tokenizer_config.json", ": chat_control_tokens");
  }
}

TEST_F(ChatFilesTest, ErrorsNameFileAndField) {
  for (const OrderedJson& bad :
       {OrderedJson(1), OrderedJson(true), OrderedJson({1}), OrderedJson({{{"name", "default"}}}),
        OrderedJson({{{"name", "default"}, {"template", 1}}}), OrderedJson({{{"name", 1}, {"template", "x"}}}),
        OrderedJson({{{"template", "x"}}}), OrderedJson({{"default", 1}})}) {
    SCOPED_TRACE(bad.dump());
    Config({{"chat_template", bad}});
    ExpectRefused("tokenizer_config.json", ": chat_template");
    std::filesystem::remove(dir_.File("tokenizer_config.json"));
    dir_.Write("chat_template.json", OrderedJson{{"chat_template", bad}}.dump());
    ExpectRefused("chat_template.json", ": chat_template");
  }
  for (const char* bad : {"", "{", "[]", "1", "{\"bos_token\": \"\xff\"}"}) {
    SCOPED_TRACE(bad);
    for (const char* file : {"tokenizer_config.json", "special_tokens_map.json", "chat_template.json"}) {
      dir_.Write(file, bad);
      ExpectRefused(file, "");
      std::filesystem::remove(dir_.File(file));
    }
  }
}

TEST_F(ChatFilesTest, TheMapIsNotOpenedBesideAListOfAddedTokens) {
  dir_.Write("special_tokens_map.json", "{");
  Config({{"chat_template", "x"}, {"added_tokens_decoder", OrderedJson::object()}});
  EXPECT_THAT(Texts(), ElementsAre("x"));
}

TEST_F(ChatFilesTest, FilesThatCannotBeReadAreNotPassedOver) {
  Config({{"chat_template", "configured"}});
  const std::string main = dir_.File("chat_template.jinja");
  std::filesystem::create_directory(main);
  ExpectRefused("chat_template.jinja", "not a regular file");
  std::filesystem::remove(main);
  std::filesystem::create_symlink(dir_.File("nothing"), main);
  ExpectRefused("chat_template.jinja", "a link to nothing");
  std::filesystem::remove(main);
  dir_.Write("chat_template.jinja", std::string((4 << 20) + 1, 'x'));
  ExpectRefused("chat_template.jinja", "4194305 bytes, expected at most 4194304");
  dir_.Write("chat_template.jinja", std::string(4 << 20, 'x'));
  EXPECT_EQ(Texts()[0].size(), 4u << 20);
  std::filesystem::create_directories(dir_.File("additional_chat_templates/rag.jinja"));
  ExpectRefused("additional_chat_templates/rag.jinja", "not a regular file");
  ExpectRefused("", "not a regular file", dir_.path() + "/");
}

TEST_F(ChatFilesTest, AGivenFileMustBeThere) {
  Config({{"chat_template", "configured"}});
  const auto files = Read(dir_.File("missing.jinja"));
  EXPECT_FALSE(files.ok());
  EXPECT_THAT(std::string(files.status().message()), StartsWith(dir_.File("missing.jinja") + ": cannot open"));
}

TEST_F(ChatFilesTest, WithoutATemplateTheErrorSaysWhatToDo) {
  const auto expect_none = [](const std::string& dir) {
    const auto files = ReadChatFiles(dir, "");
    EXPECT_TRUE(absl::IsNotFound(files.status())) << files.status();
    EXPECT_THAT(std::string(files.status().message()),
                AllOf(StartsWith(dir), HasSubstr("chat_template.jinja"), HasSubstr("tokenizer_config.json"),
                      HasSubstr("--chat-template FILE")));
  };
  expect_none(dir_.path());
  expect_none(dir_.File("missing"));
  Config({{"bos_token", "<b>"}});
  dir_.Write("chat_template.json", "{}");
  std::filesystem::create_directory(dir_.File("additional_chat_templates"));
  expect_none(dir_.path());
  Config({{"chat_template", OrderedJson::array()}});
  expect_none(dir_.path());
}

// Names of a model's own, and null in the map, as in transformers' special_tokens_map.
TEST_F(ChatFilesTest, TokensAreThoseOfTheTokenizer) {
  Config({{"chat_template", "x"},
          {"bos_token", "<b>"},
          {"eos_token", {{"__type", "AddedToken"}, {"content", "<e>"}}},
          {"pad_token", ""},
          {"image_token", "<i>"},
          {"extra_special_tokens", {{"audio_token", "<a>"}}}});
  dir_.Write("special_tokens_map.json", R"({"bos_token": null, "unk_token": "<u>", "image_token": null})");
  const auto files = Read();
  ASSERT_TRUE(files.ok()) << files.status();
  EXPECT_THAT(files->special_tokens, ElementsAre(testing::Pair("eos_token", "<e>"), testing::Pair("unk_token", "<u>"),
                                                 testing::Pair("pad_token", ""), testing::Pair("image_token", "<i>"),
                                                 testing::Pair("audio_token", "<a>")));
}

TEST_F(ChatFilesTest, SaysWhichTemplateAnotherCountsBefore) {
  const auto warnings = [&] { return Read()->warnings; };
  dir_.Write("chat_template.json", R"({"chat_template": "older"})");
  EXPECT_THAT(warnings(), IsEmpty());
  Config({{"chat_template", "configured"}});
  EXPECT_THAT(warnings(), ElementsAre(dir_.File("chat_template.json: chat_template: not used, since ") +
                                      dir_.File("tokenizer_config.json: chat_template counts before it")));
  dir_.Write("chat_template.jinja", "file");
  EXPECT_THAT(warnings(), ElementsAre(StartsWith(dir_.File("tokenizer_config.json: chat_template: not used, since ")),
                                      StartsWith(dir_.File("chat_template.json: chat_template: not used, since "))));
  Config({{"chat_template", "file"}});
  dir_.Write("chat_template.json", R"({"chat_template": "file"})");
  EXPECT_THAT(warnings(), IsEmpty()) << "they say the same";
  Config({{"chat_template", {1}}});
  dir_.Write("chat_template.json", "{");
  EXPECT_THAT(warnings(), IsEmpty()) << "what nobody needs may be broken";
  Config({{"chat_template", nullptr}});
  std::filesystem::remove(dir_.File("chat_template.json"));
  EXPECT_THAT(warnings(), IsEmpty());
  std::filesystem::remove(dir_.File("chat_template.jinja"));
  Config({{"chat_template", "configured"}});
  std::filesystem::create_directory(dir_.File("additional_chat_templates"));
  dir_.Write("additional_chat_templates/tool_use.jinja", "y");
  EXPECT_THAT(warnings(), ElementsAre(AllOf(StartsWith(dir_.File("tokenizer_config.json: chat_template: not used")),
                                            HasSubstr("additional_chat_templates/tool_use.jinja counts"))));
}

TEST_F(ChatFilesTest, WhatWasNotDownloadedIsNoTemplate) {
  for (const char* text : {"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n",
                           "<!DOCTYPE html>\n<html>", "Entry not found"}) {
    dir_.Write("chat_template.jinja", text);
    ExpectRefused("chat_template.jinja", ": it is a");
  }
  dir_.Write("chat_template.jinja", "");
  EXPECT_THAT(Texts(), ElementsAre("")) << "an empty template is one";
}

}  // namespace
}  // namespace fastdecode
