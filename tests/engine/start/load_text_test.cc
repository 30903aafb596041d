// What of a model's folder turns text into ids, in folders that are odd in one place: a part that cannot be read takes
// down what depends on it, and nothing else.

#include "engine/start/load_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/model/scratch_dir.h"

namespace fastdecode {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

// Characters and two special tokens.
constexpr char kTokenizer[] = R"({"added_tokens": [
    {"id": 5, "content": "<b>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
     "special": true},
    {"id": 6, "content": "<e>", "single_word": false, "lstrip": false, "rstrip": false, "normalized": false,
     "special": true}],
  "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "c": 2, " ": 3, "ab": 4}, "merges": [["a", "b"]]},
  "decoder": {"type": "Fuse"}})";
constexpr char kPointer[] = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a214614ab2935\nsize 9085698\n";
constexpr char kTurns[] = "{% for m in messages %}<b>{{ m.content }}<e> {% endfor %}";

class LoadTextTest : public testing::Test {
 protected:
  void SetUp() override {
    dir_.Write("tokenizer.json", kTokenizer);
    dir_.Write("tokenizer_config.json", R"({"bos_token": "<b>", "eos_token": "<e>"})");
    dir_.Write("chat_template.jinja", kTurns);
    options_.model = dir_.path();
    spec_.vocab = 7;
    spec_.eos_token_ids = {6};
    spec_.max_context = 100;
  }

  absl::Status Load() {
    text_ = {};
    warnings_.clear();
    notes_.clear();
    const auto hear = [](void* user, LogLevel level, const char* message) {
      auto* const test = static_cast<LoadTextTest*>(user);
      (level == LogLevel::kWarning ? test->warnings_ : test->notes_).push_back(message);
    };
    Logger log(hear, this);
    return LoadTextParts(options_, spec_, &log, &text_);
  }

  std::string InDir(const std::string& rest) const { return dir_.path() + "/" + rest; }

  void ExpectNoText(const std::string& reason) {
    SCOPED_TRACE(reason);
    options_.need_text = false;
    EXPECT_TRUE(Load().ok());
    EXPECT_EQ(text_.tokenizer, nullptr);
    EXPECT_EQ(text_.chat_template, nullptr);
    EXPECT_THAT(text_.tokenizer_missing_reason, HasSubstr(reason));
    EXPECT_THAT(text_.chat_template_missing_reason,
                AllOf(StartsWith("this model has no tokenizer: "), HasSubstr(reason)));
    EXPECT_THAT(warnings_, ElementsAre(AllOf(StartsWith("no text for this model, token ids only: " + dir_.path()),
                                             HasSubstr(reason))));
    options_.need_text = true;
    EXPECT_THAT(std::string(Load().message()), AllOf(HasSubstr(reason), HasSubstr("--prompt-ids")));
  }

  ScratchDir dir_;
  Options options_;
  ModelSpec spec_;
  TextParts text_;
  std::vector<std::string> warnings_, notes_;
};

TEST_F(LoadTextTest, SaysNothingOfAFolderAsItShouldBe) {
  ASSERT_TRUE(Load().ok());
  EXPECT_THAT(warnings_, IsEmpty());
  EXPECT_THAT(notes_, IsEmpty());
  EXPECT_NE(text_.tokenizer, nullptr);
  EXPECT_NE(text_.chat_template, nullptr);
}

