#include "engine/record/record_server.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <thread>
#include <vector>

#include "engine/record/abstract_socket.h"
#include "engine/record/record_reader.h"
#include "rdma/shm/unix_socket.h"
#include "tests/rdma/socket_folder.h"

namespace fastdecode {
namespace {

nlohmann::json Describe() { return {{"layers", 3}, {"model", "made-up"}}; }

RecordEvent Event(uint64_t n) {
  RecordEvent event = {};
  event.start_ns = n;
  return event;
}

void ExpectError(const absl::Status& status, absl::StatusCode code, const std::string& part) {
  EXPECT_EQ(status.code(), code) << status;
  EXPECT_NE(std::string(status.message()).find(part), std::string::npos) << "'" << part << "' is not in: " << status;
}

class RecordServerTest : public testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<Recorder>> recorder = Recorder::Create();
    ASSERT_TRUE(recorder.ok()) << recorder.status();
    recorder_ = *std::move(recorder);
  }
  void Start(const std::string& path) {
    absl::StatusOr<std::unique_ptr<RecordServer>> server = RecordServer::Start(path, recorder_.get(), Describe);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
  }
  bool BecomesOn(bool on) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (std::chrono::steady_clock::now() < deadline) {
      if (recorder_->writer(Recorder::kPipelineRing).on() == on) return true;
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return false;
  }

  SocketFolder folder_;
  std::unique_ptr<Recorder> recorder_;
  std::unique_ptr<RecordServer> server_;
};

TEST_F(RecordServerTest, AnAttachedReaderTurnsRecordingOnAndOffAgain) {
  Start("");
  EventWriter writer = recorder_->writer(Recorder::kPipelineRing);
  EXPECT_FALSE(writer.on());
  absl::StatusOr<std::unique_ptr<RecordReader>> reader = RecordReader::Attach(std::to_string(getpid()));
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_TRUE(writer.on());
  EXPECT_EQ((*reader)->engine(), Describe());
  EventWriter desk = recorder_->writer(Recorder::kDeskRing);
  writer.Write(Event(1));
  writer.Write(Event(2));
  desk.Write(Event(3));
  std::vector<RecordEvent> events(16);
  uint64_t lost = 0;
  ASSERT_EQ((*reader)->Read(events.data(), events.size(), &lost), 3u);
  EXPECT_EQ(events[0].start_ns, 1u);
  EXPECT_EQ(events[1].start_ns, 2u);
  EXPECT_EQ(events[2].start_ns, 3u);
  EXPECT_FALSE((*reader)->Ended());
  reader->reset();
  EXPECT_TRUE(BecomesOn(false));
}

TEST_F(RecordServerTest, TheEndOfTheEngineIsSeen) {
  const std::string path = folder_.File("r.sock");
  Start(path);
  absl::StatusOr<std::unique_ptr<RecordReader>> reader = RecordReader::Attach(path);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_FALSE((*reader)->Ended());
  server_.reset();
  EXPECT_TRUE((*reader)->Ended());
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(RecordServerTest, AReaderThatDiesTurnsRecordingOff) {
  const std::string path = folder_.File("r.sock");
  Start(path);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    absl::StatusOr<std::unique_ptr<RecordReader>> reader = RecordReader::Attach(path);
    if (reader.ok()) pause();
    _exit(1);
  }
  EXPECT_TRUE(BecomesOn(true));
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(BecomesOn(false));
}

// A child that was forked off, and keeps all descriptors open, keeps neither the server from ending nor its readers
// from seeing it.
TEST_F(RecordServerTest, AForkedChildHoldsNothingUp) {
  Start("");
  absl::StatusOr<std::unique_ptr<RecordReader>> reader = RecordReader::Attach(std::to_string(getpid()));
  ASSERT_TRUE(reader.ok()) << reader.status();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    pause();
    _exit(1);
  }
  server_.reset();
  EXPECT_TRUE((*reader)->Ended());
  EXPECT_FALSE(recorder_->writer(Recorder::kPipelineRing).on());
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

TEST_F(RecordServerTest, SaysWhoIsNoEngine) {
  ExpectError(RecordReader::Attach("999999999").status(), absl::StatusCode::kNotFound, "there is no process 999999999");
  // This process has no server yet.
  ExpectError(RecordReader::Attach(std::to_string(getpid())).status(), absl::StatusCode::kFailedPrecondition,
              "(record_server_t)");
  ExpectError(RecordReader::Attach(folder_.File("none.sock")).status(), absl::StatusCode::kNotFound, "none.sock");
  ExpectError(RecordReader::Attach("").status(), absl::StatusCode::kInvalidArgument, "path of a socket");
}

