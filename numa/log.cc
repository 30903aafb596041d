#include "numa/log.h"

#include <cstdio>

namespace fastdecode {

namespace {

void WriteToStderr(void* /*user*/, LogLevel level, const char* message) {
  if (level == LogLevel::kInfo) {
    std::fprintf(stderr, "fastdecode: %s\n", message);
  } else {
    std::fprintf(stderr, "fastdecode: %s: %s\n", LogLevelName(level), message);
  }
}

}  // namespace

const char* LogLevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "unknown";
}

LogSink Logger::Stderr() { return &WriteToStderr; }

void Logger::Log(LogLevel level, const std::string& message) {
  if (!Enabled(level)) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  sink_(user_, level, message.c_str());
}

}  // namespace fastdecode