TEST_F(LoadTextTest, ATokenizerThatIsOddInOnePlaceLeavesTokenIds) {
  const std::string half = std::string(kTokenizer).substr(0, sizeof(kTokenizer) / 2);
  const struct {
    const char* file;
    std::string text;
    const char* reason;
  } cases[] = {
      {"tokenizer.json", kPointer, "/tokenizer.json: not valid JSON: it is a pointer that git-lfs left"},
      {"tokenizer.json", "<!DOCTYPE html>\n<html>", "/tokenizer.json: not valid JSON: it is a web page"},
      {"tokenizer.json", "", "/tokenizer.json: not valid JSON: it is empty"},
      {"tokenizer.json", half, "/tokenizer.json: not valid JSON: "},
      {"tokenizer.json", "{\"model\": \"\xff\"}", "/tokenizer.json: not valid JSON: "},
      {"tokenizer.json", "[]", "/tokenizer.json: content is []"},
      {"tokenizer.json", R"({"model": {"type": "Unigram", "vocab": []}})", "model.type is \"Unigram\""},
      {"tokenizer_config.json", "", "/tokenizer_config.json: not valid JSON: it is empty"},
      {"tokenizer_config.json", kPointer, "/tokenizer_config.json: not valid JSON: it is a pointer that git-lfs left"},
      {"tokenizer_config.json", R"({"bos_token": )", "/tokenizer_config.json: not valid JSON: "},
      {"tokenizer_config.json", "null", "/tokenizer_config.json: content is null"},
      {"tokenizer_config.json", R"({"eos_token": 5})", "/tokenizer_config.json: eos_token is 5"},
      {"tokenizer_config.json", R"({"extra_special_tokens": "<x>"})",
       "extra_special_tokens is \"<x>\", expected a list"},
      {"special_tokens_map.json", "{", "/special_tokens_map.json: not valid JSON"},
      {"added_tokens.json", "[]", "/added_tokens.json: content is []"},
      {"added_tokens.json", R"({"<x>": "7"})", "/added_tokens.json: <x> is \"7\", expected an integer"},
  };
  for (const auto& c : cases) {
    const std::string before = std::filesystem::exists(dir_.File(c.file)) ? ReadWhole(dir_.File(c.file)) : "";
    dir_.Write(c.file, c.text);
    ExpectNoText(c.reason);
    std::filesystem::remove(dir_.File(c.file));
    if (!before.empty()) dir_.Write(c.file, before);
  }
  std::filesystem::remove(dir_.File("tokenizer.json"));
  std::filesystem::create_symlink(dir_.File("gone"), dir_.File("tokenizer.json"));
  ExpectNoText("/tokenizer.json: a link to nothing");
  std::filesystem::remove(dir_.File("tokenizer.json"));
  dir_.Write("tokenizer.model", kPointer);
  ExpectNoText("/tokenizer.model: it is a pointer that git-lfs left");
  std::filesystem::remove(dir_.File("tokenizer.model"));
  dir_.Write("spiece.model", "x");
  ExpectNoText("; spiece.model is; if that is a SentencePiece model of type BPE, name it tokenizer.model, else make");
}

// A list of added tokens hides these files from transformers, too.
TEST_F(LoadTextTest, FilesThatNobodyOpensMayBeBroken) {
  dir_.Write("tokenizer_config.json", R"({"eos_token": "<e>", "added_tokens_decoder": {}})");
  dir_.Write("special_tokens_map.json", "{");
  dir_.Write("added_tokens.json", kPointer);
  dir_.Write("chat_template.json", "{");
  dir_.Write("config.json", "no JSON");
  dir_.Write("vocab.json", "{");
  ASSERT_TRUE(Load().ok());
  EXPECT_THAT(warnings_, IsEmpty());
  EXPECT_NE(text_.chat_template, nullptr);
}

TEST_F(LoadTextTest, ABrokenTemplateLeavesText) {
  const std::pair<const char*, const char*> cases[] = {
      {"a\n{% if %}", "/chat_template.jinja:2:7: "},
      {"{% nosuch %}", "/chat_template.jinja:1:4: "},
      {"{{ messages[0].content|wordwrap }}", "/chat_template.jinja:1:24: No filter named 'wordwrap'."},
      {kPointer, "/chat_template.jinja: it is a pointer that git-lfs left"},
      {"<!DOCTYPE html><html>", "/chat_template.jinja: it is a web page"},
      {"\xff", "/chat_template.jinja: the template is not UTF-8"},
  };
  for (const auto& [text, reason] : cases) {
    SCOPED_TRACE(text);
    dir_.Write("chat_template.jinja", text);
    ASSERT_TRUE(Load().ok());
    EXPECT_NE(text_.tokenizer, nullptr);
    EXPECT_EQ(text_.chat_template, nullptr);
    EXPECT_THAT(text_.chat_template_missing_reason, StartsWith(dir_.path() + reason));
    EXPECT_THAT(warnings_, ElementsAre(StartsWith("no chats for this model: " + dir_.path() + reason)));
  }
  std::filesystem::remove(dir_.File("chat_template.jinja"));
  dir_.Write("chat_template.json", "{");
  ASSERT_TRUE(Load().ok());
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("no chats for this model: " + InDir("chat_template.json: "))));
}

