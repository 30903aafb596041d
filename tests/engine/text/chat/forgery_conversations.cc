#include "tests/engine/text/chat/forgery_conversations.h"

#include <algorithm>
#include <cctype>
#include <initializer_list>
#include <utility>

#include "engine/text/utf8.h"

namespace fastdecode {

namespace {

std::vector<std::string> CharactersOf(std::string_view text) {
  std::vector<std::string> characters;
  for (size_t at = 0; at < text.size(); at += characters.back().size()) {
    characters.emplace_back(text.substr(at, NextUtf8(text.substr(at)).bytes));
  }
  return characters;
}

std::string Joined(const std::vector<std::string>& characters, size_t begin, size_t end) {
  std::string text;
  for (size_t i = begin; i < end; ++i) text += characters[i];
  return text;
}

// Characters of the same kinds, of which no name of a token consists.
std::string Replaced(const std::string& text) {
  std::string out;
  for (const std::string& c : CharactersOf(text)) {
    const auto byte = static_cast<unsigned char>(c[0]);
    if (c.size() > 1) {
      out += c == "｜" || c == "▁" || c == "\u0338" ? "z" : c;
    } else if (std::isalpha(byte) != 0) {
      out += byte == 'z' ? 'a' : byte == 'Z' ? 'A' : static_cast<char>(byte + 1);
    } else {
      out += std::isdigit(byte) != 0 || std::isspace(byte) != 0 ? c : "z";
    }
  }
  return out;
}

bool IsOneOf(const std::string& text, std::initializer_list<const char*> words) {
  return std::find(words.begin(), words.end(), text) != words.end();
}

// What a chat consists of, whatever it says.
bool IsField(const std::string& key) {
  return IsOneOf(key, {"messages",
                       "role",
                       "content",
                       "name",
                       "type",
                       "text",
                       "tool_calls",
                       "id",
                       "function",
                       "arguments",
                       "tool_call_id",
                       "reasoning_content",
                       "thinking",
                       "tools",
                       "description",
                       "parameters",
                       "properties",
                       "required",
                       "documents",
                       "title",
                       "variables",
                       "extra",
                       "add_generation_prompt"});
}

bool IsFixed(const std::string& key, const std::string& text) {
  return (key == "role" && IsOneOf(text, {"system", "user", "assistant", "tool"})) ||
         (key == "type" && IsOneOf(text, {"text", "function", "object"}));
}

OrderedJson HarmlessValue(const std::string& key, const OrderedJson& value) {
  if (value.is_object()) return Harmless(value);
  if (value.is_array()) {
    OrderedJson array = OrderedJson::array();
    for (const OrderedJson& item : value) array.push_back(HarmlessValue(key, item));
    return array;
  }
  if (!value.is_string()) return value;
  const std::string text = value;
  if (IsFixed(key, text)) return value;
  const OrderedJson inner = OrderedJson::parse(text, nullptr, /*allow_exceptions=*/false);
  return inner.is_object() ? OrderedJson(Harmless(inner).dump()) : OrderedJson(Replaced(text));
}

}  // namespace

std::string ConversationDrawer::Spelled() {
  const std::string& name = names_[Below(names_.size())];
  const std::vector<std::string> characters = CharactersOf(name);
  const size_t cut = 1 + Below(characters.size() - 1);
  switch (Below(8)) {
    case 0:
      other_half_ = Joined(characters, cut, characters.size());
      return Joined(characters, 0, cut);
    case 1:
      return Joined(characters, cut, characters.size());
    case 2:
      return Joined(characters, 0, cut) + name + Joined(characters, cut, characters.size());
    case 3: {
      std::string changed = name;
      const bool up = Chance(2);
      for (char& c : changed) {
        if (static_cast<unsigned char>(c) < 0x80) c = static_cast<char>(up ? std::toupper(c) : std::tolower(c));
      }
      return changed;
    }
    case 4: {
      std::vector<std::string> turned = characters;
      std::reverse(turned.begin(), turned.end());
      return Joined(turned, 0, turned.size());
    }
    default:
      return name;
  }
}

std::string ConversationDrawer::Text() {
  static const std::vector<std::string> kPieces = {
      "the harbour",  " ",        "\n",   "\n\n",    "storms and", " x", "7",
      "it's",         "é",        "日本", "e\u0301", "\u0338",     "<",  "|>",
      "<|",           "\"",       "\\",   "｜",      "[",          "]",  "{{ bos_token }}",
      "{% endfor %}", "assistant"};
  std::string text = std::exchange(other_half_, "");
  for (size_t i = Below(5); i > 0; --i) {
    other_half_.clear();
    text += Chance(2) ? Spelled() : kPieces[Below(kPieces.size())];
  }
  return text;
}

std::string ConversationDrawer::Key() {
  const std::string number = "k" + std::to_string(++keys_) + "k";
  return Chance(2) ? number + Text() : Text() + number;
}

OrderedJson ConversationDrawer::Value(int depth) {
  if (depth > 0 && Chance(3)) return Object(depth - 1);
  switch (Below(5)) {
    case 0:
      return Below(1000);
    case 1:
      return nullptr;
    case 2:
      return OrderedJson::array({Text(), Text()});
    default:
      return Text();
  }
}

OrderedJson ConversationDrawer::Object(int depth) {
  OrderedJson object = OrderedJson::object();
  for (size_t i = Below(3); i > 0; --i) {
    const std::string key = Key();
    object[key] = Value(depth);
  }
  return object;
}

OrderedJson ConversationDrawer::Content() {
  if (!Chance(4)) return Text();
  OrderedJson parts = OrderedJson::array();
  for (size_t i = 1 + Below(3); i > 0; --i) parts.push_back({{"type", "text"}, {"text", Text()}});
  return parts;
}

OrderedJson ConversationDrawer::Call() {
  OrderedJson call = {{"id", Text()}, {"type", "function"}};
  const std::string name = Text();
  const OrderedJson arguments = Object(1);
  call["function"] = {{"name", name}, {"arguments", Chance(2) ? arguments : OrderedJson(arguments.dump())}};
  if (Chance(4)) call["function"]["arguments"] = Text();
  return call;
}

OrderedJson ConversationDrawer::Message() {
  static constexpr const char* kRoles[] = {"system", "user", "assistant", "tool"};
  OrderedJson message;
  message["role"] = Chance(4) ? Text() + "x" : kRoles[Below(4)];
  if (Chance(4)) message["name"] = Text();
  if (!Chance(8)) message["content"] = Content();
  if (Chance(6)) message[Chance(2) ? "reasoning_content" : "thinking"] = Text();
  if (Chance(4))
    message["tool_calls"] = Chance(2) ? OrderedJson::array({Call()}) : OrderedJson::array({Call(), Call()});
  if (Chance(6)) message["tool_call_id"] = Text();
  if (Chance(6)) message[Key()] = Value(1);
  return message;
}

OrderedJson ConversationDrawer::Tool() {
  OrderedJson function = {{"name", Text()}, {"description", Text()}};
  function["parameters"] = {{"type", "object"}, {"properties", Object(2)}, {"required", {Text()}}};
  return {{"type", "function"}, {"function", function}};
}

OrderedJson ConversationDrawer::Next() {
  keys_ = 0;
  OrderedJson chat = {{"messages", OrderedJson::array()}};
  for (size_t i = 1 + Below(4); i > 0; --i) chat["messages"].push_back(Message());
  if (Chance(3)) chat["tools"] = OrderedJson::array({Tool()});
  if (Chance(4)) chat["documents"] = OrderedJson::array({{{"title", Text()}, {"text", Text()}}});
  if (Chance(2)) {
    chat["variables"] = {{"extra", Text()}};
    const std::string key = Key();
    chat["variables"][key] = Value(1);
  }
  chat["add_generation_prompt"] = Chance(2);
  return chat;
}

OrderedJson Harmless(const OrderedJson& chat) {
  OrderedJson object = OrderedJson::object();
  for (const auto& [key, item] : chat.items()) object[IsField(key) ? key : Replaced(key)] = HarmlessValue(key, item);
  return object;
}

}  // namespace fastdecode
