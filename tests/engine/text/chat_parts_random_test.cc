// Random lists of parts that join, in which the names of tokens are spelled whole, in part, and cut over borders. A
// scan that is as plain as can be says which special tokens there should be.

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/engine/text/golden_files.h"

namespace fastdecode {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

struct NamedToken {
  int32_t id;
  std::string content;
  bool normalized;
  bool restricted;
};

struct Subject {
  std::string name;
  std::unique_ptr<Tokenizer> tokenizer;
  std::vector<NamedToken> tokens;
  bool keeps_text;  // what is decoded is what was encoded
  bool nfc;         // the normalizer
};

// `guarded`: what the chat template spells.
Subject MakeSubject(const std::string& name, const json& document, const std::string& guarded) {
  Subject subject = {name, nullptr, {}, !document["model"].value("byte_fallback", false), false};
  auto tokenizer = ParseTokenizer(document);
  EXPECT_TRUE(tokenizer.ok()) << name << ": " << tokenizer.status();
  subject.tokenizer = *std::move(tokenizer);
  subject.tokenizer->GuardTokensIn(guarded);
  for (const json& token : document["added_tokens"]) {
    const std::string content = token["content"];
    const bool restricted = token["special"] || guarded.find(content) != std::string::npos;
    subject.tokens.push_back({token["id"], content, token["normalized"], restricted});
    if (token["lstrip"] || token["rstrip"]) subject.keeps_text = false;
  }
  const json normalizer = document.value("normalizer", json());
  if (!normalizer.is_null()) {
    subject.keeps_text = false;
    subject.nfc = normalizer["type"] == "NFC";
  }
  return subject;
}

json Added(const std::string& content, bool special, bool normalized) {
  return {{"content", content},   {"special", special}, {"normalized", normalized},
          {"single_word", false}, {"lstrip", false},    {"rstrip", false}};
}

json BaseWith(const std::vector<json>& tokens) {
  json document = ReadGoldenJson("base/tokenizer.json");
  for (json token : tokens) {
    EXPECT_FALSE(document["model"]["vocab"].contains(token["content"].get<std::string>())) << token;
    token["id"] = 1000 + document["added_tokens"].size();
    document["added_tokens"].push_back(token);
  }
  return document;
}

std::vector<Subject> MakeSubjects() {
  std::vector<Subject> subjects;
  const auto golden = [](const std::string& name) { return ReadGoldenJson(name + "/tokenizer.json"); };
  subjects.push_back(MakeSubject("llama3", golden("llama3"), ""));
  subjects.push_back(MakeSubject("qwen2", golden("qwen2"), "<tool_call>"));
  subjects.push_back(MakeSubject("deepseek", golden("deepseek"), "<｜User｜>...</s>"));
  for (const json& family : ReadGoldenJson("families.json")) {
    const std::string name = family["name"];
    if (name != "phi3" && name != "gemma" && name != "mistral") continue;
    json document = golden(family["base"]);
    document.merge_patch(family["patch"]);
    subjects.push_back(MakeSubject(name, document, ""));
  }
  const json nested = BaseWith({Added("<|a|>", true, false), Added("x<|a|>", true, false), Added("<|b|>", true, false),
                                Added("<|a|><|b|>", true, false), Added("y<|", false, false), Added("QZ", false, false),
                                Added("ZQ", false, false), Added("Q<|", false, false), Added("|>z", false, false),
                                Added("<|c|>", false, false), Added("<|", true, false)});
  subjects.push_back(MakeSubject("nested", nested, "<|c|>"));
  json normalized = BaseWith({Added("<n>", true, true), Added("x<n>", true, true), Added("y<", false, true),
                              Added("z<", false, false), Added("<v>", true, false), Added("<g>", false, true),
                              Added("<n><", true, false)});
  normalized["normalizer"] = {{"type", "NFC"}};
  subjects.push_back(MakeSubject("normalized", normalized, "<g>"));
  return subjects;
}

// ---- What is drawn

struct DrawnPart {
  std::string text;
  bool own;
};

constexpr const char* kMarks[] = {"\u0338", "\u0301"};

bool IsInsideCharacter(char byte) { return (static_cast<uint8_t>(byte) & 0xC0) == 0x80; }

class Drawer {
 public:
  explicit Drawer(const Subject& subject) : subject_(subject) {}

