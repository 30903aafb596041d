#ifndef FASTDECODE_TOOLS_SERVE_ACCESS_LOG_H_
#define FASTDECODE_TOOLS_SERVE_ACCESS_LOG_H_

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

namespace fastdecode::serve {

// One request as the access log has it: a JSON object a line, without anything that a prompt or an answer says.
struct AccessRecord {
  uint64_t time_ns = 0;        // since 1970, when its head had been read
  std::string id;              // X-Request-Id
  std::string peer;            // address; "unix"
  std::string key;             // the name of its key; empty: none
  std::string method, target;  // target: the path alone; the log cuts it at 200 bytes, and at a ?
  int status = 0;              // 0: nothing was answered
  std::string user;            // the request's field `user`; cut at 200 bytes
  std::string finish;          // stop, length, error, cancelled; empty: no completion
  std::string ended_by;        // who ended it early: client, slow_client, shutdown, engine; empty: nobody
  std::string error;           // the code of an error that was answered, and its field
  uint64_t prompt_tokens = 0, generated_tokens = 0, choices = 0;       // choices: 0: no completion
  std::optional<uint64_t> cached_tokens;                               // of the prompts' tokens
  double queue_ms = -1, ttft_ms = -1, itl_max_ms = -1, total_ms = -1;  // -1: not known
  uint64_t bytes_in = 0, bytes_out = 0;
  std::string traceparent;  // cut at 200 bytes
};

// Writes the log on a thread of its own, so that a full disk or a pipe that nobody reads stops no stream: what is
// more than 4 MB behind is dropped, and a line says how many were. The same holds for what could not be written.
// Owns: thread, file. Thread: any.
class AccessLog {
 public:
  using Complain = std::function<void(const std::string&)>;

  // "-": stdout; "none": nothing; else a file, which is appended to. Throws Error if it cannot be opened. `complain`
  // takes what goes wrong later, on the log's thread, and once until writing works again; by default stderr does.
  explicit AccessLog(std::string path, Complain complain = nullptr);
  ~AccessLog();  // writes what waits, for a second at most
  AccessLog(const AccessLog&) = delete;
  AccessLog& operator=(const AccessLog&) = delete;

  void Write(const AccessRecord& record);
  // Opens the file anew, after it was moved away, before the next line is written; an error is in the log of the
  // program, and the old file goes on being used.
  void Reopen();
  uint64_t dropped() const;

  // Without a line's end. What is not known is left out, and what is not UTF-8 is replaced.
  static std::string ToJson(const AccessRecord& record);

 private:
  // What the thread does.
  void Run();
  void OpenAnew();
  void LookAtFile();
  uint64_t WriteLines(std::string_view lines);  // how many were not written
  ssize_t WriteSome(std::string_view bytes);    // as write(2)
  bool WaitUntilWritable();                     // false: the end has come

  const std::string path_;
  const Complain complain_;

  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::string waiting_;
  size_t behind_bytes_ = 0;  // of waiting_, and of what the thread has taken and not written yet
  uint64_t dropped_ = 0, dropped_unsaid_ = 0;
  bool reopen_ = false, stop_ = false;
  std::chrono::steady_clock::time_point stop_at_;  // with stop_

  // The thread's alone, once it runs.
  int fd_ = -1;
  bool is_socket_ = false, is_regular_ = false;
  bool in_line_ = false;  // the last line was not written to its end
  bool failing_ = false;  // the last write failed, and it was said

  std::thread thread_;
};

}  // namespace fastdecode::serve

#endif  // FASTDECODE_TOOLS_SERVE_ACCESS_LOG_H_
