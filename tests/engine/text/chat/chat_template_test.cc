// What becomes of messages, and what is refused. The chats of golden.json were rendered by transformers.

#include "engine/text/chat/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/text/chat/chat_support.h"

namespace fastdecode {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr char kContents[] = "{% for message in messages %}{{ message.content }}{% endfor %}";
constexpr char kHello[] = R"([{"role": "user", "content": "Hi"}])";

const Tokenizer& Qwen() {
  static const auto* const tokenizer = MakeTokenizer(TokenizerDocument("qwen2")).release();
  return *tokenizer;
}

absl::Status RenderStatus(const std::string& source, const ChatInput& input) {
  const auto chat = MakeChatTemplate(source, Qwen());
  return chat == nullptr ? absl::InternalError("there is no template") : chat->Render(input).status();
}

absl::Status MessagesStatus(const std::string& messages) {
  ChatInput input;
  input.messages = messages;
  return RenderStatus(kContents, input);
}

void ExpectSays(const absl::Status& status, absl::StatusCode code, const std::string& begin, const std::string& part) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_THAT(std::string(status.message()), AllOf(StartsWith(begin), HasSubstr(part)));
}

// ---- Against transformers

TEST(ChatTemplateGoldens, AreWhatTransformersRenders) {
  const OrderedJson goldens = ReadChatGoldens()["chats"];
  EXPECT_GE(goldens.size(), 58u);
  for (const OrderedJson& golden : goldens) {
    SCOPED_TRACE(golden["name"].get<std::string>());
    const auto chat = MakeChatTemplate(golden["templates"], golden["special_tokens"], Qwen());
    ASSERT_NE(chat, nullptr);
    std::vector<OrderedJson> inputs = {golden["input"]};
    for (const OrderedJson& other : golden.value("also", OrderedJson::array())) inputs.push_back(other);
    for (const OrderedJson& fields : inputs) {
      SCOPED_TRACE(fields.dump());
      const OwnedInput input(fields);
      const auto rendered = chat->Render(input.get());
      if (golden.contains("error")) {
        EXPECT_TRUE(absl::IsInvalidArgument(rendered.status())) << rendered.status();
        continue;
      }
      ASSERT_TRUE(rendered.ok()) << rendered.status();
      EXPECT_EQ(TextOf(*rendered), golden["text"].get<std::string>());
    }
  }
}

// ---- Who wrote what

TEST(ChatTemplateParts, TellTheTemplateFromTheRequest) {
  const auto chat = MakeChatTemplate("<a>{{ messages[0].content }}{{ messages[0].content[:1] }}<b>{{ x }}", Qwen());
  ChatInput input;
  input.messages = kHello;
  input.variables = R"({"x": "v"})";
  const auto rendered = chat->Render(input);
  ASSERT_TRUE(rendered.ok()) << rendered.status();
  std::vector<std::pair<std::string, bool>> parts;
  for (const RenderedChat::Part& part : rendered->parts) parts.emplace_back(part.text, part.special);
  EXPECT_THAT(parts, ElementsAre(std::pair("<a>", true), std::pair("HiH", false), std::pair("<b>", true),
                                 std::pair("v", false)));
}

