// Chats through the C++ layer: what of a chat is a special token, how it becomes a request, how its answers are read.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tests/engine/end_to_end/interface_fixture.h"

namespace fastdecode {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Of the texts that it writes, the demo model has <|begin|> (0) and <|end|> (1) as special tokens.
constexpr char kTurns[] =
    "{{ bos_token }}{% for message in messages %}{{ message.role }}: {{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}";
constexpr char kHello[] = R"([{"role": "user", "content": "Once upon a time"}])";

class ChatTest : public InterfaceTest {
 protected:
  std::unique_ptr<InferenceEngine> MakeChatEngine(const std::string& source) {
    dir_.Write("chat.jinja", source);
    return MakeEngine({{"model", FASTDECODE_DEMO_MODEL},
                       {"chat-template", dir_.File("chat.jinja")},
                       {"compute", "f32"},
                       {"homes", "local:1"},
                       {"poll", "yield"},
                       {"max-sequences", "8"}});
  }

  static ChatParameters Messages(std::string json) {
    ChatParameters parameters;
    parameters.messages = std::move(json);
    return parameters;
  }

  static Error RenderError(const InferenceEngine& engine, const ChatParameters& parameters) {
    try {
      engine.RenderChat(parameters);
    } catch (const Error& error) {
      return error;
    }
    return Error(FD_OK, "");
  }

