// Which marks a template has, and how an answer is taken apart, however it is cut.

#include "engine/text/chat/reasoning.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

namespace fastdecode {
namespace {

using testing::AllOf;
using testing::Contains;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Not;

using Strings = std::vector<std::string>;

// The marks of a template with these literals, for a tokenizer with these special tokens.
ReasoningMarks FindMarks(const Strings& literals, const Strings& special) {
  const auto is_special = [&](const std::string& text) {
    return std::any_of(special.begin(), special.end(),
                       [&](const std::string& token) { return text.find(token) != std::string::npos; });
  };
  return FindReasoningMarks(literals, is_special, special);
}

// Each as BEGIN...END.
Strings Shown(const ReasoningMarks& marks) {
  Strings shown;
  for (const ReasoningMarks::Pair& pair : marks.pairs) shown.push_back(pair.begin + "..." + pair.end);
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
  EXPECT_THAT(marks.dropped, AllOf(Contains("[INST]"), Contains("</s>"))) << "no answer has shown them before";
  const ReasoningMarks end_alone = FindMarks({}, {"</think>"});
  EXPECT_TRUE(end_alone.shows_special);
  EXPECT_FALSE(end_alone.pairs[0].anywhere);
}

// ---- Answers

const ReasoningMarks& Plain() {
  static const ReasoningMarks marks = FindMarks({}, {});
  return marks;
}
const ReasoningMarks& Special() {
  static const ReasoningMarks marks = FindMarks({}, {"<think>", "</think>", "<|im_end|>", "<|im"});
  return marks;
}
const ReasoningMarks& GptOss() {
  static const ReasoningMarks marks = FindMarks(kGptOssLiterals, kGptOss);
  return marks;
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

// `end_apart`: that nothing follows is said with no text.
Answer Read(const ReasoningMarks& marks, bool open, const Strings& pieces, bool end_apart) {
  ReasoningReader reader(&marks, open ? &marks.pairs.back() : nullptr);
  Answer answer;
  for (size_t i = 0; i < pieces.size(); ++i) {
    reader.Read(pieces[i], !end_apart && i + 1 == pieces.size(), &answer.reasoning, &answer.content);
  }
  if (end_apart || pieces.empty()) reader.Read("", true, &answer.reasoning, &answer.content);
  answer.in_reasoning = reader.in_reasoning();
  return answer;
}

// Reads it whole, cut at each place, cut at each two places, and in single bytes.
void ExpectAnswer(const ReasoningMarks& marks, bool open, const std::string& text, const Answer& expected) {
  SCOPED_TRACE(testing::PrintToString(text) + (open ? " behind an open mark" : ""));
  for (const bool end_apart : {false, true}) {
    EXPECT_EQ(Read(marks, open, {text}, end_apart), expected) << "whole";
    Strings bytes;
    for (const char c : text) bytes.emplace_back(1, c);
    EXPECT_EQ(Read(marks, open, bytes, end_apart), expected) << "in bytes";
    for (size_t i = 0; i <= text.size(); ++i) {
      for (size_t j = i; j <= text.size(); ++j) {
        const Answer cut = Read(marks, open, {text.substr(0, i), text.substr(i, j - i), text.substr(j)}, end_apart);
        ASSERT_EQ(cut, expected) << "cut at " << i << " and " << j;
      }
    }
  }
}

TEST(ReasoningReader, LeavesAnswersWithoutMarksAsTheyAre) {
  for (const ReasoningMarks* marks : {&Plain(), &Special(), &GptOss()}) {
    for (const std::string text : {"", "x", " \n", "\n\n  An answer.\n", "a<b", "<", "\n<thi", "</think", "<thinks>a",
                                   "\r\n\té◁", "1 </thin k>"}) {
      ExpectAnswer(*marks, false, text, {"", text});
    }
  }
  for (const std::string text : {"a </think> b", "A <think>b</think> c", "</think>"}) {
    ExpectAnswer(Plain(), false, text, {"", text});
  }
}

TEST(ReasoningReader, TellsReasoningFromContent) {
  for (const ReasoningMarks* marks : {&Plain(), &Special()}) {
    ExpectAnswer(*marks, false, "<think>r</think>a", {"r", "a"});
    ExpectAnswer(*marks, false, "\n <think>\n\nr 1\n\nr 2\n</think>\n\na\n\nb\n", {"r 1\n\nr 2", "a\n\nb\n"});
    ExpectAnswer(*marks, false, "<think>\r\n r \r\n</think>\r\n a ", {" r ", " a "});
    ExpectAnswer(*marks, false, "<think>\n\n</think>\n\na", {"", "a"});
    ExpectAnswer(*marks, false, "<think></think>", {"", ""});
    ExpectAnswer(*marks, false, "<think>r</think>\n", {"r", ""});
    ExpectAnswer(*marks, false, "<think>a < b </ c\n</thin k\n</think>x", {"a < b </ c\n</thin k", "x"});
    ExpectAnswer(*marks, false, "<think>r</think>a</thin", {"r", "a</thin"});
  }
}

TEST(ReasoningReader, ReasoningThatNeverEndsIsReasoning) {
  for (const ReasoningMarks* marks : {&Plain(), &Special()}) {
    ExpectAnswer(*marks, false, "<think>", {"", "", true});
    ExpectAnswer(*marks, false, "<think>\nr\n", {"r", "", true});
    ExpectAnswer(*marks, false, "<think>r</thin", {"r</thin", "", true});
    ExpectAnswer(*marks, true, "\nr", {"r", "", true});
    ExpectAnswer(*marks, true, "", {"", "", true});
  }
}

TEST(ReasoningReader, PromptsBeginReasoning) {
  for (const ReasoningMarks* marks : {&Plain(), &Special()}) {
    ExpectAnswer(*marks, true, "\nr\n</think>\n\na", {"r", "a"});
    ExpectAnswer(*marks, true, "</think>a", {"", "a"});
    ExpectAnswer(*marks, true, "\n\n</think>\na", {"", "a"});
    ExpectAnswer(*marks, true, "r</think>a</thi", {"r", "a</thi"});
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
