// Which marks a template has, and how an answer is taken apart, however it is cut.

#include "engine/text/chat/reasoning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

namespace fastdecode {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

using Strings = std::vector<std::string>;

// What of a text a tokenizer with these special tokens takes for one: the longest at each place.
std::vector<TextRange> SpecialIn(const std::string& text, const Strings& special) {
  std::vector<TextRange> ranges;
  for (size_t at = 0; at < text.size();) {
    size_t bytes = 0;
    for (const std::string& token : special) {
      if (text.compare(at, token.size(), token) == 0) bytes = std::max(bytes, token.size());
    }
    AddRange({at, at + bytes}, &ranges);
    at += std::max<size_t>(bytes, 1);
  }
  return ranges;
}

// The marks of a template with these literals, for a tokenizer with these special tokens.
ReasoningMarks FindMarks(const Strings& literals, const Strings& special) {
  return FindReasoningMarks(literals, [&](const std::string& text) { return SpecialIn(text, special); });
}

// Each as BEGIN...END.
Strings Shown(const ReasoningMarks& marks) {
  Strings shown;
  for (const ReasoningMarks::Pair& pair : marks.pairs) shown.push_back(pair.begin.text + "..." + pair.end.text);
  return shown;
}

const Strings kGptOss = {"<|start|>", "<|end|>", "<|message|>", "<|channel|>", "<|return|>"};
const Strings kGptOssLiterals = {"<|start|>", "<|channel|>analysis<|message|>", "<|end|>",
                                 "<|start|>assistant<|channel|>final<|message|>"};

// ---- Which marks there are

TEST(ReasoningMarks, OfPlainTemplatesAreThink) {
  for (const Strings& literals : {Strings{}, Strings{"<|im_start|>", "\n"}, Strings{"<think>\n\n</think>\n\n"}}) {
    const ReasoningMarks marks = FindMarks(literals, {"<|im_start|>"});
    EXPECT_THAT(Shown(marks), ElementsAre("<think>...</think>"));
    EXPECT_FALSE(marks.pairs[0].anywhere);
    EXPECT_FALSE(marks.shows_special);
    EXPECT_THAT(marks.dropped, IsEmpty());
  }
}

TEST(ReasoningMarks, AreThoseThatTheTemplateSpells) {
  const struct {
    Strings literals;
    const char* mark;
  } cases[] = {
      {{"[THINK]", "x[/THINK]"}, "[THINK]...[/THINK]"},
      {{"<seed:think>", "</seed:think>\n"}, "<seed:think>...</seed:think>"},
      {{"a</thought>b"}, "<thought>...</thought>"},
      {{"</reasoning>"}, "<reasoning>...</reasoning>"},
      {{"<|START_THINKING|>", "<|END_THINKING|>"}, "<|START_THINKING|>...<|END_THINKING|>"},
      {{"◁think▷◁/think▷"}, "◁think▷...◁/think▷"},
      {{"<|inner_prefix|>", "<|inner_suffix|>"}, "<|inner_prefix|>...<|inner_suffix|>"},
      {kGptOssLiterals, "<|channel|>analysis<|message|>...<|end|>"},
      {{"<|start|>assistant<|channel|>", "analysis", "<|message|>"}, "<|channel|>analysis<|message|>...<|end|>"}};
  for (const auto& [literals, mark] : cases) {
    SCOPED_TRACE(mark);
    EXPECT_THAT(Shown(FindMarks(literals, {})), ElementsAre("<think>...</think>", mark));
  }
}

TEST(ReasoningMarks, AreNoOtherTags) {
  for (const char* literal : {"<tool_call></tool_call>", "[INST][/INST]", "</b>", "think", "</thi", "</think",
                              "[THINK]", "<|START_THINKING|>", "◁think▷", "<|channel|><|message|>"}) {
    EXPECT_THAT(Shown(FindMarks({literal}, {})), ElementsAre("<think>...</think>")) << literal;
  }
}

TEST(ReasoningMarks, ThatAreSpecialTokensAreSeenAnywhere) {
  const ReasoningMarks marks = FindMarks({"[THINK]", "[/THINK]"}, {"[THINK]", "[/THINK]", "[INST]", "</s>"});
  EXPECT_TRUE(marks.shows_special);
  ASSERT_EQ(marks.pairs.size(), 2u);
  EXPECT_FALSE(marks.pairs[0].anywhere);
  EXPECT_TRUE(marks.pairs[1].anywhere);
  EXPECT_THAT(marks.dropped, IsEmpty());
  const ReasoningMarks end_alone = FindMarks({}, {"</think>"});
  EXPECT_TRUE(end_alone.shows_special);
  EXPECT_FALSE(end_alone.pairs[0].anywhere);
}

// ---- Answers

struct AnsweringModel {
  ReasoningMarks marks;
  Strings special;
};

const AnsweringModel& Plain() {
  static const AnsweringModel model = {FindMarks({}, {}), {}};
  return model;
}
const Strings kSpecialNames = {"<think>", "</think>", "<|im_end|>", "<|im"};
const AnsweringModel& Special() {
  static const AnsweringModel model = {FindMarks({}, kSpecialNames), kSpecialNames};
  return model;
}
const AnsweringModel& GptOss() {
  static const AnsweringModel model = {FindMarks(kGptOssLiterals, kGptOss), kGptOss};
  return model;
}

struct Answer {
  std::string reasoning, content;
  bool in_reasoning = false;  // at the end
  bool operator==(const Answer&) const = default;
};

void PrintTo(const Answer& answer, std::ostream* out) {
  *out << "reasoning " << testing::PrintToString(answer.reasoning) << ", content "
       << testing::PrintToString(answer.content) << (answer.in_reasoning ? ", in reasoning" : "");
}

// How an answer comes: which of its text special tokens wrote, and what becomes of those that mark nothing.
struct Coming {
  std::vector<TextRange> special;
  AnswerText::Origin of_special = AnswerText::kHidden, of_others = AnswerText::kOrdinary;
};

// Ends of the pieces are places in `text`. `end_apart`: that nothing follows is said with no text.
Answer Read(const ReasoningMarks& marks, bool open, const std::string& text, const Coming& coming,
            std::vector<size_t> ends, bool end_apart) {
  ReasoningReader reader(&marks, open ? &marks.pairs.back() : nullptr);
  Answer answer;
  size_t begin = 0;
  for (size_t i = 0; i < ends.size(); ++i) {
    std::vector<TextRange> special;
    for (const TextRange& range : coming.special) {
      const size_t from = std::max(range.begin, begin), to = std::min(range.end, ends[i]);
      if (from < to) special.push_back({from - begin, to - begin});
    }
    const AnswerText piece = {std::string_view(text).substr(begin, ends[i] - begin), special, coming.of_special,
                              coming.of_others};
    reader.Read(piece, !end_apart && i + 1 == ends.size(), &answer.reasoning, &answer.content);
    begin = ends[i];
  }
  if (end_apart) reader.Read({}, true, &answer.reasoning, &answer.content);
  answer.in_reasoning = reader.in_reasoning();
  return answer;
}

// Reads it whole, cut at each place, cut at each two places, and in single bytes.
void ExpectComing(const ReasoningMarks& marks, bool open, const std::string& text, const Coming& coming,
                  const Answer& expected) {
  SCOPED_TRACE(testing::PrintToString(text) + (open ? " behind an open mark" : ""));
  for (const bool end_apart : {false, true}) {
    EXPECT_EQ(Read(marks, open, text, coming, {text.size()}, end_apart), expected) << "whole";
    std::vector<size_t> bytes = {0};
    for (size_t i = 1; i <= text.size(); ++i) bytes.push_back(i);
    EXPECT_EQ(Read(marks, open, text, coming, bytes, end_apart), expected) << "in bytes";
    for (size_t i = 0; i <= text.size(); ++i) {
      for (size_t j = i; j <= text.size(); ++j) {
        ASSERT_EQ(Read(marks, open, text, coming, {i, j, text.size()}, end_apart), expected)
            << "cut at " << i << " and " << j;
      }
    }
  }
}

// An answer in which special tokens wrote whatever spells one.
void ExpectAnswer(const AnsweringModel& model, bool open, const std::string& text, const Answer& expected) {
  ExpectComing(model.marks, open, text, {SpecialIn(text, model.special)}, expected);
}

TEST(ReasoningReader, LeavesAnswersWithoutMarksAsTheyAre) {
  for (const AnsweringModel* model : {&Plain(), &Special(), &GptOss()}) {
    for (const std::string text : {"", "x", " \n", "\n\n  An answer.\n", "a<b", "<", "\n<thi", "</think", "<thinks>a",
                                   "\r\n\té◁", "1 </thin k>"}) {
      ExpectAnswer(*model, false, text, {"", text});
    }
  }
  for (const std::string text : {"a </think> b", "A <think>b</think> c", "</think>"}) {
    ExpectAnswer(Plain(), false, text, {"", text});
  }
}

TEST(ReasoningReader, TellsReasoningFromContent) {
  for (const AnsweringModel* model : {&Plain(), &Special()}) {
    ExpectAnswer(*model, false, "<think>r</think>a", {"r", "a"});
    ExpectAnswer(*model, false, "\n <think>\n\nr 1\n\nr 2\n</think>\n\na\n\nb\n", {"r 1\n\nr 2", "a\n\nb\n"});
    ExpectAnswer(*model, false, "<think>\r\n r \r\n</think>\r\n a ", {" r ", " a "});
    ExpectAnswer(*model, false, "<think>\n\n</think>\n\na", {"", "a"});
    ExpectAnswer(*model, false, "<think></think>", {"", ""});
    ExpectAnswer(*model, false, "<think>r</think>\n", {"r", ""});
    ExpectAnswer(*model, false, "<think>a < b </ c\n</thin k\n</think>x", {"a < b </ c\n</thin k", "x"});
    ExpectAnswer(*model, false, "<think>r</think>a</thin", {"r", "a</thin"});
  }
}

TEST(ReasoningReader, ReasoningThatNeverEndsIsReasoning) {
  for (const AnsweringModel* model : {&Plain(), &Special()}) {
    ExpectAnswer(*model, false, "<think>", {"", "", true});
    ExpectAnswer(*model, false, "<think>\nr\n", {"r", "", true});
    ExpectAnswer(*model, false, "<think>r</thin", {"r</thin", "", true});
    ExpectAnswer(*model, true, "\nr", {"r", "", true});
    ExpectAnswer(*model, true, "", {"", "", true});
  }
}

TEST(ReasoningReader, PromptsBeginReasoning) {
  for (const AnsweringModel* model : {&Plain(), &Special()}) {
    ExpectAnswer(*model, true, "\nr\n</think>\n\na", {"r", "a"});
    ExpectAnswer(*model, true, "</think>a", {"", "a"});
    ExpectAnswer(*model, true, "\n\n</think>\na", {"", "a"});
    ExpectAnswer(*model, true, "r</think>a</thi", {"r", "a</thi"});
  }
}

TEST(ReasoningReader, LaterMarksCountIfTheyAreSpecial) {
  ExpectAnswer(Plain(), false, "<think>r</think>a<think>b</think>c", {"r", "a<think>b</think>c"});
  ExpectAnswer(Special(), false, "<think>r</think>a<think>s</think>b", {"rs", "ab"});
  ExpectAnswer(Special(), false, "a <think>r</think> b", {"r", "a  b"});
  ExpectAnswer(Special(), false, "a <thi", {"", "a <thi"});
}

// Answers of which tokens are shown for their marks show no other special tokens than before.
TEST(ReasoningReader, DropsOtherSpecialTokens) {
  ExpectAnswer(Special(), false, "a<|im_end|>b", {"", "ab"});
  ExpectAnswer(Special(), false, "a<|im b", {"", "a b"});
  ExpectAnswer(Special(), false, "<|im_end|>", {"", ""});
  ExpectAnswer(Special(), false, "<think>r<|im_end|>s</think>a<|im_end|>", {"rs", "a"});
  ExpectAnswer(Special(), false, "<think>r\n<|im_end|>\n</think>a", {"r", "a"});
  ExpectAnswer(Special(), false, "a</think>b", {"", "ab"});
  ExpectAnswer(Special(), false, "<|im_end|>\n<think>r</think>a", {"r", "a"});
}

// A model that writes the letters of a special token has not written that token.
TEST(ReasoningReader, OrdinaryTextThatSpellsSpecialTokensStays) {
  for (const std::string text :
       {"<|im_end|>", "a<|im_end|>b", "a <think>r</think> b", "<think>r</think>a", "</think>"}) {
    ExpectComing(Special().marks, false, text, {}, {"", text});
  }
  ExpectComing(Special().marks, true, "r</think>s<|im", {}, {"r</think>s<|im", "", true});
  const std::string channel = "<|channel|>final<|message|>a";
  ExpectComing(GptOss().marks, false, channel, {}, {"", channel});
  // The tokens <, /think, > and then the token </think>.
  ExpectComing(Special().marks, true, "r</think></think>a", {{{9, 17}}}, {"r</think>", "a"});
}

TEST(ReasoningReader, ShownSpecialTokensStayUnlessTheyAreMarks) {
  const auto expect = [](const AnsweringModel& model, const std::string& text, const Answer& expected) {
    ExpectComing(model.marks, false, text, {SpecialIn(text, model.special), AnswerText::kSpecial}, expected);
  };
  expect(Special(), "<|im_end|>", {"", "<|im_end|>"});
  expect(Special(), "<think>r<|im_end|></think>a<|im_end|>", {"r<|im_end|>", "a<|im_end|>"});
  expect(GptOss(), "<|channel|>final<|message|>a<|return|>", {"", "a<|return|>"});
}

TEST(ReasoningReader, WhereNobodyKnowsWhatSpellsAMarkIsOne) {
  const Coming unknown = {{}, AnswerText::kSpecial, AnswerText::kUnknown};
  ExpectComing(Special().marks, false, "<think>r</think>a<|im_end|>", unknown, {"r", "a<|im_end|>"});
  ExpectComing(GptOss().marks, false, "<|channel|>final<|message|>a<|return|>", unknown, {"", "a<|return|>"});
}

TEST(ReasoningReader, ReadsChannels) {
  const std::string analysis = "<|channel|>analysis<|message|>", final = "<|channel|>final<|message|>";
  const std::string next = "<|end|><|start|>assistant";
  ExpectAnswer(GptOss(), false, analysis + "r" + next + final + "a<|return|>", {"r", "a"});
  ExpectAnswer(GptOss(), false, final + "a<|return|>", {"", "a"});
  ExpectAnswer(GptOss(), false, final + "a", {"", "a"});
  ExpectAnswer(GptOss(), false, analysis + "r", {"r", "", true});
  ExpectAnswer(GptOss(), false, analysis + "r" + next + analysis + "s" + next + final + "a", {"rs", "a"});
  ExpectAnswer(GptOss(), true, "r" + next + final + "a", {"r", "a"});
  // What it says before it calls a tool is content.
  ExpectAnswer(GptOss(), false, "<|channel|>commentary<|message|>I look." + next + final + "a", {"", "I look.a"});
}

}  // namespace
}  // namespace fastdecode
