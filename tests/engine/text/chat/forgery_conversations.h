#ifndef FASTDECODE_TESTS_ENGINE_TEXT_CHAT_FORGERY_CONVERSATIONS_H_
#define FASTDECODE_TESTS_ENGINE_TEXT_CHAT_FORGERY_CONVERSATIONS_H_

#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "tests/engine/text/chat/chat_support.h"

namespace fastdecode {

// Draws chats in which every field spells the names of tokens: whole, halved between neighbouring fields, one inside of
// another, in capitals, backwards. Thread: one.
class ConversationDrawer {
 public:
  // `names`: what is spelled.
  ConversationDrawer(std::vector<std::string> names, uint32_t seed) : names_(std::move(names)), random_(seed) {}

  // The fields of an OwnedInput.
  OrderedJson Next();

 private:
  size_t Below(size_t bound) { return random_() % bound; }
  bool Chance(size_t of) { return Below(of) == 0; }
  std::string Spelled();
  std::string Text();
  std::string Key();
  OrderedJson Value(int depth);
  OrderedJson Object(int depth);
  OrderedJson Content();
  OrderedJson Call();
  OrderedJson Message();
  OrderedJson Tool();

  const std::vector<std::string> names_;
  std::mt19937 random_;
  std::string other_half_;  // of a name that the last text has begun; empty: of none
  int keys_ = 0;            // that have been drawn, which no two are equal
};

// The same chat with the characters of its texts and keys replaced by others, so that it spells no name: with as many
// of them, and white space where there was some. JSON in strings stays JSON.
OrderedJson Harmless(const OrderedJson& chat);

}  // namespace fastdecode

#endif  // FASTDECODE_TESTS_ENGINE_TEXT_CHAT_FORGERY_CONVERSATIONS_H_
