// A worker process with --peers 2 and two engine processes that generate at the same time.
#include <gtest/gtest.h>
#include <stdio.h>

#include <string>
#include <vector>

#include "tests/engine/end_to_end/worker_program.h"
#include "tests/engine/model/scratch_dir.h"

namespace fastdecode {
namespace {

// `fastdecode generate` with greedy sampling, as a process of its own.
class GenerateProgram {
 public:
  GenerateProgram(const std::string& homes, int prompts, int tokens) {
    std::string command =
        std::string("'") + FASTDECODE_PROGRAM + "' generate -m '" + FASTDECODE_DEMO_MODEL +
        "' --json --temp 0 --exact -q --poll yield --kv-gib 0.02 --max-sequences 8 --hop-timeout-ms 60000" +
        " --homes '" + homes + "' -n " + std::to_string(tokens);
    for (int i = 0; i < prompts; ++i) command += " -p 'The number " + std::to_string(i) + " and'";
    pipe_ = popen((command + " 2>&1").c_str(), "r");
  }
  ~GenerateProgram() {
    if (pipe_ != nullptr) pclose(pipe_);
  }

  // The rest of what it prints until it ends; *ok: it ended well.
  std::string Wait(bool* ok) {
    std::string text;
    char buffer[4096];
    while (const size_t bytes = fread(buffer, 1, sizeof(buffer), pipe_)) text.append(buffer, bytes);
    *ok = pclose(pipe_) == 0;
    pipe_ = nullptr;
    return text;
  }

 private:
  FILE* pipe_ = nullptr;
};

// The "token_ids":[...] of every answer, in order.
std::vector<std::string> TokenIds(const std::string& json) {
  std::vector<std::string> all;
  const std::string key = "\"token_ids\":[";
  for (size_t at = json.find(key); at != std::string::npos; at = json.find(key, at + 1)) {
    all.push_back(json.substr(at + key.size(), json.find(']', at) - at - key.size()));
  }
  return all;
}

TEST(TwoEnginesTest, TwoEnginesAtOneWorkerGenerateWhatTheyGenerateAlone) {
  constexpr int kPrompts = 4, kTokens = 300;
  bool ok = false;
  const std::string alone = GenerateProgram("local:1", kPrompts, kTokens).Wait(&ok);
  ASSERT_TRUE(ok) << alone;
  const std::vector<std::string> expected = TokenIds(alone);
  ASSERT_EQ(expected.size(), static_cast<size_t>(kPrompts)) << alone;

  ScratchDir dir;
  const std::string path = dir.File("worker");
  WorkerProgram worker(dir.File("worker.log"),
                       {"--listen", "unix:" + path, "--kv-gib", "0.05", "--poll", "yield", "--peers", "2"});
  ASSERT_TRUE(worker.WaitUntilListening()) << worker.Messages();
  for (int round = 0; round < 2; ++round) {
    GenerateProgram first("unix:" + path, kPrompts, kTokens), second("unix:" + path, kPrompts, kTokens);
    for (GenerateProgram* each : {&first, &second}) {
      const std::string text = each->Wait(&ok);
      EXPECT_TRUE(ok) << text;
      EXPECT_EQ(TokenIds(text), expected) << text;
    }
  }
  const std::string messages = worker.Messages();
  EXPECT_NE(messages.find("serves engine"), std::string::npos) << messages;
  EXPECT_EQ(messages.find("refused"), std::string::npos) << messages;
}

}  // namespace
}  // namespace fastdecode