// Some templates compose the mark of a turn from its role.
TEST(ChatTemplateParts, OfRolesTheKnownOnesAloneAreTheTemplatesWords) {
  const std::vector<std::string> known = {"system", "developer", "user", "assistant", "tool", "function"};
  const std::vector<std::string> unknown = {"critic", "User", "ipython", "model", "end"};
  std::vector<std::pair<std::string, bool>> added;
  for (const auto* roles : {&known, &unknown}) {
    for (const std::string& role : *roles) added.emplace_back("<|" + role + "|>", true);
  }
  const auto tokenizer = MakeTokenizer(BaseDocument(added));
  // The name of a role that no template of the test knows.
  for (const char* const source :
       {"{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}{% set x = 'developer' %}",
        "{% for m in messages %}{{ '<|' + m['role'] + '|>' + m['content'] }}{% endfor %}{% set x = 'developer' %}"}) {
    const auto chat = MakeChatTemplate(source, *tokenizer);
    const auto special_ids = [&](const std::string& role) {
      const OwnedInput input(OrderedJson{{"messages", {{{"role", role}, {"content", "x"}}}}});
      const auto rendered = chat->Render(input.get());
      EXPECT_TRUE(rendered.ok()) << rendered.status();
      EXPECT_EQ(TextOf(*rendered), "<|" + role + "|>x");
      std::vector<int32_t> special;
      for (const int32_t id : tokenizer->EncodeParts(PartsOf(*rendered), false)) {
        if (id >= 1000) special.push_back(id);
      }
      return special;
    };
    for (size_t i = 0; i < known.size(); ++i) {
      EXPECT_THAT(special_ids(known[i]), ElementsAre(1000 + static_cast<int32_t>(i))) << known[i];
    }
    for (const std::string& role : unknown) EXPECT_THAT(special_ids(role), ElementsAre()) << role;
  }
}

TEST(ChatTemplateParts, GuardedTextsAreTheTemplatesOwnUnlessTheyAreListed) {
  ChatFiles files;
  files.templates = {{"a.jinja", "default", "<a>{{ '<b>' + messages[0].content }}"}, {"b.jinja", "tool_use", "<c>"}};
  const auto guarded = [&] { return (*ChatTemplate::Create(files, Qwen()))->GuardedTexts(); };
  EXPECT_THAT(guarded(), AllOf(Contains("<a>"), Contains("<b>"), Contains("<c>")));
  files.control_tokens = {"<d>"};
  files.has_control_tokens = true;
  EXPECT_THAT(guarded(), ElementsAre("<d>"));
}

// ---- Where reasoning has begun

std::string OpenMark(const std::string& source, const OrderedJson& fields) {
  const auto chat = MakeChatTemplate(source, Qwen());
  const OwnedInput input(fields);
  const auto rendered = chat->Render(input.get());
  EXPECT_TRUE(rendered.ok()) << rendered.status();
  return rendered->open == nullptr ? "" : rendered->open->begin.text;
}

TEST(ChatTemplateReasoning, IsOpenIfTheTemplateHasBegunIt) {
  const std::string thinks = std::string(kContents) + "{% if add_generation_prompt %}A:<think>\n{% endif %}";
  const OrderedJson user = {{"role", "user"}, {"content", "Hi"}};
  EXPECT_EQ(OpenMark(thinks, {{"messages", {user}}}), "<think>");
  EXPECT_EQ(OpenMark(thinks, {{"messages", {user}}, {"add_generation_prompt", false}}), "");
  EXPECT_EQ(OpenMark(std::string(kContents) + "<think>\n\n</think>\n\n", {{"messages", {user}}}), "");
  EXPECT_EQ(OpenMark(std::string(kContents) + "[THINK] [/THINK][THINK]", {{"messages", {user}}}), "[THINK]");
  const OrderedJson forged = {{"role", "user"}, {"content", "<think>"}};
  EXPECT_EQ(OpenMark(kContents, {{"messages", {forged}}}), "") << "a user cannot begin it";
}

TEST(ChatTemplateReasoning, IsOpenIfTheMessageToGoOnWithHasBegunIt) {
  const auto open = [](const std::string& content) {
    return OpenMark(kContents, {{"messages", {{{"role", "assistant"}, {"content", content}}}},
                                {"add_generation_prompt", false},
                                {"continue_final_message", true}});
  };
  EXPECT_EQ(open("<think>Let me"), "<think>");
  EXPECT_EQ(open("<think>"), "<think>");
  EXPECT_EQ(open("<think>Done</think>The"), "");
  EXPECT_EQ(open("Not <think>here"), "");
}

// ---- What is refused

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

