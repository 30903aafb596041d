#ifndef FASTDECODE_ENGINE_TEXT_CHAT_REASONING_H_
#define FASTDECODE_ENGINE_TEXT_CHAT_REASONING_H_

#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/text_range.h"

namespace fastdecode {

// What marks a model's reasoning in its answers.
struct ReasoningMarks {
  struct Mark {
    std::string text;
    std::string origins;  // [text's bytes]: who writes each, see AnswerText::Origin
  };
  struct Pair {
    Mark begin, end;
    bool anywhere = false;  // begins wherever it stands: it is a special token. Else at the answer's beginning alone
  };
  std::vector<Pair> pairs;
  std::vector<Mark> dropped;   // marks that belong to neither part, such as those of the channel of the content
  bool shows_special = false;  // a mark is a special token, so that answers must have these in their text
};

// <think> and </think>, and the marks that a template's own texts spell, such as [THINK] and [/THINK] or gpt-oss's
// channels. `special_in`: what of a text are special tokens.
ReasoningMarks FindReasoningMarks(const std::vector<std::string>& literals,
                                  const std::function<std::vector<TextRange>(const std::string&)>& special_in);

// A piece of an answer, and what of it special tokens wrote. Lent.
struct AnswerText {
  enum Origin : char {
    kOrdinary,  // tokens that are not special, whatever they spell
    kSpecial,   // a special token, which stays if it marks nothing
    kHidden,    // a special token, which is left out then
    kUnknown,   // either: it is part of a mark if it spells one, and stays if not
  };

  std::string_view text;
  std::span<const TextRange> special = {};
  Origin of_special = kSpecial;
  Origin of_others = kOrdinary;
};

// Takes one answer apart, as it comes. Line ends around the marks are left out; texts without marks stay as they are.
// A mark that is a special token is known by that, and not by what a text spells. Holds back what may become a mark.
// Thread: one.
class ReasoningReader {
 public:
  // `open`: the pair of *marks whose reasoning the prompt has begun, such as by ending with "<think>\n"; null: none.
  // `marks` outlive this.
  ReasoningReader(const ReasoningMarks* marks, const ReasoningMarks::Pair* open);

  // Appends what `answer` adds to either part. `last`: nothing follows.
  void Read(const AnswerText& answer, bool last, std::string* reasoning, std::string* content);
  bool in_reasoning() const { return open_ != nullptr; }

 private:
  // A mark, or what is dropped, that stands next in what is held.
  struct Found {
    size_t at = std::string::npos;
    size_t size = 0;
    const ReasoningMarks::Pair* begins = nullptr;
    bool ends = false;
  };

  bool Matches(const ReasoningMarks::Mark& mark, size_t at, size_t bytes) const;
  size_t Find(const ReasoningMarks::Mark& mark) const;
  size_t BegunAtEnd(const ReasoningMarks::Mark& mark) const;
  Found FindNext() const;
  size_t HeldBack(bool last) const;
  void Hold(const AnswerText& answer);
  void Drop(size_t bytes);
  void EmitHeld(size_t bytes, std::string* reasoning, std::string* content);
  void Emit(std::string_view text, std::string* reasoning, std::string* content);
  bool AtBeginning(size_t offset) const;

  const ReasoningMarks* const marks_;
  const ReasoningMarks::Pair* open_ = nullptr;  // the reasoning that has begun and not ended
  std::string held_;
  std::string origins_;          // [held_'s bytes]
  std::string line_ends_;        // of reasoning, which count if more follows
  bool any_text_ = false;        // something other than white space has come
  bool skip_line_ends_ = false;  // a mark has just come
};

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_TEXT_CHAT_REASONING_H_
