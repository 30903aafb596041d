#ifndef FASTDECODE_ENGINE_TEXT_CHAT_REASONING_H_
#define FASTDECODE_ENGINE_TEXT_CHAT_REASONING_H_

#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace fastdecode {

// What marks a model's reasoning in its answers.
struct ReasoningMarks {
  struct Pair {
    std::string begin, end;
    bool anywhere = false;  // begins wherever it stands: it is a special token. Else at the answer's beginning alone
  };
  std::vector<Pair> pairs;
  std::vector<std::string> dropped;  // texts that belong to neither part where they are no marks: special tokens
  bool shows_special = false;        // a mark is a special token, so that answers must have these in their text
};

// <think> and </think>, and the marks that a template's own texts spell, such as [THINK] and [/THINK] or gpt-oss's
// channels. `is_special`: whether a text has special tokens in it. `special_tokens`: the texts of all.
ReasoningMarks FindReasoningMarks(const std::vector<std::string>& literals,
                                  const std::function<bool(const std::string&)>& is_special,
                                  const std::vector<std::string>& special_tokens);

// Takes one answer apart, as it comes. Line ends around the marks are left out; texts without marks stay as they are.
// Holds back what may become a mark. Thread: one.
class ReasoningReader {
 public:
  // `open`: the pair of *marks whose reasoning the prompt has begun, such as by ending with "<think>\n"; null: none.
  // `marks` outlive this.
  ReasoningReader(const ReasoningMarks* marks, const ReasoningMarks::Pair* open);

  // Appends what `text` adds to either part. `last`: nothing follows.
  void Read(std::string_view text, bool last, std::string* reasoning, std::string* content);
  bool in_reasoning() const { return open_ != nullptr; }

 private:
  // A mark, or what is dropped, that stands next in what is held.
  struct Found {
    size_t at = std::string::npos;
    size_t size = 0;
    const ReasoningMarks::Pair* begins = nullptr;
    bool ends = false;
  };

  Found FindNext() const;
  size_t HeldBack(bool last) const;
  void Emit(std::string_view text, std::string* reasoning, std::string* content);
  bool AtBeginning(size_t offset) const;

  const ReasoningMarks* const marks_;
  const ReasoningMarks::Pair* open_ = nullptr;  // the reasoning that has begun and not ended
  std::string held_;
  std::string line_ends_;        // of reasoning, which count if more follows
  bool any_text_ = false;        // something other than white space has come
  bool skip_line_ends_ = false;  // a mark has just come
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_TEXT_CHAT_REASONING_H_
