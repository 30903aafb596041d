#ifndef FASTDECODE_ENGINE_API_HANDLES_H_
#define FASTDECODE_ENGINE_API_HANDLES_H_

#include <fastdecode/fastdecode.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <string>
#include <vector>

#include "engine/api/to_event.h"
#include "engine/start/engine.h"
#include "engine/start/options.h"

// What the C interface's handles are.
struct fd_options {
  fastdecode::Options options;
  fd_log_sink sink = nullptr;
  void* user = nullptr;
};

struct fd_engine {
  fd_options log;  // first: the engine logs until it is gone
  std::unique_ptr<fastdecode::Engine> engine;
  std::vector<fastdecode::TakenEvent> polled;  // of the thread that polls
};

namespace fastdecode {

// A text that fd_string_free frees; null where there is no memory for it.
inline char* CopyString(const std::string& text) {
  char* copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) return nullptr;
  std::memcpy(copy, text.data(), text.size());
  copy[text.size()] = 0;
  return copy;
}

}  // namespace fastdecode

#endif  // FASTDECODE_ENGINE_API_HANDLES_H_
