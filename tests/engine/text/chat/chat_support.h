#ifndef FASTDECODE_TESTS_ENGINE_TEXT_CHAT_CHAT_SUPPORT_H_
#define FASTDECODE_TESTS_ENGINE_TEXT_CHAT_CHAT_SUPPORT_H_

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "engine/text/chat/chat_template.h"

namespace fastdecode {

// Keeps the order of fields, which templates show.
using OrderedJson = nlohmann::ordered_json;

// golden.json, which make_chat_goldens.py writes.
OrderedJson ReadChatGoldens();

// A tokenizer.json of the goldens, and `base`, which has 1000 tokens and no steps but ByteLevel, with these added
// tokens, numbered from 1000: their contents, and whether they are special.
nlohmann::json TokenizerDocument(const std::string& golden);
nlohmann::json BaseDocument(const std::vector<std::pair<std::string, bool>>& added);
// Ends the test if the document is none.
std::unique_ptr<Tokenizer> MakeTokenizer(const nlohmann::json& document);

// A model's templates by name and its special tokens. Fails the test and gives null if they are none.
std::unique_ptr<const ChatTemplate> MakeChatTemplate(const OrderedJson& templates, const OrderedJson& special_tokens,
                                                     const Tokenizer& tokenizer);
// The same of one template.
std::unique_ptr<const ChatTemplate> MakeChatTemplate(const std::string& text, const Tokenizer& tokenizer);

// An input of JSON texts, which it owns. Fields: messages, tools, documents, variables, add_generation_prompt,
// continue_final_message.
class OwnedInput {
 public:
  explicit OwnedInput(const OrderedJson& fields);
  OwnedInput(const OwnedInput&) = delete;
  OwnedInput& operator=(const OwnedInput&) = delete;
  const ChatInput& get() const { return input_; }

 private:
  std::string messages_, tools_, documents_, variables_;
  ChatInput input_;
};

// The whole prompt.
std::string TextOf(const RenderedChat& chat);
// The parts as a tokenizer takes them, which lend from the chat.
std::vector<Tokenizer::Part> PartsOf(const RenderedChat& chat);

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_ENGINE_TEXT_CHAT_CHAT_SUPPORT_H_