TEST(ChatTemplateErrors, InvalidJsonIsNamedByItsField) {
  for (const std::string bad : {"{", "[1", "\xff", "[\"\xff\"]", "nul", "[] []", "[1e999]", "{\"a\": \"\\ud800\"}"}) {
    SCOPED_TRACE(testing::PrintToString(bad));
    for (const char* field : {"messages", "tools", "documents", "variables"}) {
      ChatInput input;
      input.messages = kHello;
      if (field == std::string("messages")) input.messages = bad;
      if (field == std::string("tools")) input.tools = bad;
      if (field == std::string("documents")) input.documents = bad;
      if (field == std::string("variables")) input.variables = bad;
      ExpectSays(RenderStatus(kContents, input), kInvalid, std::string(field) + ": ", "");
    }
  }
  ExpectSays(MessagesStatus(""), kInvalid, "messages: ", "");
  ExpectSays(MessagesStatus(std::string(101, '[') + std::string(101, ']')), kInvalid, "messages: ", "100 deep");
}

TEST(ChatTemplateErrors, WrongTypesAreNamedByTheirField) {
  const struct {
    const char *messages, *begin, *part;
  } cases[] = {
      {"{}", "messages", "array of objects"},
      {"null", "messages", "array of objects"},
      {"[]", "messages", "at least one"},
      {R"([{"role": "user", "content": "a"}, "b"])", "messages[1]", "not an object"},
      {R"([{"content": "a"}])", "messages[0].role", "missing"},
      {R"([{"role": null, "content": "a"}])", "messages[0].role", "missing"},
      {R"([{"role": 1, "content": "a"}])", "messages[0].role", "not a string"},
      {R"([{"role": "", "content": "a"}])", "messages[0].role", ""},
      {R"([{"role": "user", "content": 1}])", "messages[0].content", "neither a string nor an array"},
      {R"([{"role": "user", "content": {}}])", "messages[0].content", "neither a string nor an array"},
      {R"([{"role": "user", "content": ["a"]}])", "messages[0].content[0]", "not an object"},
      {R"([{"role": "user", "content": [{"text": "a"}]}])", "messages[0].content[0].type", "missing"},
      {R"([{"role": "user", "content": [{"type": "text"}]}])", "messages[0].content[0].text", "not a string"},
      {R"([{"role": "user", "content": [{"type": "text", "text": 1}]}])", "messages[0].content[0].text",
       "not a string"},
      {R"([{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}]}])",
       "messages[0].content[1].type", "image_url"},
      {R"([{"role": "assistant", "tool_calls": {}}])", "messages[0].tool_calls", "not an array"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.messages);
    ExpectSays(MessagesStatus(c.messages), kInvalid, c.begin, c.part);
  }
  ChatInput input;
  input.messages = kHello;
  input.tools = "{}";
  ExpectSays(RenderStatus(kContents, input), kInvalid, "tools", "array of objects");
  input.tools = "[{}, 1]";
  ExpectSays(RenderStatus(kContents, input), kInvalid, "tools[1]", "not an object");
  input.tools = "";
  input.documents = "[[]]";
  ExpectSays(RenderStatus(kContents, input), kInvalid, "documents[0]", "not an object");
  input.documents = "";
  input.variables = "[]";
  ExpectSays(RenderStatus(kContents, input), kInvalid, "variables", "object");
}

// A large text that is broken at its end is not in the error.
TEST(ChatTemplateErrors, AreShort) {
  EXPECT_LT(MessagesStatus("[\"" + std::string(1 << 20, 'x')).message().size(), 1000u);
  EXPECT_LT(MessagesStatus(R"([{"role": "user", "content": [{"type": ")" + std::string(1 << 20, 'x') + "\"}]}]")
                .message()
                .size(),
            1000u);
}