// Jinja finds some mistakes when it renders; a chat of one message finds most of them.
TEST_F(LoadTextTest, ATemplateThatRendersNothingIsWarnedOf) {
  const std::pair<const char*, const char*> cases[] = {
      {"\n{% include 'x' %}", "2:4: 'include' needs another template, and there is none"},
      {"{{ messages[0].nosuch.more }}", "1:"},
      {"{{ messages[0].content.nosuch() }}", "1:30: 'str object' has no attribute 'nosuch'"},
      {"{{ raise_exception('no users') }}", "1:19: no users"},
  };
  for (const auto& [text, reason] : cases) {
    SCOPED_TRACE(text);
    dir_.Write("chat_template.jinja", text);
    ASSERT_TRUE(Load().ok());
    ASSERT_NE(text_.chat_template, nullptr);
    EXPECT_THAT(warnings_, ElementsAre(AllOf(StartsWith(InDir("chat_template.jinja:") + reason),
                                             HasSubstr("(of a chat with one message of a user)"))));
    ChatInput input;
    input.messages = R"([{"role": "user", "content": "a"}])";
    const auto rendered = text_.chat_template->Render(input);
    EXPECT_THAT(std::string(rendered.status().message()), StartsWith(InDir("chat_template.jinja:") + reason));
  }
}

TEST_F(LoadTextTest, ABrokenTemplateAmongOthersLeavesTheOthers) {
  std::filesystem::create_directory(dir_.File("additional_chat_templates"));
  dir_.Write("additional_chat_templates/tool_use.jinja", "{% for %}");
  ASSERT_TRUE(Load().ok());
  ASSERT_NE(text_.chat_template, nullptr);
  EXPECT_THAT(warnings_, ElementsAre(AllOf(StartsWith(InDir("additional_chat_templates/tool_use.jinja:1:8: ")),
                                           HasSubstr("chats that need the template tool_use are refused"))));
}

TEST_F(LoadTextTest, SaysWhichTemplateIsNotUsed) {
  dir_.Write("tokenizer_config.json", R"({"bos_token": "<b>", "eos_token": "<e>", "chat_template": "another"})");
  ASSERT_TRUE(Load().ok());
  EXPECT_THAT(warnings_, ElementsAre(InDir("tokenizer_config.json: chat_template: not used, since ") +
                                     InDir("chat_template.jinja counts before it")));
}

TEST_F(LoadTextTest, WarnsOfATurnThatEndsWithoutEos) {
  dir_.Write("tokenizer_config.json", R"({"bos_token": "<b>", "eos_token": "ab"})");
  spec_.eos_token_ids = {4};
  ASSERT_TRUE(Load().ok());
  EXPECT_THAT(warnings_, ElementsAre(AllOf(StartsWith(InDir("chat_template.jinja: it ends an answer with <e>")),
                                           HasSubstr("token id 6"), HasSubstr("stop_token_ids"))));
  for (const char* quiet : {
           "{% for m in messages %}{{ m.content }}{% endfor %}",         // there is no end
           "{% for m in messages %}{{ m.content }} a<e>{% endfor %}",    // what follows is text
           "{% for m in messages %}{{ m.content }} ab <b>{% endfor %}",  // "ab" is eos
       }) {
    dir_.Write("chat_template.jinja", quiet);
    ASSERT_TRUE(Load().ok());
    EXPECT_THAT(warnings_, IsEmpty()) << quiet;
  }
  dir_.Write("chat_template.jinja", kTurns);
  spec_.eos_token_ids = {4, 6};  // generation_config.json has it
  ASSERT_TRUE(Load().ok());
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(LoadTextTest, NotesALengthThatIsNotFollowed) {
  const auto with = [&](const char* length) {
    dir_.Write("tokenizer_config.json",
               std::string(R"({"bos_token": "<b>", "eos_token": "<e>", "model_max_length": )") + length + "}");
    EXPECT_TRUE(Load().ok());
    EXPECT_THAT(warnings_, IsEmpty());
  };
  with("64");
  EXPECT_THAT(notes_,
              ElementsAre(InDir("tokenizer_config.json: model_max_length is 64, and config.json's context of 100 "
                                "tokens counts (--max-context)")));
  for (const char* length :
       {"100", "101", "1000000000000000019884624838656", "null", "0", "-1", "\"64\"", "Infinity"}) {
    with(length);
    EXPECT_THAT(notes_, IsEmpty()) << length;
  }
}

TEST_F(LoadTextTest, WarnsOfTokensBeyondTheModel) {
  dir_.Write("tokenizer_config.json", R"({"eos_token": "<e>", "additional_special_tokens": ["<x>", "<y>"]})");
  dir_.Write("chat_template.jinja", "{% for m in messages %}<b>{{ m.content }}<x>{% endfor %}");
  ASSERT_TRUE(Load().ok());
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("it has token ids up to 8, and the model's vocabulary has 7 rows")));
  EXPECT_THAT(text_.tokenizer->Encode("<y>a", false), ElementsAre(8, 0));
}

}  // namespace
}  // namespace fastdecode
