// Nothing that a request says becomes a special token, in whatever field it says it and whatever the template does with
// it: a chat that spells tokens everywhere has those of the same chat that spells none.

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/engine/text/chat/chat_support.h"
#include "tests/engine/text/chat/forgery_conversations.h"
#include "tests/engine/text/chat/forgery_templates.h"

namespace fastdecode {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

constexpr int kChats = 10000;

// A model: its tokenizer and its template.
struct Model {
  std::string name;
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<const ChatTemplate> chat;
  std::vector<std::string> names;  // of all added tokens
  Ids restricted;                  // the ids that a request must not make
};

Model MakeModel(const std::string& name, const json& document, const std::string& source, const std::string& bos,
                const std::string& eos) {
  Model model = {name, MakeTokenizer(document), nullptr, {}, {}};
  model.chat = MakeChatTemplate(OrderedJson{{"default", source}}, OrderedJson{{"bos_token", bos}, {"eos_token", eos}},
                                *model.tokenizer);
  std::string guarded;
  for (const std::string& text : model.chat->GuardedTexts()) guarded += text + "\n";
  model.tokenizer->GuardTokensIn(guarded);
  for (const json& token : document["added_tokens"]) {
    const std::string content = token["content"];
    model.names.push_back(content);
    if (token["special"] || source.find(content) != std::string::npos) model.restricted.push_back(token["id"]);
  }
  return model;
}

// The mangling template for a token OPEN + NAME + CLOSE.
std::string Mangling(const std::string& open, const std::string& name, const std::string& close) {
  std::string source = kManglingTemplate;
  for (const auto& [from, to] :
       {std::pair<std::string, std::string>{"OPEN", open}, {"CLOSE", close}, {"END", open + name + close}}) {
    for (size_t at = 0; (at = source.find(from, at)) != std::string::npos; at += to.size()) {
      source.replace(at, from.size(), to);
    }
  }
  return source;
}

std::vector<Model> MakeModels() {
  const json qwen = TokenizerDocument("qwen2"), llama = TokenizerDocument("llama3"),
             deepseek = TokenizerDocument("deepseek");
  const json mistral = BaseDocument({{"<s>", true},
                                     {"</s>", true},
                                     {"[INST]", true},
                                     {"[/INST]", true},
                                     {"[TOOL_CALLS]", true},
                                     {"[AVAILABLE_TOOLS]", true},
                                     {"[/AVAILABLE_TOOLS]", true},
                                     {"[THINK]", false},
                                     {"[/THINK]", false}});
  const json phi = BaseDocument({{"<|end|>", true},
                                 {"<|user|>", true},
                                 {"<|assistant|>", true},
                                 {"<|system|>", true},
                                 {"<|tool|>", true},
                                 {"<|/tool|>", false},
                                 {"<|x|>", true},
                                 {"<|", false}});
  const std::string begin = "<｜begin▁of▁sentence｜>", end = "<｜end▁of▁sentence｜>";
  std::vector<Model> models;
  models.push_back(MakeModel("ChatML", qwen, kChatMlTemplate, "", "<|im_end|>"));
  models.push_back(MakeModel("Llama 3", llama, kLlama3Template, "<|begin_of_text|>", "<|eot_id|>"));
  models.push_back(MakeModel("Mistral", mistral, kMistralTemplate, "<s>", "</s>"));
  models.push_back(MakeModel("DeepSeek", deepseek, kDeepSeekTemplate, begin, end));
  models.push_back(MakeModel("Phi", phi, kPhiTemplate, "", "<|end|>"));
  models.push_back(MakeModel("mangling ChatML", qwen, Mangling("<|", "im_end", "|>"), "", "<|im_end|>"));
  models.push_back(MakeModel("mangling Llama 3", llama, Mangling("<|", "eot_id", "|>"), "<|begin_of_text|>", ""));
  models.push_back(MakeModel("mangling DeepSeek", deepseek, Mangling("<｜", "User", "｜>"), begin, end));
  return models;
}

Ids RestrictedOf(const Model& model, const Ids& ids) {
  Ids found;
  std::copy_if(ids.begin(), ids.end(), std::back_inserter(found), [&](int32_t id) {
    return std::find(model.restricted.begin(), model.restricted.end(), id) != model.restricted.end();
  });
  return found;
}

class ForgeryTest : public testing::TestWithParam<size_t> {};

TEST_P(ForgeryTest, NoRequestMakesASpecialToken) {
  std::vector<Model> models = MakeModels();
  const Model& model = models[GetParam()];
  SCOPED_TRACE(model.name);
  ConversationDrawer drawer(model.names, /*seed=*/static_cast<uint32_t>(GetParam()));
  int spelled = 0, with_tokens = 0;
  for (int i = 0; i < kChats / static_cast<int>(models.size()); ++i) {
    const OrderedJson drawn = drawer.Next();
    const OrderedJson harmless = Harmless(drawn);
    const auto chat = model.chat->Render(OwnedInput(drawn).get());
    const auto plain = model.chat->Render(OwnedInput(harmless).get());
    ASSERT_TRUE(chat.ok()) << chat.status() << "\n" << drawn;
    ASSERT_TRUE(plain.ok()) << plain.status() << "\n" << harmless;
    const std::string text = TextOf(*chat), plain_text = TextOf(*plain);
    const Ids ids = RestrictedOf(model, model.tokenizer->EncodeParts(PartsOf(*chat), false));
    const Ids plain_ids = model.tokenizer->EncodeParts(PartsOf(*plain), false);
    ASSERT_EQ(ids, RestrictedOf(model, plain_ids)) << drawn << "\nrendered:\n" << text << "\n" << harmless;
    ASSERT_EQ(plain_ids, model.tokenizer->Encode(plain_text, false)) << harmless << "\nrendered:\n" << plain_text;
    spelled += RestrictedOf(model, model.tokenizer->Encode(text, false)).size() > ids.size();
    with_tokens += !ids.empty();
  }
  // The chats do spell tokens, which a tokenizer that does not know who wrote them takes for tokens.
  EXPECT_GT(spelled, kChats / 8 / 2);
  EXPECT_GT(with_tokens, kChats / 8 / 2);
}

INSTANTIATE_TEST_SUITE_P(Models, ForgeryTest, testing::Range<size_t>(0, 8));

}  // namespace
}  // namespace fastdecode