  std::vector<DrawnPart> Next() {
    std::string text;
    for (size_t i = 1 + Below(8); i > 0; --i) text += Piece();
    std::vector<size_t> cuts = {0, text.size()};
    for (size_t i = Below(6); i > 0; --i) cuts.push_back(Below(text.size() + 1));
    std::sort(cuts.begin(), cuts.end());
    std::vector<DrawnPart> parts;
    for (size_t i = 0; i + 1 < cuts.size(); ++i) {
      parts.push_back({text.substr(cuts[i], cuts[i + 1] - cuts[i]), Below(2) == 0});
    }
    return parts;
  }

 private:
  size_t Below(size_t bound) { return rng_() % bound; }

  std::string Piece() {
    static const std::vector<std::string> kPieces = {
        "the harbour", " ", "\n", "\n\n", "x",        "y",   "z",  "Q", "b",      "<",      ">",
        "|",           "é", "e",  "日本", "  storms", "1 2", "'s", "▁", "\u0338", "e\u0301"};
    const std::string& name = subject_.tokens[Below(subject_.tokens.size())].content;
    switch (Below(5)) {
      case 0:
      case 1:
        return name;
      case 2: {
        size_t cut = Below(name.size() + 1);
        while (cut < name.size() && IsInsideCharacter(name[cut])) ++cut;
        return Below(2) == 0 ? name.substr(0, cut) : name.substr(cut);
      }
      default:
        return kPieces[Below(kPieces.size())];
    }
  }