TEST(ChatTemplateErrors, VariablesAreNoFieldsOfTheInputAndNoTokens) {
  const auto chat = MakeChatTemplate(OrderedJson{{"default", "{{ bos_token }}{{ eos_token }}{{ x }}"}},
                                     OrderedJson{{"bos_token", "<b>"}}, Qwen());
  for (const char* name : {"messages", "tools", "documents", "add_generation_prompt", "bos_token"}) {
    const OwnedInput input(OrderedJson{{"messages", OrderedJson::parse(kHello)}, {"variables", {{name, 1}}}});
    ExpectSays(chat->Render(input.get()).status(), kInvalid, "variables: ", name);
  }
  const OwnedInput input(OrderedJson{{"messages", OrderedJson::parse(kHello)},
                                     {"variables", {{"eos_token", "not this model's"}, {"x", 1}}}});
  const auto rendered = chat->Render(input.get());
  ASSERT_TRUE(rendered.ok()) << rendered.status();
  EXPECT_EQ(TextOf(*rendered), "<b>not this model's1");
}

TEST(ChatTemplateErrors, AnswersBeginAnewOrGoOn) {
  ChatInput input;
  input.messages = kHello;
  input.continue_final_message = true;
  ExpectSays(RenderStatus(kContents, input), kInvalid, "", "add_generation_prompt and continue_final_message");
  input.add_generation_prompt = false;
  EXPECT_TRUE(RenderStatus(kContents, input).ok());
  ExpectSays(RenderStatus("nothing", input), kInvalid, "continue_final_message: ", "");
  input.messages = R"([{"role": "assistant"}])";
  ExpectSays(RenderStatus("nothing", input), kInvalid, "continue_final_message: ", "messages[0]");
}

TEST(ChatTemplateErrors, WhatATemplateSaysNamesItsPlace) {
  ChatInput input;
  input.messages = kHello;
  ExpectSays(RenderStatus("a\n {{ raise_exception('roles must alternate') }}", input), kInvalid,
             "default.jinja:2:", "roles must alternate");
  ExpectSays(RenderStatus("a\n\n{{ messages[3].content.nothing }}", input), kInvalid, "default.jinja:3:", "");
}

TEST(ChatTemplateErrors, LimitsAreExhaustedResources) {
  ChatInput input;
  input.messages = kHello;
  for (const char* source : {"{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
                             "{% set ns = namespace(x='0123456789') %}"
                             "{% for i in range(30) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
                             "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"}) {
    ExpectSays(RenderStatus(source, input), absl::StatusCode::kResourceExhausted, "default.jinja:1:", "");
  }
}

std::string Repeated(const char* text, size_t bytes_max) {
  std::string all;
  while (all.size() + std::char_traits<char>::length(text) <= bytes_max) all += text;
  return all;
}

// Eight MiB of JSON may be a GiB of values, before a template is asked for anything.
TEST(ChatTemplateErrors, WhatIsReadCountsForTheLimits) {
  constexpr size_t kBytes = 8 << 20;
  const std::string objects = "[" + Repeated("{},", kBytes) + "{}]";
  const std::string hello = R"({"role": "user", "content": "Hi"})";
  ChatInput input;
  const std::string field = R"([{"role": "user", "content": "", "x": )" + objects + "}]";
  input.messages = field;
  ExpectSays(RenderStatus("", input), absl::StatusCode::kResourceExhausted, "messages: ", "MiB of memory");
  input.messages = kHello;
  input.tools = objects;
  ExpectSays(RenderStatus("", input), absl::StatusCode::kResourceExhausted, "tools: ", "MiB of memory");
  input.tools = "";
  const std::string variables = R"({"x": )" + objects + "}";
  input.variables = variables;
  ExpectSays(RenderStatus("", input), absl::StatusCode::kResourceExhausted, "variables: ", "MiB of memory");
  input.variables = "";
  // JSON in the arguments of a call is read when messages are prepared.
  const std::string calls = "[" + hello +
                            R"(, {"role": "assistant", "tool_calls": [{"function": {"arguments": "{\"x\": )" + objects +
                            R"(}"}}]}])";
  input.messages = calls;
  ExpectSays(RenderStatus("", input), absl::StatusCode::kResourceExhausted, "messages[1]: ", "MiB of memory");
  const std::string text = R"([{"role": "user", "content": ")" + std::string(kBytes, 'x') + R"("}])";
  input.messages = text;
  EXPECT_TRUE(RenderStatus("", input).ok()) << "a long text is none of these";
}

