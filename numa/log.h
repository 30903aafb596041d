#ifndef FASTDECODE_NUMA_LOG_H_
#define FASTDECODE_NUMA_LOG_H_

#include <mutex>
#include <string>

namespace fastdecode {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// "debug", "info", "warning" or "error".
const char* LogLevelName(LogLevel level);

// Takes one message without a newline. Called under the logger's lock: never concurrently, and must not log itself.
using LogSink = void (*)(void* user, LogLevel level, const char* message);

// The one way out for messages. Passed by pointer to whoever has something to say; nothing is global.
// Owns: nothing; `user` must outlive it.
// Thread: any, but never one of the data path (a lock, and whatever the sink does).
class Logger {
 public:
  // Messages below `min_level` are dropped. A null sink drops all.
  Logger(LogSink sink, void* user, LogLevel min_level = LogLevel::kInfo)
      : sink_(sink), user_(user), min_level_(min_level) {}

  Logger(const Logger&) = delete;
  Logger& operator=(const Logger&) = delete;

  // The sink that writes "fastdecode: warning: MESSAGE" lines to stderr; info lines carry no level. Its user is null.
  static LogSink Stderr();

  bool Enabled(LogLevel level) const { return sink_ != nullptr && level >= min_level_; }

  void Log(LogLevel level, const std::string& message);
  void Debug(const std::string& message) { Log(LogLevel::kDebug, message); }
  void Info(const std::string& message) { Log(LogLevel::kInfo, message); }
  void Warning(const std::string& message) { Log(LogLevel::kWarning, message); }
  void Error(const std::string& message) { Log(LogLevel::kError, message); }

 private:
  const LogSink sink_;
  void* const user_;
  const LogLevel min_level_;
  std::mutex mutex_;  // serialises the sink
};

}  // namespace fastdecode

#endif  // FASTDECODE_NUMA_LOG_H_