  const Subject& subject_;
  std::mt19937 rng_{7};
};

// ---- What it should be

struct Found {
  const NamedToken* token;
  size_t begin;
  size_t end;
};

// Leftmost first, the longest there.
std::vector<Found> Find(const std::string& text, const Subject& subject, bool normalized) {
  std::vector<Found> found;
  for (size_t at = 0; at < text.size();) {
    const NamedToken* longest = nullptr;
    for (const NamedToken& token : subject.tokens) {
      if (token.normalized != normalized || text.compare(at, token.content.size(), token.content) != 0) continue;
      if (longest == nullptr || token.content.size() > longest->content.size()) longest = &token;
    }
    if (longest != nullptr) found.push_back({longest, at, at + longest->content.size()});
    at += longest == nullptr ? 1 : longest->content.size();
  }
  return found;
}

void ReplaceAll(const std::string& from, const std::string& to, std::string* text) {
  for (size_t at = 0; (at = text->find(from, at)) != std::string::npos; at += to.size()) {
    text->replace(at, from.size(), to);
  }
}

// Restricted tokens of a text that is all own.
void AppendRestricted(const std::string& text, const Subject& subject, Ids* ids) {
  const auto append = [&](const NamedToken& token) {
    if (token.restricted) ids->push_back(token.id);
  };
  const auto append_normalized = [&](std::string stretch) {
    if (subject.nfc) {  // all of it that a name can see in these texts
      ReplaceAll(">\u0338", "\u226F", &stretch);
      ReplaceAll("<\u0338", "\u226E", &stretch);
    }
    for (const Found& found : Find(stretch, subject, true)) append(*found.token);
  };
  size_t done = 0;
  for (const Found& found : Find(text, subject, false)) {
    append_normalized(text.substr(done, found.begin - done));
    append(*found.token);
    done = found.end;
  }
  append_normalized(text.substr(done));
}

// Whether parts of both kinds meet where that can matter: in or at a name that would have to be all own, in any other
// name, or before a mark.
bool BordersMatter(const std::vector<DrawnPart>& parts, const Subject& subject) {
  std::string text;
  std::vector<bool> own;  // by byte: all of its character is
  for (const DrawnPart& part : parts) {
    text += part.text;
    own.insert(own.end(), part.text.size(), part.own);
  }
  for (size_t begin = 0, end = 0; begin < text.size(); begin = end) {
    for (end = begin + 1; end < text.size() && IsInsideCharacter(text[end]);) ++end;
    const bool all_own = std::count(own.begin() + begin, own.begin() + end, false) == 0;
    std::fill(own.begin() + begin, own.begin() + end, all_own);
  }
  for (size_t at = 0; at < text.size(); ++at) {
    for (const NamedToken& token : subject.tokens) {
      if (text.compare(at, token.content.size(), token.content) != 0) continue;
      const auto begin = own.begin() + static_cast<ptrdiff_t>(at);
      const auto count = std::count(begin, begin + static_cast<ptrdiff_t>(token.content.size()), true);
      const bool all_own = count == static_cast<ptrdiff_t>(token.content.size());
      if (token.restricted ? !all_own : !all_own && count > 0) return true;
    }
    for (const char* mark : kMarks) {
      if (at > 0 && own[at - 1] != own[at] && text.compare(at, 2, mark) == 0) return true;
    }
  }
  return false;
}

std::string Show(const std::vector<DrawnPart>& parts) {
  std::string shown;
  for (const DrawnPart& part : parts) shown += (part.own ? " own " : " foreign ") + testing::PrintToString(part.text);
  return shown;
}

TEST(ChatPartsRandom, OwnTextsHaveTheirTokensAndOthersHaveNone) {
  constexpr int kLists = 10000;
  for (const Subject& subject : MakeSubjects()) {
    SCOPED_TRACE(subject.name);
    Drawer drawer(subject);
    int wrong = 0, as_whole = 0;
    size_t restricted = 0, spelled = 0;
    for (int i = 0; i < kLists; ++i) {
      const std::vector<DrawnPart> drawn = drawer.Next();
      std::vector<Tokenizer::Part> parts;
      std::string text, own;
      Ids expected, all;
      for (const DrawnPart& part : drawn) {
        parts.push_back({part.text, part.own, {}, /*joins=*/true});
        text += part.text;
        if (!part.own && !part.text.empty()) {
          AppendRestricted(own, subject, &expected);
          own.clear();
        } else {
          own += part.text;
        }
      }
      AppendRestricted(own, subject, &expected);
      AppendRestricted(text, subject, &all);
      const Ids ids = subject.tokenizer->EncodeParts(parts, false);
      Ids found;
      for (const int32_t id : ids) {
        for (const NamedToken& token : subject.tokens) {
          if (token.id == id && token.restricted) found.push_back(id);
        }
      }
      const bool whole = !BordersMatter(drawn, subject);
      bool correct = found == expected;
      if (whole) correct &= ids == subject.tokenizer->Encode(text, false);
      if (subject.keeps_text) correct &= subject.tokenizer->Decode(ids, false) == text;
      EXPECT_TRUE(correct) << Show(drawn) << "\nids " << testing::PrintToString(ids) << "\nof these restricted "
                           << testing::PrintToString(found) << ", expected " << testing::PrintToString(expected)
                           << (whole ? "\nas a whole " : "\napart from the whole ")
                           << testing::PrintToString(subject.tokenizer->Encode(text, false));
      wrong += !correct;
      if (wrong > 3) break;
      as_whole += whole && drawn.size() > 1;
      restricted += found.size();
      spelled += all.size();
    }
    EXPECT_GT(as_whole, kLists / 10);
    EXPECT_GT(restricted, size_t{kLists / 4});
    EXPECT_GT(spelled, restricted + restricted / 4);
  }
}

}  // namespace
}  // namespace fastdecode