TEST_F(RecordServerTest, SaysWhatAProcessIsThatPutsUpASign) {
  const std::string pid = std::to_string(getpid());
  {
    const ProcessSign sign(kLoadingName);
    const ProcessSign another(kLoadingName);  // of a second engine
    EXPECT_TRUE(ProcessSign::IsUp(kLoadingName, getpid()));
    EXPECT_FALSE(ProcessSign::IsUp(kWorkerName, getpid()));
    EXPECT_FALSE(ProcessSign::IsUp(kLoadingName, getppid()));
    // However many ask, and nobody is let in.
    for (int i = 0; i < 100; ++i) {
      ExpectError(RecordReader::Attach(pid).status(), absl::StatusCode::kFailedPrecondition,
                  "is still loading its model: try again");
    }
    Start("");
    EXPECT_TRUE(RecordReader::Attach(pid).ok());  // one of its engines
    server_.reset();
  }
  EXPECT_FALSE(ProcessSign::IsUp(kLoadingName, getpid()));
  const ProcessSign sign(kWorkerName);
  ExpectError(RecordReader::Attach(pid).status(), absl::StatusCode::kFailedPrecondition, "is a worker, no engine");
}

// Something else listens: it says nothing, or something that is no recording.
TEST_F(RecordServerTest, SaysThatTheOtherEndIsNoEngine) {
  const std::string path = folder_.File("other.sock");
  absl::StatusOr<SocketFile> other = SocketFile::Listen(path);
  ASSERT_TRUE(other.ok()) << other.status();
  for (const std::string& answer :
       {std::string("hello"), std::string(R"({"engine": {}, "layout": {"version": 99}})")}) {
    std::thread thread([&] {
      FileDescriptor client;
      while (!client.valid()) client = FileDescriptor(accept(other->fd(), nullptr, nullptr));
      EXPECT_TRUE(SendPacket(client.get(), answer.data(), answer.size(), recorder_->fd()).ok());
    });
    ExpectError(RecordReader::Attach(path).status(), absl::StatusCode::kFailedPrecondition,
                answer == "hello" ? "is no engine" : "version 99");
    thread.join();
  }
}

TEST_F(RecordServerTest, LayoutsThatDoNotFitAreRefused) {
  const nlohmann::json good = recorder_->Layout();
  ASSERT_TRUE(MappedRings::Map(good, recorder_->fd()).ok());
  const auto refused = [&](const char* field, uint64_t value) {
    nlohmann::json bad = good;
    bad["rings"][1][field] = value;
    EXPECT_FALSE(MappedRings::Map(bad, recorder_->fd()).ok()) << field << " " << value;
  };
  refused("capacity", 0);
  refused("capacity", 1000);
  refused("capacity", uint64_t{1} << 40);
  refused("capacity", uint64_t{1} << 63);
  refused("offset", 8);
  refused("offset", uint64_t{1} << 63);
  refused("offset", good["rings"][1]["offset"].get<uint64_t>() + 4096);
  for (const char* text : {"[]", "{}", "3", R"({"version": 1, "event_bytes": 104})", R"({"version": "1"})"}) {
    EXPECT_FALSE(MappedRings::Map(nlohmann::json::parse(text), recorder_->fd()).ok()) << text;
  }
}

TEST_F(RecordServerTest, ASecondServerOfAProcessIdSaysSo) {
  Start("");
  ExpectError(
      RecordServer::Start("", recorder_.get(), Describe).status(), absl::StatusCode::kAlreadyExists,
      "--record-socket: auto: Address already in use; another engine with this process id has it (of this process, "
      "or of another container on this network); give it a path");
}

TEST_F(RecordServerTest, ReadersBeyondTheLimitWait) {
  Start("");
  std::vector<std::unique_ptr<RecordReader>> readers;
  for (size_t i = 0; i < RecordServer::kReadersMax; ++i) {
    absl::StatusOr<std::unique_ptr<RecordReader>> reader = RecordReader::Attach(std::to_string(getpid()));
    ASSERT_TRUE(reader.ok()) << reader.status();
    readers.push_back(*std::move(reader));
  }
  std::thread leaving([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    readers.pop_back();
  });
  const absl::StatusOr<std::unique_ptr<RecordReader>> late = RecordReader::Attach(std::to_string(getpid()));
  EXPECT_TRUE(late.ok()) << late.status();
  leaving.join();
}

}  // namespace
}  // namespace fastdecode
