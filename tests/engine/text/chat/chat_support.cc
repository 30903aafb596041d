#include "tests/engine/text/chat/chat_support.h"

#include <gtest/gtest.h>

#include <fstream>

#include "numa/check.h"
#include "tests/engine/text/golden_files.h"

namespace fastdecode {

OrderedJson ReadChatGoldens() {
  std::ifstream file(FASTDECODE_TESTS_DIR "/engine/text/chat/golden.json");
  FD_CHECK(file.good(), "the golden file is in the tree");
  return OrderedJson::parse(file);
}

nlohmann::json TokenizerDocument(const std::string& golden) { return ReadGoldenJson(golden + "/tokenizer.json"); }

nlohmann::json BaseDocument(const std::vector<std::pair<std::string, bool>>& added) {
  nlohmann::json document = TokenizerDocument("base");
  for (const auto& [content, special] : added) {
    EXPECT_FALSE(document["model"]["vocab"].contains(content)) << content;
    document["added_tokens"].push_back({{"id", 1000 + document["added_tokens"].size()},
                                        {"content", content},
                                        {"special", special},
                                        {"normalized", false},
                                        {"single_word", false},
                                        {"lstrip", false},
                                        {"rstrip", false}});
  }
  return document;
}

std::unique_ptr<Tokenizer> MakeTokenizer(const nlohmann::json& document) {
  auto tokenizer = ParseTokenizer(document);
  FD_CHECK(tokenizer.ok(), "the test's tokenizer is one");
  return *std::move(tokenizer);
}

std::unique_ptr<const ChatTemplate> MakeChatTemplate(const OrderedJson& templates, const OrderedJson& special_tokens,
                                                     const Tokenizer& tokenizer) {
  ChatFiles files;
  for (const auto& [name, text] : templates.items()) files.templates.push_back({name + ".jinja", name, text});
  for (const auto& [name, text] : special_tokens.items()) files.special_tokens.emplace_back(name, text);
  auto chat = ChatTemplate::Create(files, tokenizer);
  EXPECT_TRUE(chat.ok()) << chat.status();
  return chat.ok() ? *std::move(chat) : nullptr;
}

std::unique_ptr<const ChatTemplate> MakeChatTemplate(const std::string& text, const Tokenizer& tokenizer) {
  return MakeChatTemplate(OrderedJson{{"default", text}}, OrderedJson::object(), tokenizer);
}

OwnedInput::OwnedInput(const OrderedJson& fields) {
  const auto dump = [&](const char* name, std::string* text, std::string_view* place) {
    if (fields.contains(name)) *text = fields[name].dump();
    *place = *text;
  };
  dump("messages", &messages_, &input_.messages);
  dump("tools", &tools_, &input_.tools);
  dump("documents", &documents_, &input_.documents);
  dump("variables", &variables_, &input_.variables);
  input_.add_generation_prompt = fields.value("add_generation_prompt", true);
  input_.continue_final_message = fields.value("continue_final_message", false);
}

std::string TextOf(const RenderedChat& chat) {
  std::string text;
  for (const RenderedChat::Part& part : chat.parts) text += part.text;
  return text;
}

std::vector<Tokenizer::Part> PartsOf(const RenderedChat& chat) {
  std::vector<Tokenizer::Part> parts;
  for (const RenderedChat::Part& part : chat.parts) parts.push_back({part.text, part.special, {}, /*joins=*/true});
  return parts;
}

}  // namespace fastdecode
