#include "engine/rpart/roster.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

namespace fastdecode {
namespace {

using testing::HasSubstr;

std::vector<std::byte> Message(uint32_t version, const std::vector<RosterEntry>& entries) {
  RosterMessage header;
  header.version = version;
  header.entries = static_cast<uint32_t>(entries.size());
  std::vector<std::byte> bytes(sizeof(header) + entries.size() * sizeof(RosterEntry));
  std::memcpy(bytes.data(), &header, sizeof(header));
  if (!entries.empty())
    std::memcpy(bytes.data() + sizeof(header), entries.data(), entries.size() * sizeof(RosterEntry));
  return bytes;
}

class RosterTest : public testing::Test {
 protected:
  std::string Refusal(const std::vector<std::byte>& message) {
    const absl::Status status = roster_.Replace(message);
    EXPECT_FALSE(status.ok());
    EXPECT_EQ(roster_.version(), 0u) << "a refused roster was taken over";
    return std::string(status.message());
  }

  Roster roster_{1, 8, 100};
};

TEST_F(RosterTest, CountsRowsAndVersions) {
  EXPECT_EQ(roster_.version(), 0u);
  ASSERT_TRUE(roster_.Replace(Message(1, {{5, 1, 0, 6}, {6, 1, 99, 1}})).ok());
  EXPECT_EQ(roster_.rows(), 7u);
  EXPECT_EQ(roster_.entries()[1].sequence, 6u);
  ASSERT_TRUE(roster_.Replace(Message(2, {})).ok());
  EXPECT_EQ(roster_.rows(), 0u);
  EXPECT_EQ(roster_.version(), 2u);
}

TEST_F(RosterTest, RefusesWithTheFieldAndItsValue) {
  EXPECT_THAT(Refusal(Message(2, {})), HasSubstr("version 2 follows version 0"));
  EXPECT_THAT(Refusal(Message(1, {{5, 1, 0, 0}})), HasSubstr("query_tokens 0"));
  EXPECT_THAT(Refusal(Message(1, {{5, 1, 0, 9}})), HasSubstr("query_tokens 9"));
  EXPECT_THAT(Refusal(Message(1, {{5, 1, 0, 8}, {6, 1, 0, 1}})), HasSubstr("entry 1 (sequence 6)"));
  EXPECT_THAT(Refusal(Message(1, {{5, 1, 100, 1}})), HasSubstr("first_position 100"));
  EXPECT_THAT(Refusal(Message(1, {{5, 1, 98, 3}})), HasSubstr("max_context is 100"));
  EXPECT_THAT(Refusal(Message(1, {{5, 1, UINT32_MAX, 2}})), HasSubstr("max_context is 100"));
  EXPECT_THAT(Refusal(Message(1, {{5, 1, 0, UINT32_MAX}})), HasSubstr("query_tokens 4294967295"));
  EXPECT_THAT(Refusal(Message(1, {{5, 1, 0, 1}, {6, 1, 0, 1}, {5, 1, 1, 1}})), HasSubstr("sequence 5 has two entries"));
  EXPECT_THAT(Refusal(Message(1, {{5, 1, 7, 3, 9}})), HasSubstr("prompt_tokens 9"));
  EXPECT_THAT(Refusal(Message(1, std::vector<RosterEntry>(9))), HasSubstr("9 entries"));
  std::vector<std::byte> cut = Message(1, {{5, 1, 0, 1}});
  cut.pop_back();
  EXPECT_THAT(Refusal(cut), HasSubstr("47 bytes for 1 entries, not 48"));
  cut.resize(3);
  EXPECT_THAT(Refusal(cut), HasSubstr("3 bytes"));
}

TEST_F(RosterTest, AnEntryIsOfAPromptOrBehindIt) {
  EXPECT_TRUE(roster_.Replace(Message(1, {{5, 1, 7, 2, 9}, {6, 1, 9, 3, 9}, {7, 1, 0, 1, UINT32_MAX}})).ok());
}

TEST_F(RosterTest, ARefusedRosterLeavesTheLastOne) {
  ASSERT_TRUE(roster_.Replace(Message(1, {{5, 1, 7, 1}})).ok());
  ASSERT_FALSE(roster_.Replace(Message(2, {{6, 1, 0, 1}, {6, 1, 0, 1}})).ok());
  EXPECT_EQ(roster_.version(), 1u);
  ASSERT_EQ(roster_.entries().size(), 1u);
  EXPECT_EQ(roster_.entries()[0].first_position, 7u);
}

TEST_F(RosterTest, VersionsWrapAround) {
  EXPECT_TRUE(roster_.Reached(0));
  EXPECT_TRUE(roster_.Reached(UINT32_MAX));  // the one before
  EXPECT_FALSE(roster_.Reached(1));
  ASSERT_TRUE(roster_.Replace(Message(1, {{5, 1, 7, 1}})).ok());
  EXPECT_TRUE(roster_.Reached(1));
  EXPECT_FALSE(roster_.Reached(2));
}

// Whatever the bytes are, what is accepted keeps the bounds.
TEST_F(RosterTest, RandomBytesNeverBreakTheBounds) {
  std::mt19937 random(3);
  int accepted = 0;
  for (int i = 0; i < 200000; ++i) {
    std::vector<RosterEntry> entries(random() % 10);
    for (RosterEntry& entry : entries) {
      entry = {random() % 20, random() % 3, static_cast<uint32_t>(random() % 110), static_cast<uint32_t>(random() % 4)};
    }
    std::vector<std::byte> message = Message(roster_.version() + 1, entries);
    if (random() % 2 == 0) message[random() % message.size()] = static_cast<std::byte>(random());
    if (!roster_.Replace(message).ok()) continue;
    ++accepted;
    uint32_t rows = 0;
    for (const RosterEntry& entry : roster_.entries()) {
      rows += entry.query_tokens;
      ASSERT_GE(entry.query_tokens, 1u);
      ASSERT_LE(uint64_t{entry.first_position} + entry.query_tokens, 100u);
    }
    ASSERT_EQ(rows, roster_.rows());
    ASSERT_LE(rows, 8u);
  }
  EXPECT_GT(accepted, 100);
}

}  // namespace
}  // namespace fastdecode