  static std::vector<int32_t> Tokens(InferenceEngine& engine, const GenerateRequest& request) {
    Answer answer;
    TokenStream stream = engine.Submit(request);
    ReadToEnd(stream, &answer);
    return answer.tokens;
  }
};

TEST_F(ChatTest, ThePromptIsWhatTheTemplateWrites) {
  const auto engine = MakeChatEngine(kTurns);
  EXPECT_TRUE(engine->has_chat_template());
  EXPECT_EQ(engine->chat_template_missing_reason(), "");
  const Chat chat = engine->RenderChat(Messages(R"([{"role": "user", "content": "a\u0000b<|end|>c"}])"));
  EXPECT_EQ(chat.Text(), std::string("<|begin|>user: a\0b<|end|>c<|end|>assistant: ", 44));
  std::string special, typed;
  for (const PromptPart& part : chat.Parts()) {
    EXPECT_TRUE(part.joins);
    (part.special ? special : typed) += part.text;
  }
  EXPECT_EQ(special, "<|begin|>user: <|end|>assistant: ");
  EXPECT_EQ(typed, std::string("a\0b<|end|>c", 11));
  std::vector<int32_t> specials;
  for (const int32_t id : engine->Tokenize(chat.Parts(), /*add_special_tokens=*/false)) {
    if (id < 2) specials.push_back(id);
  }
  EXPECT_THAT(specials, ElementsAre(0, 1));
}

TEST_F(ChatTest, EveryParameterReachesTheTemplate) {
  const auto engine = MakeChatEngine(
      "{{ tools | tojson }} {{ documents | tojson }} {{ add_generation_prompt }} {{ strftime_now('%Y') }} "
      "{{ extra }} {{ messages[0].content }}");
  ChatParameters parameters = Messages(kHello);
  parameters.tools = R"([{"name": "clock"}])";
  parameters.documents = R"([{"title": "a"}])";
  parameters.variables = R"({"extra": 7})";
  parameters.add_generation_prompt = false;
  parameters.now_s = 1'000'000'000;  // September 2001
  EXPECT_EQ(engine->RenderChat(parameters).Text(),
            R"([{"name": "clock"}] [{"title": "a"}] False 2001 7 Once upon a time)");
  parameters.continue_final_message = true;
  EXPECT_THAT(engine->RenderChat(parameters).Text(), testing::EndsWith("Once upon a time"));
  parameters.add_generation_prompt = true;
  ExpectError(RenderError(*engine, parameters), FD_INVALID_ARGUMENT, "continue_final_message");
}

TEST_F(ChatTest, ARequestHasItsPrompt) {
  const auto engine = MakeChatEngine(kTurns);
  GenerateRequest request("not this");
  request.fields.max_tokens = 9;
  request.fields.temperature = 0;
  request.fields.ignore_eos = 1;
  {
    Chat chat = engine->RenderChat(Messages(kHello));
    Chat moved(std::move(chat));
    Chat assigned = engine->RenderChat(Messages(R"([{"role": "user", "content": "other"}])"));
    assigned = std::move(moved);
    assigned.SetPrompt(&request);
  }
  EXPECT_EQ(request.fields.max_tokens, 9u);
  EXPECT_EQ(request.fields.add_special_tokens, 0);
  const std::vector<int32_t> prompt = engine->Tokenize(
      {{"<|begin|>user: ", true, {}}, {"Once upon a time", false, {}, true}, {"<|end|>assistant: ", true, {}, true}},
      /*add_special_tokens=*/false);
  const std::vector<int32_t> tokens = Tokens(*engine, request);
  EXPECT_EQ(tokens.size(), 9u);
  EXPECT_EQ(tokens, Tokens(*engine, GreedyRequest(prompt, 9)));
}

TEST_F(ChatTest, AnswersAreTakenApart) {
  const auto engine = MakeChatEngine(std::string(kTurns) + "{% if thinks %}<think>{% endif %}");
  ChatParameters parameters = Messages(kHello);
  const Chat silent = engine->RenderChat(parameters);
  parameters.variables = R"({"thinks": true})";
  const Chat thinks = engine->RenderChat(parameters);
  ChatReader reader(silent), begun(thinks);
  EXPECT_FALSE(reader.in_reasoning());
  EXPECT_TRUE(begun.in_reasoning());
  ChatReader moved(std::move(begun));
  EXPECT_TRUE(moved.in_reasoning());
  const ChatReader::Piece first = moved.Read("\nHm</thi");
  EXPECT_EQ(first.reasoning, "Hm");
  EXPECT_EQ(first.content, "");
  const ChatReader::Piece second = moved.Read("nk>\n\nYes");
  EXPECT_EQ(second.reasoning, "");
  EXPECT_EQ(second.content, "Yes");
  EXPECT_FALSE(moved.in_reasoning());
  EXPECT_EQ(reader.Read("<think>a</think>b").content, "b");
  reader = ChatReader(thinks);
  EXPECT_EQ(reader.Read("x</", /*last=*/true).reasoning, "x</");
}

// Of special tokens that mark nothing, and of ordinary ones.
TEST_F(ChatTest, EventsAreReadByTheirTokens) {
  const auto engine = MakeChatEngine(kTurns);
  const Chat chat = engine->RenderChat(Messages(kHello));
  const auto answer = [&](int32_t token, int show_special) {
    GenerateRequest request;
    chat.SetPrompt(&request);
    request.fields.show_special = show_special;
    request.fields.temperature = 0;
    request.fields.ignore_eos = 1;
    request.fields.max_tokens = 3;
    request.logit_bias.push_back({token, 1000});
    TokenStream stream = engine->Submit(request);
    ChatReader reader(chat);
    std::string content;
    while (const std::optional<TokenEvent> event = stream.Next()) {
      EXPECT_EQ(event->hides_special, show_special == 2);
      EXPECT_EQ(event->special.size(), token < 2 && show_special != 0 && !event->finished ? 1u : 0u);
      content += reader.Read(*event).content;
    }
    return content;
  };
  const int32_t letter = engine->Tokenize("a", false).at(0);
  for (const int show_special : {0, 1, 2}) EXPECT_EQ(answer(letter, show_special), "aaa");
  EXPECT_EQ(answer(1, 0), "");
  EXPECT_EQ(answer(1, 1), "<|end|><|end|><|end|>");
  EXPECT_EQ(answer(1, 2), "");
}

TEST_F(ChatTest, WhatCannotBeIsRefused) {
  const auto engine = MakeChatEngine(kTurns);
  ExpectError(RenderError(*engine, Messages("[{")), FD_INVALID_ARGUMENT, "messages");
  ExpectError(RenderError(*engine, Messages("")), FD_INVALID_ARGUMENT, "messages");
  ChatParameters parameters = Messages(kHello);
  parameters.variables = "[]";
  ExpectError(RenderError(*engine, parameters), FD_INVALID_ARGUMENT, "variables");
  const auto refusing = MakeChatEngine("a\n{{ raise_exception('no chats on Sundays') }}");
  ExpectError(RenderError(*refusing, Messages(kHello)), FD_INVALID_ARGUMENT, "chat.jinja:2:");
  ExpectError(RenderError(*refusing, Messages(kHello)), FD_INVALID_ARGUMENT, "no chats on Sundays");
  const auto without = MakeEngine(Options());
  EXPECT_FALSE(without->has_chat_template());
  EXPECT_NE(without->chat_template_missing_reason(), "");
  ExpectError(RenderError(*without, Messages(kHello)), FD_FAILED_PRECONDITION, without->chat_template_missing_reason());
}

TEST_F(ChatTest, AnyTemplateIsRendered) {
  EXPECT_EQ(RenderTemplate("mine.jinja", "{{ x }}{{ strftime_now('%Y') }}\n\n", R"({"x": "\u0000"})", 1'000'000'000),
            std::string("\0"
                        "2001\n",
                        6));
  try {
    RenderTemplate("mine.jinja", "a\n\n{{ x.y }}", "{}");
    ADD_FAILURE() << "x is undefined";
  } catch (const Error& error) {
    ExpectError(error, FD_INVALID_ARGUMENT, "mine.jinja:3:");
  }
  EXPECT_THROW(RenderTemplate("mine.jinja", "", "[1]"), Error);
}

}  // namespace
}  // namespace fastdecode