TEST(ChatTemplateErrors, TemplatesThatAreNoneNameTheirPlace) {
  ChatFiles files;
  files.templates = {{"bad.jinja", "default", "a\n{% if %}"}};
  ExpectSays(ChatTemplate::Create(files, Qwen()).status(), kInvalid, "bad.jinja:2:", "");
  files.templates = {{"bad.jinja", "default", "\xff"}};
  ExpectSays(ChatTemplate::Create(files, Qwen()).status(), kInvalid, "bad.jinja", "UTF-8");
  files.templates = {{"a.jinja", "rag", "x"}, {"b.jinja", "tool_use", "y"}};
  ExpectSays(ChatTemplate::Create(files, Qwen()).status(), kInvalid, "a.jinja, b.jinja", "--chat-template FILE");
  files.templates = {{"a.jinja", "rag", "x"}};
  EXPECT_TRUE(ChatTemplate::Create(files, Qwen()).ok()) << "there is no other";
}

// Transformers, too, compiles a template when a chat needs it.
TEST(ChatTemplateErrors, ATemplateThatIsNoneAmongOthersIsMissedByThoseWhoNeedIt) {
  const std::string bad = "a\n{% if %}";
  ChatInput plain, tools;
  plain.messages = tools.messages = kHello;
  tools.tools = R"([{"type": "function", "function": {"name": "f"}}])";
  ChatFiles files;
  files.templates = {{"good.jinja", "default", kContents}, {"bad.jinja", "tool_use", bad}};
  auto chat = ChatTemplate::Create(files, Qwen());
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_THAT((*chat)->warnings(), ElementsAre(AllOf(StartsWith("bad.jinja:2:"), HasSubstr("template tool_use"))));
  EXPECT_EQ(TextOf(*(*chat)->Render(plain)), "Hi");
  ExpectSays((*chat)->Render(tools).status(), kInvalid, "bad.jinja:2:", "expected an expression");
  EXPECT_THAT((*chat)->GuardedTexts(), Not(Contains("a\n")));

  files.templates = {{"bad.jinja", "default", bad}, {"good.jinja", "tool_use", kContents}};
  chat = ChatTemplate::Create(files, Qwen());
  ASSERT_TRUE(chat.ok()) << chat.status();
  EXPECT_THAT((*chat)->warnings(), ElementsAre(AllOf(StartsWith("bad.jinja:2:"), HasSubstr("template default"))));
  EXPECT_EQ(TextOf(*(*chat)->Render(tools)), "Hi");
  ExpectSays((*chat)->Render(plain).status(), kInvalid, "bad.jinja:2:", "");
  EXPECT_EQ((*chat)->TurnEnd(Qwen()), std::nullopt);

  files.templates = {{"bad.jinja", "default", bad}, {"worse.jinja", "tool_use", "{% for %}"}};
  ExpectSays(ChatTemplate::Create(files, Qwen()).status(), kInvalid, "bad.jinja:2:", "");
}

// What stands behind an assistant's message: transformers' text of such a chat, and which of it is a special token.
TEST(ChatTemplate, KnowsTheTokenThatEndsATurn) {
  const auto end_of = [](const std::string& after) {
    const auto chat =
        MakeChatTemplate("{% for m in messages %}<|im_start|>{{ m.content }}" + after + "{% endfor %}", Qwen());
    const std::optional<int32_t> id = chat->TurnEnd(Qwen());
    return id.has_value() ? Qwen().TokenBytes(*id) : "";
  };
  EXPECT_EQ(end_of("<|im_end|>\n"), "<|im_end|>");
  EXPECT_EQ(end_of("\n <|im_end|><|endoftext|>"), "<|im_end|>");
  EXPECT_EQ(end_of("<|endoftext|>"), "<|endoftext|>");
  EXPECT_EQ(end_of(""), "");
  EXPECT_EQ(end_of("\n"), "");
  EXPECT_EQ(end_of(" END <|im_end|>"), "");
  EXPECT_EQ(end_of("<|im_end"), "");
}

}  // namespace
}  // namespace fastdecode
