#ifndef FASTDECODE_ENGINE_TEXT_CHAT_CHAT_TEMPLATE_H_
#define FASTDECODE_ENGINE_TEXT_CHAT_CHAT_TEMPLATE_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/text/chat/chat_files.h"
#include "engine/text/chat/reasoning.h"
#include "engine/text/jinja/template.h"
#include "engine/text/tokenizer.h"

namespace fastdecode {

// A chat to render. All texts are JSON, and lent.
struct ChatInput {
  std::string_view messages;
  std::string_view tools, documents, variables;  // empty: none
  bool add_generation_prompt = true;
  bool continue_final_message = false;
  int64_t now_s = 0;  // since 1970
};

// What became of it.
struct RenderedChat {
  struct Part {
    std::string text;
    bool special = false;  // the template's author wrote it; else it came from the request, or is made of what did
  };
  std::vector<Part> parts;
  std::shared_ptr<const ReasoningMarks> marks;
  const ReasoningMarks::Pair* open = nullptr;  // of *marks: the reasoning in which the prompt ends; null: none
};

// The chat template of a model.
//
// Messages reach it as transformers passes them: without their null fields, with reasoning under each of its names
// (reasoning_content, thinking), and with the arguments of tool calls as objects. Beside that, a content of several
// texts becomes one text for a template that prints texts alone, and the other way round; and the role developer
// becomes system for a template that does not know it.
//
// Owns: the templates, parsed. Thread: immutable, shared by any number.
class ChatTemplate {
 public:
  // `tokenizer`: which texts are special tokens, and which of them have names beside those of the files; lent for the
  // call. Of several templates, one that is no Jinja is a warning, and refused when a chat needs it. Errors name file,
  // line and column.
  static absl::StatusOr<std::unique_ptr<const ChatTemplate>> Create(const ChatFiles& files, const Tokenizer& tokenizer);

  // InvalidArgument: the field of the input that is at fault, or what the template says of it. ResourceExhausted:
  // reading and rendering it take too much.
  absl::StatusOr<RenderedChat> Render(const ChatInput& input) const;

  // Texts whose added tokens no request may spell.
  std::vector<std::string> GuardedTexts() const;

  // The special token that the template puts behind an assistant's message, white space aside; none if it puts none
  // there.
  std::optional<int32_t> TurnEnd(const Tokenizer& tokenizer) const;

  // For the log: what is wrong with templates that not every chat needs.
  const std::vector<std::string>& warnings() const { return warnings_; }

 private:
  struct Known {
    std::string name;
    std::unique_ptr<const jinja::Template> rendered_by;
    absl::Status broken;                          // why there is none
    absl::Status probed;                          // what it says of a chat with one message
    bool takes_text = true, takes_parts = false;  // as a message's content
    bool knows_developer = false;
  };

  ChatTemplate() = default;
  const Known& Chosen(bool has_tools) const;
  static void Probe(const ChatTemplate& chat, Known* known);
  // REQUIRES: this thread is spending.
  absl::StatusOr<jinja::Text> RenderValues(const Known& known, jinja::Dict variables, int64_t now_s) const;
  const ReasoningMarks::Pair* OpenReasoning(const jinja::Text& text, const std::string& continued) const;

  std::vector<Known> templates_;
  std::vector<std::pair<std::string, std::string>> special_tokens_;
  std::vector<std::string> control_tokens_;
  bool has_control_tokens_ = false;
  std::shared_ptr<const ReasoningMarks> marks_;
  std::vector<std::string> warnings_;
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_TEXT_CHAT_CHAT_TEMPLATE_H_
