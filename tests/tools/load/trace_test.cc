// Recorded loads, and what is said of those that are damaged.
#include "tools/load/trace.h"

#include <unistd.h>

#include <fastdecode/fastdecode.hpp>
#include <filesystem>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace fastdecode::load {

namespace {

using testing::HasSubstr;

class TraceFile : public testing::Test {
 protected:
  TraceFile() : path_(testing::TempDir() + "trace_test." + std::to_string(getpid())) {}
  ~TraceFile() override { std::filesystem::remove(path_); }

  Trace Read(const std::string& text, size_t count = 0) {
    std::ofstream(path_) << text;
    return ReadTrace("--trace", path_, count);
  }
  std::string Refusal(const std::string& text) {
    try {
      Read(text);
    } catch (const Error& error) {
      return error.what();
    }
    return "it was read";
  }

  const std::string path_;
};

constexpr char kBurst[] =
    "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,ChatGPT,472,18,490,Conversation log\n"
    "7,GPT-4,100,0,100,API log\n"
    "9,ChatGPT,1087,230,1317,Conversation log\r\n"
    "\n"
    "13,GPT-4,417,276,693,Conversation log\n";

TEST_F(TraceFile, BurstGptIsRead) {
  const Trace trace = Read(kBurst);
  ASSERT_EQ(trace.requests.size(), 3u);
  EXPECT_EQ(trace.left_out, 1u);
  // Three in 8 s: two gaps, a rate of 1/4, at which 4 s are one unit.
  EXPECT_DOUBLE_EQ(trace.rate, 0.25);
  EXPECT_DOUBLE_EQ(trace.requests[0].arrival, 0);
  EXPECT_DOUBLE_EQ(trace.requests[1].arrival, 1);
  EXPECT_DOUBLE_EQ(trace.requests[2].arrival, 2);
  EXPECT_EQ(trace.requests[1].prompt_tokens, 1087);
  EXPECT_EQ(trace.requests[1].output_tokens, 230);
}

TEST_F(TraceFile, ColumnsAreFoundByTheirNames) {
  const Trace trace = Read("Response tokens,Request tokens,Session ID,Timestamp\n3,4,x,0.5\n5,6,y,0.75\n");
  EXPECT_EQ(trace.requests[0].prompt_tokens, 4);
  EXPECT_EQ(trace.requests[0].output_tokens, 3);
  EXPECT_DOUBLE_EQ(trace.rate, 4);
}

TEST_F(TraceFile, MooncakeIsRead) {
  const Trace trace = Read(
      "{\"timestamp\": 0, \"input_length\": 6758, \"output_length\": 500, \"hash_ids\": [0, 1]}\n"
      "{\"timestamp\": 500, \"input_length\": 7322, \"output_length\": 490, \"hash_ids\": [0, 2]}\n");
  ASSERT_EQ(trace.requests.size(), 2u);
  EXPECT_DOUBLE_EQ(trace.rate, 2);
  EXPECT_EQ(trace.requests[1].prompt_tokens, 7322);
  EXPECT_EQ(trace.requests[1].output_tokens, 490);
}

TEST_F(TraceFile, NoMoreAreReadThanAskedFor) { EXPECT_EQ(Read(kBurst, 2).requests.size(), 2u); }

TEST_F(TraceFile, AllAtOnceHasNoRate) {
  EXPECT_EQ(Read("Timestamp,Request tokens,Response tokens\n3,1,1\n3,1,1\n").rate, 0);
}

TEST_F(TraceFile, RefusalsNameFileLineAndField) {
  const std::string head = "Timestamp,Request tokens,Response tokens\n";
  EXPECT_THAT(Refusal(head + "1,2,3\n2,x,3\n"), HasSubstr("--trace: " + path_ + ":3: Request tokens is 'x', not a"));
  EXPECT_THAT(Refusal(head + "1,2,-3\n"), HasSubstr(":2: Response tokens is '-3'"));
  EXPECT_THAT(Refusal(head + "soon,2,3\n"), HasSubstr(":2: Timestamp is 'soon'"));
  EXPECT_THAT(Refusal(head + "1,2\n"), HasSubstr(":2: it has 2 columns"));
  EXPECT_THAT(Refusal(head + "2,2,3\n1,2,3\n"), HasSubstr(":3: Timestamp is earlier"));
  EXPECT_THAT(Refusal("Time,Request tokens,Response tokens\n"), HasSubstr(":1: there is no column 'Timestamp'"));
  EXPECT_THAT(Refusal(head), HasSubstr("no request"));
  EXPECT_THAT(Refusal(""), HasSubstr("no request"));
  EXPECT_THAT(Refusal("{\"timestamp\": 0, \"input_length\": 1}\n"), HasSubstr(":1: it has no output_length"));
  EXPECT_THAT(Refusal("{\"timestamp\": \"0\", \"input_length\": 1, \"output_length\": 1}\n"),
              HasSubstr(":1: timestamp is \"0\""));
  EXPECT_THAT(Refusal("{\"timestamp\": 0, \"input_length\": 1e9, \"output_length\": 1}\n"),
              HasSubstr(":1: input_length is 1000000000.0"));
  EXPECT_THAT(Refusal("{\"timestamp\": 0, \"input_length\": 1, \"output_length\": 1}\n{\n"),
              HasSubstr(":2: it is no JSON"));
}

TEST(ReadTrace, NamesAFileThatIsNotThere) { EXPECT_THROW(ReadTrace("--trace", "/nowhere/trace.csv", 0), Error); }

}  // namespace

}  // namespace fastdecode::load
