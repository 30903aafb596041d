// The access log: what a line has, and that nobody who does not read it stops anybody.
#include "tools/serve/access_log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fastdecode/fastdecode.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

namespace fastdecode::serve {
namespace {

using nlohmann::json;
using testing::HasSubstr;

AccessRecord Record(const std::string& id, size_t error_bytes = 0) {
  AccessRecord record;
  record.id = id;
  record.error = std::string(error_bytes, 'e');
  return record;
}

std::vector<json> Lines(const std::string& text) {
  std::vector<json> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
  return lines;
}

std::string FileText(const std::string& path) {
  std::ifstream in(path);
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// What comes out of a pipe or socket until its end; `begin` has been read already.
std::string ReadAll(int fd, std::string begin = "") {
  char some[65536];
  for (ssize_t bytes; (bytes = read(fd, some, sizeof(some))) > 0;) begin.append(some, static_cast<size_t>(bytes));
  return begin;
}

// Makes a descriptor this process's stdout for a while.
class StandardOutput {
 public:
  explicit StandardOutput(int fd) : before_(dup(STDOUT_FILENO)) { dup2(fd, STDOUT_FILENO); }
  ~StandardOutput() {
    dup2(before_, STDOUT_FILENO);
    close(before_);
  }

 private:
  const int before_;
};

class AccessLogTest : public testing::Test {
 protected:
  AccessLogTest() {
    char folder[] = "/tmp/access_log_testXXXXXX";
    folder_ = mkdtemp(folder);
    path_ = folder_ + "/access.log";
  }
  ~AccessLogTest() override { std::filesystem::remove_all(folder_); }

  std::string folder_, path_;
};

TEST(AccessLogLine, HasWhatIsKnown) {
  AccessRecord record;
  record.time_ns = 1'700'000'000'123'456'789;
  record.id = "req-1";
  record.peer = "127.0.0.1";
  record.key = "alice";
  record.method = "POST";
  record.target = "/v1/completions";
  record.status = 200;
  record.user = "u\"1\n";
  record.finish = "stop";
  record.ended_by = "client";
  record.error = "no";
  record.prompt_tokens = 10;
  record.cached_tokens = 0;
  record.generated_tokens = 0;
  record.choices = 2;
  record.queue_ms = 0;
  record.ttft_ms = 1.2345678;
  record.itl_max_ms = 3;
  record.total_ms = 1234.5;
  record.bytes_in = 7;
  record.bytes_out = 1ull << 40;
  record.traceparent = "00-ab";
  const json line = json::parse(AccessLog::ToJson(record));
  const json expected = {{"time", "2023-11-14T22:13:20.123456Z"},
                         {"id", "req-1"},
                         {"peer", "127.0.0.1"},
                         {"key", "alice"},
                         {"method", "POST"},
                         {"target", "/v1/completions"},
                         {"status", 200},
                         {"user", "u\"1\n"},
                         {"finish", "stop"},
                         {"ended_by", "client"},
                         {"error", "no"},
                         {"prompt_tokens", 10},
                         {"cached_tokens", 0},
                         {"generated_tokens", 0},
                         {"choices", 2},
                         {"queue_ms", 0.0},
                         {"ttft_ms", 1.235},
                         {"itl_max_ms", 3.0},
                         {"total_ms", 1234.5},
                         {"bytes_in", 7},
                         {"bytes_out", 1ull << 40},
                         {"traceparent", "00-ab"}};
  EXPECT_EQ(line, expected);
  EXPECT_EQ(AccessLog::ToJson(record).find('\n'), std::string::npos);
}

TEST(AccessLogLine, LeavesOutWhatIsNotKnown) {
  const json expected = {{"time", "1970-01-01T00:00:00.000000Z"}, {"bytes_in", 0}, {"bytes_out", 0}};
  EXPECT_EQ(json::parse(AccessLog::ToJson({})), expected);
}

TEST(AccessLogLine, IsCutAndStaysUtf8) {
  AccessRecord record;
  record.id = "a\xff z";
  record.target = "/x?key=secret";
  record.user = std::string(199, 'u') + "\xc3\xa4\xc3\xa4";  // the 200th byte is in the middle of a character
  record.error = std::string(10'000, 'e');
  const json line = json::parse(AccessLog::ToJson(record));
  EXPECT_EQ(line["id"], "a\xef\xbf\xbd z");
  EXPECT_EQ(line["target"], "/x");
  EXPECT_EQ(line["user"], std::string(199, 'u'));
  EXPECT_EQ(line["error"], std::string(500, 'e'));
  // Nothing but continuation bytes is no text at all, and no harm.
  record.user = std::string(1000, '\x80');
  EXPECT_TRUE(json::accept(AccessLog::ToJson(record)));
}

TEST_F(AccessLogTest, AppendsLinesToAFile) {
  std::ofstream(path_) << "{\"id\":\"before\"}\n";
  {
    AccessLog log(path_);
    for (int i = 0; i < 1000; ++i) log.Write(Record(std::to_string(i)));
  }
  const std::vector<json> lines = Lines(FileText(path_));
  ASSERT_EQ(lines.size(), 1001u);
  EXPECT_EQ(lines[0]["id"], "before");
  for (size_t i = 1; i < lines.size(); ++i) EXPECT_EQ(lines[i]["id"], std::to_string(i - 1));
}

TEST_F(AccessLogTest, ANewFileIsNotForOthers) {
  { AccessLog log(path_); }
  struct stat info = {};
  ASSERT_EQ(stat(path_.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0027, 0u);
}

TEST_F(AccessLogTest, NoneWritesNothing) {
  AccessLog log("none");
  log.Write(Record("x"));
  log.Reopen();
  EXPECT_EQ(log.dropped(), 0u);
  EXPECT_FALSE(std::filesystem::exists("none"));
}

TEST_F(AccessLogTest, SaysWhichFileCannotBeOpened) {
  for (const std::string& path : {folder_, folder_ + "/no/such/folder"}) {
    try {
      AccessLog log(path);
      ADD_FAILURE() << path;
    } catch (const Error& error) {
      EXPECT_THAT(error.what(), HasSubstr("'" + path + "'"));
    }
  }
}

TEST_F(AccessLogTest, ReopensAfterRotation) {
  AccessLog log(path_);
  log.Write(Record("old"));
  while (FileText(path_).empty()) std::this_thread::yield();
  std::filesystem::rename(path_, path_ + ".1");
  log.Reopen();
  log.Write(Record("new"));
  while (!std::filesystem::exists(path_) || FileText(path_).empty()) std::this_thread::yield();
  EXPECT_EQ(Lines(FileText(path_)).at(0)["id"], "new");
  EXPECT_EQ(Lines(FileText(path_ + ".1")).size(), 1u);
}

TEST_F(AccessLogTest, KeepsItsFileWhereReopeningFails) {
  std::filesystem::create_directory(folder_ + "/sub");
  const std::string path = folder_ + "/sub/access.log";
  std::vector<std::string> problems;
  {
    AccessLog log(path, [&](const std::string& problem) { problems.push_back(problem); });
    std::filesystem::rename(folder_ + "/sub", folder_ + "/moved");
    log.Reopen();
    log.Write(Record("kept"));
  }
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_THAT(problems[0], HasSubstr(path));
  EXPECT_EQ(Lines(FileText(folder_ + "/moved/access.log")).at(0)["id"], "kept");
}

TEST_F(AccessLogTest, AFullDiskIsSaidOnceAndCounted) {
  std::vector<std::string> problems;
  uint64_t dropped = 0;
  {
    AccessLog log("/dev/full", [&](const std::string& problem) { problems.push_back(problem); });
    for (uint64_t i = 1; i <= 20; ++i) {
      log.Write(Record("x"));
      while (log.dropped() < i) std::this_thread::yield();
    }
    dropped = log.dropped();
  }
  EXPECT_EQ(dropped, 20u);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_THAT(problems[0], HasSubstr(std::strerror(ENOSPC)));
}

TEST_F(AccessLogTest, StdoutIsLeftAsItIs) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  {
    const StandardOutput standard_output(ends[1]);
    AccessLog log("-");
    log.Write(Record("x"));
    EXPECT_EQ(fcntl(ends[1], F_GETFL) & O_NONBLOCK, 0);
  }
  close(ends[1]);
  EXPECT_EQ(Lines(ReadAll(ends[0])).at(0)["id"], "x");
  close(ends[0]);
}

// Until the log is far behind: a megabyte or more must have been dropped.
uint64_t WriteTooMuch(AccessLog* log) {
  uint64_t written = 0;
  while (log->dropped() < 2000) {
    log->Write(Record(std::to_string(written), 500));
    ++written;
  }
  return written;
}

TEST_F(AccessLogTest, APipeThatNobodyReadsStopsNobody) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  uint64_t dropped = 0;
  {
    const StandardOutput standard_output(ends[1]);
    std::vector<std::string> problems;
    {
      AccessLog log("-", [&](const std::string& problem) { problems.push_back(problem); });
      const uint64_t written = WriteTooMuch(&log);
      dropped = log.dropped();
      EXPECT_LT(dropped, written);
    }  // comes back although nobody reads
    ASSERT_EQ(problems.size(), 1u);
    EXPECT_THAT(problems[0], HasSubstr("nobody reads"));
  }
  close(ends[1]);
  close(ends[0]);
}

TEST_F(AccessLogTest, WhoReadsLateLearnsHowManyWereDropped) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  uint64_t written = 0, dropped = 0;
  std::string text;
  {
    const StandardOutput standard_output(ends[1]);
    AccessLog log("-");
    written = WriteTooMuch(&log);
    dropped = log.dropped();
    // The reader catches up, and the log's thread comes to the notice.
    for (size_t looked_at = 0; text.find("\"dropped\":", looked_at) == std::string::npos;) {
      looked_at = text.size() - std::min<size_t>(text.size(), 20);
      char some[65536];
      const ssize_t bytes = read(ends[0], some, sizeof(some));
      ASSERT_GT(bytes, 0);
      text.append(some, static_cast<size_t>(bytes));
    }
  }
  close(ends[1]);
  text = ReadAll(ends[0], text);
  close(ends[0]);
  uint64_t said = 0, lines = 0;
  for (const json& line : Lines(text)) {
    if (line.contains("dropped")) {
      said += line["dropped"].get<uint64_t>();
    } else {
      ++lines;
    }
  }
  EXPECT_EQ(said, dropped);
  EXPECT_EQ(lines + dropped, written);
}

TEST_F(AccessLogTest, ASocketIsWrittenToAsWell) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
  {
    const StandardOutput standard_output(ends[1]);
    AccessLog log("-");
    log.Write(Record("x"));
  }
  close(ends[1]);
  EXPECT_EQ(Lines(ReadAll(ends[0])).at(0)["id"], "x");
  close(ends[0]);
}

TEST_F(AccessLogTest, AReaderThatGoesEndsNothing) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const StandardOutput standard_output(ends[1]);
  std::vector<std::string> problems;
  {
    AccessLog log("-", [&](const std::string& problem) { problems.push_back(problem); });
    close(ends[0]);
    log.Write(Record("x"));  // SIGPIPE would end the test
    while (log.dropped() == 0) std::this_thread::yield();
  }
  close(ends[1]);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_THAT(problems[0], HasSubstr(std::strerror(EPIPE)));
}

TEST_F(AccessLogTest, TakesLinesFromManyThreads) {
  constexpr int kThreads = 4, kLines = 500;
  {
    AccessLog log(path_);
    std::vector<std::thread> threads;
    for (int thread = 0; thread < kThreads; ++thread) {
      threads.emplace_back([&] {
        for (int i = 0; i < kLines; ++i) log.Write(Record("x"));
        log.Reopen();
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(log.dropped(), 0u);
  }
  EXPECT_EQ(Lines(FileText(path_)).size(), static_cast<size_t>(kThreads * kLines));
}

}  // namespace
}  // namespace fastdecode::serve
